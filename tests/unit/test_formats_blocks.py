"""Matrices that are no arrays give what the array would give, everywhere a job looks at them."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from cmm.core.errors import DataError
from cmm.core.grid import Grid, Partition
from cmm.core.task import Assignment, Combination
from cmm.matrices.files import MatrixSource, as_source, check_exact, open_matrix, tiles, working_dtype
from cmm.matrices.integers import IntegerRange, product_holds
from cmm.matrices.nonfinite import fill_nonfinite
from cmm.matrices.scaling import look_at, scan
from cmm.matrices.sparse import SparseMatrix, from_scipy
from cmm.matrices.stored import Stored
from cmm.runtime import kernel
from cmm.runtime.protocol import TRIVIAL
from cmm.verify.freivalds import ResultCheck
from cmm.verify.product import check_product

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sparse", "chunked", "tall", "transposed"])
def store(request: Any, tmp_path: Path) -> Any:
    """store(array) -> the same matrix as a Stored one."""

    def make(array: np.ndarray) -> MatrixSource:
        if request.param == "sparse":
            return MatrixSource(SparseMatrix(sp.csc_array(array.astype(array.dtype.newbyteorder("=")))), "--a")
        h5py = pytest.importorskip("h5py")
        path, flip = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5", request.param == "transposed"
        with h5py.File(path, "w") as file:
            chunks = (array.shape[0], 3) if request.param == "tall" else (7, 6)
            file.create_dataset("A", data=array.T if flip else array, chunks=chunks, compression="lzf")
        source = open_matrix(path)
        return MatrixSource(source.array.T, "--a") if flip else source

    return make


def wide(dtype: str, shape: tuple[int, int] = (120, 31)) -> np.ndarray:
    """Many zeros, columns of very different size."""
    rng = np.random.default_rng(6)
    values = rng.normal(size=shape) * (rng.random(shape) < 0.3)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.normal(size=shape)
    reach = 18 if np.dtype(dtype).itemsize // (2 if np.dtype(dtype).kind == "c" else 1) == 4 else 150
    return (values * 10.0 ** rng.integers(-reach, reach, shape[1])).astype(dtype)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f8", "<c8", "<c16"])
def test_scan_and_scaled_blocks(store: Any, dtype: str) -> None:
    array = wide(dtype)
    array[5, 3], array[7, 8] = np.nan, np.inf
    work = working_dtype(array.dtype)
    stored, plain = look_at(store(array), work, "H"), look_at(as_source(array, "--a"), work, "H")
    assert isinstance(stored.source.array, Stored)
    assert np.array_equal(stored.exponents, plain.exponents)
    assert np.array_equal(stored.finite, plain.finite)
    np.testing.assert_allclose(stored.scan.norms, plain.scan.norms, rtol=120 * np.finfo(work).eps)
    for rows, cols in ((slice(0, 120), slice(0, 31)), (slice(3, 50), slice(5, 9)), (slice(119, 120), slice(30, 31))):
        out = np.full((130, 40), 7, work)
        assert np.array_equal(stored.block(rows, cols), plain.block(rows, cols))
        assert np.array_equal(stored.block(rows, cols, out=out), plain.block(rows, cols, out=np.empty_like(out)))


@pytest.mark.parametrize("limit", [1, 300, 5000, 1 << 20])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (120, 31), (5000, 2)])
def test_tiles_cover_stored_matrices_once(limit: int, shape: tuple[int, int]) -> None:
    if np.prod(shape) > 5000 and limit < 300:
        limit = 300
    matrix = SparseMatrix(sp.csc_array(shape))
    for stored in (matrix, matrix.T, matrix.T.T):
        seen = np.zeros(stored.shape, np.int64)
        for rows, cols in tiles(stored, limit):
            assert rows.stop - rows.start <= 4096 or stored is not matrix
            assert stored[rows, cols].shape == (rows.stop - rows.start, cols.stop - cols.start)
            seen[rows, cols] += 1
        assert (seen == 1).all()


def test_lines_of_c_that_are_not_finite(store: Any) -> None:
    rng = np.random.default_rng(7)
    A, B = rng.normal(size=(90, 12)), rng.normal(size=(90, 9))
    A[[3, 4, 50], [2, 2, 2]] = np.inf
    A[9, 5], B[8, 1], B[70, 6], B[71, 6] = np.nan, -np.inf, np.inf, -np.inf
    B[3, 0] = 0
    fa, fb = np.isfinite(A).all(axis=0), np.isfinite(B).all(axis=0)
    with np.errstate(invalid="ignore"):
        C = np.where(fa[:, None] & fb, np.where(fa, A, 0).T @ np.where(fb, B, 0), 0)
        expected = A.T @ B
    fill_nonfinite(C, store(A).array, store(B).array, fa, fb)
    np.testing.assert_array_equal(np.isnan(C), np.isnan(expected))
    np.testing.assert_array_equal(np.where(np.isinf(C), C, 0), np.where(np.isinf(expected), expected, 0))


def test_exact_integers(store: Any) -> None:
    rng = np.random.default_rng(8)
    A, B = rng.integers(-50, 50, (90, 12)), rng.integers(-50, 50, (90, 9)) * (rng.random((90, 9)) < 0.2)
    a, b = store(A), store(B)
    assert IntegerRange.of(a) == IntegerRange.of(as_source(A, "--a"))
    C = A.T @ B
    assert product_holds(a.array, b.array, C)
    C[4, 4] += 1
    assert not product_holds(a.array, b.array, C)
    A[77, 6] = 2**53 + 1
    with pytest.raises(DataError, match="column 6"):
        check_exact(store(A))


def test_checks_of_results_and_of_c(store: Any) -> None:
    A, B = wide("<f8", (120, 20)), wide("<f8", (120, 14))
    a, b = look_at(store(A), A.dtype), look_at(store(B), B.dtype)
    partition = Partition(Grid(2, 2), 120, 20, 14)
    check = ResultCheck(partition, a, b, np.random.default_rng(1)).prepare()
    left, right = a.block(slice(0, 120), slice(0, 10)), b.block(slice(0, 120), slice(7, 14))
    task = Assignment.pair(0, Combination.unit(0), Combination.unit(1), 2)
    block = left.T @ right
    assert check.check(task, 0, block).ok
    block[3, 3] += 1e-6
    assert not check.check(task, 0, block).ok
    C = a.block(slice(0, 120), slice(0, 20)).T @ b.block(slice(0, 120), slice(0, 14))
    assert check_product(a, b, C, unscaled=False, rng=np.random.default_rng(2)).ok
    C[0, 0] += 1e-6
    assert not check_product(a, b, C, unscaled=False, rng=np.random.default_rng(2)).ok


# ---- sparse --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(0, 30), st.floats(0, 0.6), st.integers(0, 2**32 - 1), st.data())
def test_blocks_of_sparse_matrices(rows: int, cols: int, density: float, seed: int, data: st.DataObject) -> None:
    dense = np.random.default_rng(seed).normal(size=(rows, cols))
    dense[np.random.default_rng(seed + 1).random((rows, cols)) >= density] = 0
    matrix = SparseMatrix(sp.csc_array(dense))
    for _ in range(4):
        i, k = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
        j, m = sorted(data.draw(st.tuples(st.integers(0, cols), st.integers(0, cols))))
        assert np.array_equal(matrix[i:k, j:m], dense[i:k, j:m])
    some = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1)))) if rows else [], dtype=np.intp)
    assert np.array_equal(matrix[some], dense[some])
    with pytest.raises(IndexError, match="steps of 1"):
        matrix[::-1]


def test_sparse_memory_is_bounded_and_forecast() -> None:
    matrix = sp.random(8000, 900, density=0.003, format="csc", random_state=3)
    tracemalloc.start()
    try:
        source = as_source(matrix, "A")
        for start in range(0, 900, 30):  # thirty chunks, each in bands
            for band in range(0, 8000, 500):
                source.array[band : band + 500, start : start + 30]
        scan(source.array, matrix.dtype)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert source.memory < source.bytes / 10
    assert peak < source.memory + (6 << 20)  # a tile, and what SciPy needs to turn a chunk


def test_chunked_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr("cmm.matrices.hdf5.CACHE_BYTES", 1 << 20)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("A", (20000, 2000), "f8", chunks=(100, 100), fillvalue=1.0)
    source = open_matrix(tmp_path / "x.h5")
    tracemalloc.start()
    try:
        for start in range(0, 2000, 250):
            for band in range(0, 20000, 40):
                source.array[band : band + 40, start : start + 250]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert source.memory < source.bytes / 20
    assert peak < source.memory + (4 << 20)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_scipy_matrices_are_taken_as_they_are(form: str) -> None:
    matrix = sp.random(50, 30, density=0.02, random_state=1).asformat(form)
    for kind in (matrix, sp.csr_array(matrix)):
        source = as_source(kind, "A")
        assert np.array_equal(np.asarray(source.array), matrix.toarray())


def test_scipy_matrices_are_not_changed_and_twice_given_elements_add_up() -> None:
    matrix = sp.csc_matrix((np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(2000, 1))
    before = matrix.data.copy(), matrix.indices.copy()
    source = as_source(matrix, "A")
    assert np.array_equal(source.array[0:2, 0:1], [[5.0], [3.0]])
    assert np.array_equal(before[0], matrix.data)
    assert np.array_equal(before[1], matrix.indices)
    small = sp.coo_array((np.array([100, 100], np.int8), ([0, 0], [0, 0])), shape=(50, 50))
    with pytest.raises(DataError, match="must add up within int8"):
        from_scipy(small, "A")


def test_sparse_matrices_with_indices_out_of_range_are_refused() -> None:
    matrix = sp.csc_array((np.ones(2), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    matrix.indices[1] = 1 << 20
    with pytest.raises(DataError, match="valid sparse matrix"):
        as_source(matrix, "A")


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(("share_a", "share_b"), [(0.01, 1), (1, 0.01), (0.01, 0.01), (0, 1), (1, 1)])
def test_the_kernel_multiplies_sparse_operands(
    monkeypatch: pytest.MonkeyPatch, dtype: str, share_a: float, share_b: float
) -> None:
    monkeypatch.setattr(kernel, "SPARSE_FLOPS", 0)
    rng = np.random.default_rng(9)
    a, b = rng.normal(size=(400, 150)).astype(dtype), rng.normal(size=(400, 130)).astype(dtype)
    a[rng.random(a.shape) >= share_a], b[rng.random(b.shape) >= share_b] = 0, 0
    used = kernel.sparse_product(a, b) is not None
    assert used == (min(share_a, share_b) < 0.02)
    out = [np.full((150, 130), np.nan, dtype), np.full((150, 130), np.nan, dtype)]
    program = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0]], dtype=np.int64)
    for _ in kernel.products([a, 2 * a], [b], program, out):
        pass
    bound = 400 * np.finfo(dtype).eps * np.linalg.norm(a, axis=0)[:, None] * np.linalg.norm(b, axis=0)
    assert (abs(out[0] - a.T @ b) <= bound).all()
    assert (abs(out[1] - 3 * (a.T @ b)) <= 6 * bound).all()


def test_the_kernel_leaves_dense_and_small_operands_to_blas() -> None:
    dense, empty = np.ones((400, 50)), np.zeros((400, 50))
    assert kernel.sparse_product(dense, dense) is None
    assert kernel.sparse_product(empty, dense) is None  # below SPARSE_FLOPS
    out = [np.zeros((50, 50))]
    assert sum(1 for _ in kernel.products([dense], [dense], TRIVIAL, out)) >= 1
    assert (out[0] == 400).all()


# ---- whole jobs ----------------------------------------------------------------------------------------------------


def test_jobs_from_and_to_other_formats(tmp_path: Path) -> None:
    """Single-rank jobs through the command line; each report says complete and verified."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(10)
    S, B = sp.random(300, 40, density=0.02, random_state=1), rng.normal(size=(300, 30))
    scipy.io.mmwrite(tmp_path / "S.mtx", S)
    np.savez_compressed(tmp_path / "B.npz", B=B, other=B)
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.create_dataset("g/A", data=B + 1, chunks=(50, 7), compression="gzip")
    jobs = (
        ("S.mtx", "B.npz::B", "C.h5::/r/C", S.toarray().T @ B),
        ("A.h5::/g/A", "S.mtx", "C.npz", (B + 1).T @ S.toarray()),
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    for a, b, out, expected in jobs:
        command = [sys.executable, "-m", "cmm.run", "--a", a, "--b", b, "--out", out, "--grid", "3x3"]
        done = subprocess.run(command, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True,
                              text=True, timeout=60, check=False)  # fmt: skip
        assert done.returncode == 0, done
        found = np.asarray(open_matrix(f"{tmp_path}/{out}").array)
        np.testing.assert_allclose(found, expected, rtol=0, atol=300 * np.finfo(float).eps * 300)
    assert (tmp_path / "C.h5.report.json").exists()
    assert (tmp_path / "C.npz.report.json").exists()
