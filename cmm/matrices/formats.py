"""The formats of matrix files: which module reads and writes a file, by its suffix."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

FORMATS: dict[str, str] = {
    ".npy": "cmm.matrices.npy",
    ".npz": "cmm.matrices.npz",
    ".h5": "cmm.matrices.hdf5",
    ".hdf5": "cmm.matrices.hdf5",
    ".hdf": "cmm.matrices.hdf5",
    ".mtx": "cmm.matrices.matrixmarket",
    ".mtx.gz": "cmm.matrices.matrixmarket",
}
CONTAINERS = frozenset({".npz", ".h5", ".hdf5", ".hdf"})  # FILE::NAME, see cmm.core.spec.split_member
READ_ONLY = frozenset({".mtx.gz"})


def suffix_of(file: Path) -> str:
    """The suffix that decides, in small letters: the longest known one, else the last."""
    name = file.name.lower()
    return max((suffix for suffix in FORMATS if name.endswith(suffix)), key=len, default=file.suffix.lower())


def module_of(file: Path) -> Any:
    """The module that reads this file; None when there is none."""
    module = FORMATS.get(suffix_of(file))
    return None if module is None else import_module(module)


def member_of(file: Path, member: str | None) -> tuple[str | None, ...]:
    """The further argument of formats that hold several matrices."""
    return (member,) if suffix_of(file) in CONTAINERS else ()


def readable() -> str:
    """The suffixes, for messages."""
    return ", ".join(sorted(FORMATS))


def writable() -> str:
    """The suffixes that a result can have, for messages."""
    return ", ".join(sorted(set(FORMATS) - READ_ONLY))
