"""Damaged files: whatever happens to their bytes, a refusal or the right numbers, in bounded memory.

HDF5 is fuzzed less than the others: its own library crashes on some files whose metadata were tampered with (2.0.0, a
changed filter message), which no reader in the same process can prevent.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.core.errors import CmmError, DataError
from cmm.matrices import room
from cmm.matrices.files import open_matrix, tiles

ROWS, COLS = 23, 11
ARRAY = np.random.default_rng(11).normal(size=(ROWS, COLS)).round(2)
SPARSE = sp.csr_array(np.where(np.random.default_rng(12).random((ROWS, COLS)) < 0.15, ARRAY, 0))
# Bytes that mean something to one of the parsers.
TELLING = st.sampled_from(b"\0\xff\x80\x7f 0919-+.eEnN%\n\r'(),<>{}PK|OfiLM")
EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), TELLING | st.integers(0, 255),
                           st.sampled_from(["set", "set", "insert", "delete"])), min_size=1, max_size=4)  # fmt: skip
HEADS = st.sampled_from([1.0, 1.0, 0.3, 0.1])  # the part of the file that is edited
CUTS = st.none() | st.floats(0, 1)


def damage(data: bytes, edits: list[tuple[float, int, str]], head: float, cut: float | None) -> bytes:
    if cut is not None:
        return data[: int(len(data) * cut)]
    found = bytearray(data)
    for where, byte, kind in edits:
        place = int(len(found) * where * head)
        if kind == "set":
            found[place] = byte
        elif kind == "insert":
            found.insert(place, byte)
        else:
            del found[place]
    return bytes(found)


def saved(write: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    write(file, *arrays, **named)
    return file.getvalue()


def market(matrix: Any) -> bytes:
    return saved(scipy.io.mmwrite, matrix)


FILES = {
    "npy": (".npy", saved(np.save, ARRAY), ""),
    "plain npz": (".npz", saved(np.savez, A=ARRAY, B=ARRAY), "::A"),
    "packed npz": (".npz", saved(np.savez_compressed, A=ARRAY, B=ARRAY), "::A"),
    "sparse npz": (".npz", saved(sp.save_npz, SPARSE), ""),
    "sparse mtx": (".mtx", market(SPARSE), ""),
    "dense mtx": (".mtx", market(ARRAY), ""),
    "complex mtx": (".mtx", market(SPARSE * (1 + 2j)), ""),
    "integer mtx": (".mtx", market((SPARSE * 1000).astype(np.int64)), ""),
    "packed mtx": (".mtx.gz", gzip.compress(market(SPARSE)), ""),
}
CHECKED = {"packed npz": ARRAY, "sparse npz": SPARSE.toarray(), "packed mtx": SPARSE.toarray()}  # by a CRC


def read(path: Path, member: str = "") -> np.ndarray | None:
    """The matrix, read as a job does, or None where it is refused."""
    try:
        source = open_matrix(f"{path}{member}", "--a")
        found = np.empty(source.shape, source.dtype)
        for rows, cols in tiles(source.array):
            found[rows, cols] = source.array[rows, cols]
    except CmmError as error:
        text = str(error)
    else:
        return found
    assert text.startswith("--a: ")
    assert "\n" not in text
    return None


def parsed(text: bytes) -> np.ndarray:
    """A Matrix Market file by the book, slowly. Raises ValueError."""
    lines = [line for line in text.split(b"\n") if line.split() and not line.lstrip().startswith(b"%")]
    _, _, form, field, symmetry = text.split(b"\n")[0].decode("latin-1").lower().split()
    sizes = [int(word) for word in lines[0].split()]
    dtype = {"integer": np.int64, "unsigned-integer": np.uint64, "complex": complex}.get(field, float)
    rest = [[word.decode() for word in line.split()] for line in lines[1:]]
    found = np.zeros(sizes[:2], dtype)
    mirrored = {"symmetric": lambda v: v, "skew-symmetric": lambda v: -v, "hermitian": np.conj}.get(symmetry)
    for number, words in enumerate(rest):
        i, j = (
            (int(words[0]) - 1, int(words[1]) - 1) if form == "coordinate" else (number % sizes[0], number // sizes[0])
        )
        words = words[2:] if form == "coordinate" else words
        value = complex(*map(float, words)) if dtype is complex else 1 if field == "pattern" else (
            int(words[0]) if "integer" in field else float(words[0]))  # fmt: skip
        found[i, j] += value
        if mirrored is not None and i != j:
            found[j, i] += mirrored(value)
    return found


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available", lambda: 1 << 26)


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=150)
@given(edits=EDITS, head=HEADS, cut=CUTS)
def test_damaged_files(
    tmp_path: Path, kind: str, edits: list[tuple[float, int, str]], head: float, cut: float | None
) -> None:
    suffix, data, member = FILES[kind]
    path = tmp_path / f"x{suffix}"
    changed = damage(data, edits, head, cut)
    path.write_bytes(changed)
    found = read(path, member)
    if found is None:
        return
    if kind in CHECKED:
        assert np.array_equal(found, CHECKED[kind])
    elif suffix == ".mtx" and b"array" not in changed.split(b"\n")[0].lower().replace(b"array real general", b""):
        np.testing.assert_array_equal(found, parsed(changed))
    else:
        assert found.nbytes <= len(changed)  # every element came from the file


@settings(max_examples=300)
@given(st.lists(st.text("0123456789.eE+-nainf ", max_size=8), min_size=1, max_size=4))
def test_words_that_are_no_numbers(tmp_path: Path, words: list[str]) -> None:
    """Accepted only what Python takes for as many numbers, and with the same value."""
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix array real general\n{len(words)} 1\n" + "\n".join(words))
    found = read(path)
    if found is not None:
        assert np.array_equal(found[:, 0], [float(word) for word in " ".join(words).split()], equal_nan=True)


@given(st.floats(0, 1, exclude_max=True), st.sampled_from(["chunked", "whole"]))
@settings(max_examples=40)
def test_hdf5_that_is_truncated(tmp_path: Path, where: float, kind: str) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.unlink(missing_ok=True)
    with h5py.File(path, "w") as file:
        options = {"chunks": (7, 5), "compression": "gzip"} if kind == "chunked" else {}
        file.create_dataset("A", data=ARRAY, **options)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * where)])
    with pytest.raises(DataError):
        open_matrix(path)


@given(st.integers(0, 1 << 30), st.integers(0, 255))
@settings(max_examples=60)
def test_hdf5_with_damaged_chunks(tmp_path: Path, where: int, byte: int) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    path.unlink(missing_ok=True)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("A", data=ARRAY, chunks=(7, 5), compression="gzip", fletcher32=True)
        chunks = [dataset.id.get_chunk_info(k) for k in range(dataset.id.get_num_chunks())]
    data = bytearray(path.read_bytes())
    chunk = chunks[where % len(chunks)]
    data[chunk.byte_offset + where % chunk.size] = byte
    path.write_bytes(data)
    found = read(path)
    assert found is None or np.array_equal(found, ARRAY)
