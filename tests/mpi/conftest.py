"""Fixtures for tests inside an MPI world (`comm`) and for tests that start one (`make_inputs`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take back a skip: pytest-mpi takes every test below a folder named mpi for one marked mpi."""
    for item in items:
        if item.get_closest_marker("mpi") is None:
            item.own_markers[:] = [
                mark for mark in item.own_markers if "--with-mpi" not in mark.kwargs.get("reason", "")
            ]


@pytest.fixture
def comm() -> Iterator[Any]:
    """A duplicate of COMM_WORLD, so that no test sees another's messages. Collective: all ranks run the same tests."""
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


@dataclass(frozen=True)
class Inputs:
    """Two matrices on disk and where the job's results go."""

    A: Array
    B: Array
    folder: Path

    @property
    def a(self) -> str:
        return str(self.folder / "A.npy")

    @property
    def b(self) -> str:
        return str(self.folder / "B.npy")

    @property
    def out(self) -> str:
        return str(self.folder / "C.npy")

    @property
    def report(self) -> str:
        return str(self.folder / "report.json")

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--a", self.a, "--b", self.b, "--out", self.out, "--report", self.report)

    def error(self, C: Array | None = None, *, conjugate: bool = False) -> float:
        """max over i, j of |C - A^T B|_ij / (|A_i| |B_j|), the columns' 2-norms; C is read from `out` by default."""
        C = np.load(self.out) if C is None else C
        wide = np.result_type(self.A, self.B, np.float64)
        A, B = (np.atleast_2d(M.T).T.astype(wide) for M in (self.A, self.B))
        exact = (A.conj() if conjugate else A).T @ B
        assert C.shape == exact.shape
        scale = np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
        return float(np.max(np.abs(C - exact) / np.where(scale == 0, 1, scale), initial=0.0))


@pytest.fixture
def make_inputs(tmp_path: Path) -> Callable[..., Inputs]:
    """make_inputs(s, r, t, dtype="f8", seed=0, order="C"): standard normal A (s, r) and B (s, t), written as .npy."""

    def make(s: int, r: int, t: int, dtype: npt.DTypeLike = "f8", seed: int = 0, order: Any = "C") -> Inputs:
        rng = np.random.default_rng(seed)

        def draw(columns: int) -> Array:
            M = rng.standard_normal((s, columns))
            if np.dtype(dtype).kind == "c":
                M = M + 1j * rng.standard_normal((s, columns))
            return np.asarray(M, dtype=dtype, order=order)

        folder = tmp_path / f"inputs{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        inputs = Inputs(draw(r), draw(t), folder)
        np.save(inputs.a, inputs.A)
        np.save(inputs.b, inputs.B)
        return inputs

    return make
