"""cmm.matmul inside a world of 1, 2 or 4 ranks (scripts/test runs this file under mpirun)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cmm
from cmm.core.errors import DataError, UsageError

pytestmark = pytest.mark.mpi

SHAPES = [(40, 17, 23), (7, 1, 9), (5, 3, 1), (0, 4, 3), (6, 0, 4), (3, 5, 0), (1, 1, 1), (33, 64, 64)]
DTYPES = ["f4", "f8", "c8", "c16"]
CODES = [("fr", "pull"), ("fr", "oneshot"), ("rkrp", "pull"), ("rkrp", "oneshot"), ("replication", "pull"),
         ("replication", "oneshot"), ("uncoded", "pull"), ("uncoded", "oneshot")]  # fmt: skip


def draw(seed: int, s: int, columns: int, dtype: str) -> Any:
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((s, columns))
    if np.dtype(dtype).kind == "c":
        M = M + 1j * rng.standard_normal((s, columns))
    return M.astype(dtype)


def error_limit(s: int, dtype: Any, estimate: float | None) -> float:
    """Ten roundings of a dot product of length s, or the plan's own estimate where blocks were solved for."""
    return max(10 * np.sqrt(max(s, 1)) * float(np.finfo(dtype).eps), estimate or 0.0)


def check(C: Any, A: Any, B: Any, report: dict[str, Any], op: str = "T") -> None:
    wide = np.result_type(A, B, np.float64)
    A, B = (np.atleast_2d(M.T).T.astype(wide) for M in (A, B))
    exact = (A.conj() if op == "H" else A).T @ B
    assert C.shape == exact.shape
    scale = np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
    error = np.max(np.abs(C - exact) / np.where(scale == 0, 1, scale), initial=0.0)
    assert error <= error_limit(A.shape[0], C.dtype, report["decoding"]["error_estimate"])
    assert report["outcome"] == "complete"


def product(comm: Any, A: Any, B: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    if comm.rank == 0:
        return cmm.matmul(A, B, comm, **options)
    return cmm.matmul(comm=comm, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_shape_and_dtype(comm: Any, shape: tuple[int, int, int], dtype: str) -> None:
    s, r, t = shape
    A, B = draw(1, s, r, dtype), draw(2, s, t, dtype)
    C, report = product(comm, A, B)
    assert report["outcome"] == "complete"
    if comm.rank == 0:
        assert C.dtype == np.dtype(dtype)
        check(C, A, B, report)
    else:
        assert C is None


@pytest.mark.parametrize(("code", "dispatch"), CODES)
def test_every_code_and_dispatch(comm: Any, code: str, dispatch: str) -> None:
    A, B = draw(3, 50, 31, "f8"), draw(4, 50, 29, "f8")
    grid = None if code in ("uncoded", "replication") and dispatch == "oneshot" else "3x4"
    C, report = product(comm, A, B, code=code, dispatch=dispatch, grid=grid, seed=7)
    if comm.rank == 0:
        check(C, A, B, report)
        assert report["code"]["name"] == code
        assert report["verification"]["passed"] is True


def test_strides_byte_order_and_mixed_dtypes(comm: Any) -> None:
    base = draw(5, 60, 40, "f8")
    A, B = np.asfortranarray(base)[::2, ::3], draw(6, 30, 21, "f8").astype(">f4")
    C, report = product(comm, A, B, grid="2x3")
    if comm.rank == 0:
        assert C.dtype == np.float64
        check(C, A, B, report)


def test_hermitian(comm: Any) -> None:
    A, B = draw(7, 30, 12, "c16"), draw(8, 30, 10, "c16")
    C, report = product(comm, A, B, op="H", code="rkrp", dispatch="oneshot", grid="2x2", tasks=7)
    if comm.rank == 0:
        check(C, A, B, report, "H")


def test_vectors_and_integers(comm: Any) -> None:
    a, b = np.arange(9), np.arange(9) - 4
    C, report = product(comm, a, b)
    if comm.rank == 0:
        assert C.shape == (1, 1)
        assert C[0, 0] == a @ b
        assert report["problem"]["s"] == 9


@pytest.mark.parametrize(("code", "dispatch"), [("fr", "pull"), ("fr", "oneshot"), ("rkrp", "oneshot")])
def test_integers_are_exact(comm: Any, code: str, dispatch: str) -> None:
    """AᵀA of int16 beyond int32; NumPy would wrap in int16. One worker freezes so that blocks are solved for."""
    rng = np.random.default_rng(11)
    A = rng.integers(-(2**15), 2**15, (200, 30)).astype("i2")
    inject = ["slow:1:200"] if comm.size > 2 else []
    C, report = product(comm, A, A, code=code, dispatch=dispatch, grid="3x3", tasks=14, inject=inject)
    if comm.rank == 0:
        assert C.dtype == np.int64
        np.testing.assert_array_equal(C, A.astype(np.int64).T @ A.astype(np.int64))
        assert report["problem"]["dtype"] == "int64"
        assert report["verification"]["passed"] is True


def test_integers_that_could_round_are_refused(comm: Any) -> None:
    A = np.full((4, 6), 2**26)
    with pytest.raises(cmm.CmmError) as caught:
        product(comm, A, A, grid="2x2")
    assert caught.value.exit_code == 65


@pytest.mark.parametrize("where", ["entry", "column of A", "column of B", "row", "everything"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_not_finite_exactly_where_numpy_is(comm: Any, where: str, dtype: str) -> None:
    A, B = draw(12, 40, 20, dtype), draw(13, 40, 18, dtype)
    if where == "entry":
        A[3, 4] = np.nan
        B[5, 6] = np.inf
    elif where == "column of A":
        A[:, 2] = np.inf
    elif where == "column of B":
        B[:, 3] = np.nan
    elif where == "row":
        A[7] = -np.inf
    else:
        A[0, :] = np.nan
    C, report = product(comm, A, B, grid="3x3")
    if comm.rank == 0:
        with np.errstate(invalid="ignore"):
            exact = A.T @ B
        np.testing.assert_array_equal(np.isfinite(C), np.isfinite(exact))
        if np.dtype(dtype).kind != "c":
            np.testing.assert_array_equal(np.isnan(C), np.isnan(exact))
        fine = np.isfinite(exact)
        scale = np.sqrt((np.abs(np.where(np.isfinite(A), A, 0)) ** 2).sum(0))[:, None] * np.sqrt(
            (np.abs(np.where(np.isfinite(B), B, 0)) ** 2).sum(0)
        )
        assert np.all(np.abs(C[fine] - exact[fine]) <= 100 * np.finfo(dtype).eps * scale[fine])
        assert report["warnings"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", ["A", "B", "both"])
def test_nan_in_any_shape(comm: Any, shape: tuple[int, int, int], where: str) -> None:
    """In those too of which nothing but an empty C comes."""
    s, r, t = shape
    A, B = draw(1, s, r, "f8"), draw(2, s, t, "f8")
    for matrix, name in ((A, "A"), (B, "B")):
        if matrix.size and where in (name, "both"):
            matrix.flat[-1] = np.nan
    C, report = product(comm, A, B)
    assert report["outcome"] == "complete"
    if comm.rank == 0:
        np.testing.assert_array_equal(np.isnan(C), np.isnan(A.T @ B))
        assert C.shape == (r, t)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_columns_of_wildly_different_size(comm: Any, dtype: str) -> None:
    """Columns times 10^±250 (±25 in single precision): the error stays relative to the columns' own norms."""
    rng = np.random.default_rng(14)
    reach = 16 if dtype == "f4" else 140
    pa, pb = (10.0 ** rng.uniform(-reach, reach, size) for size in (31, 27))
    A, B = draw(15, 50, 31, dtype), draw(16, 50, 27, dtype)
    inject = ["slow:1:200"] if comm.size > 2 else []
    C, _ = product(comm, (A * pa).astype(dtype), (B * pb).astype(dtype), grid="4x4", inject=inject)
    if comm.rank == 0:
        A, B = (A * pa).astype(dtype), (B * pb).astype(dtype)
        wide = np.longdouble if np.dtype(dtype).kind == "f" else np.clongdouble
        exact = A.astype(wide).T @ B.astype(wide)
        scale = np.outer(*(np.sqrt((np.abs(M.astype(wide)) ** 2).sum(0)) for M in (A, B)))
        tiny = np.finfo(dtype).smallest_subnormal
        limit = 1e-11 if dtype != "f4" else 1e-5
        assert np.all(np.abs(C.astype(wide) - exact) <= limit * scale + tiny)


def test_calls_in_a_row_reuse_the_communicator(comm: Any) -> None:
    for seed in range(5):
        A, B = draw(seed, 20, 15, "f8"), draw(seed + 50, 20, 14, "f8")
        C, report = product(comm, A, B, seed=seed)
        if comm.rank == 0:
            check(C, A, B, report)


def test_bad_input_raises_on_every_rank_and_the_next_call_works(comm: Any) -> None:
    A, B = draw(1, 20, 5, "f8"), draw(2, 21, 5, "f8")
    with pytest.raises(cmm.CmmError) as caught:
        product(comm, A, B)
    assert caught.value.exit_code == 65
    if comm.rank == 0:
        assert isinstance(caught.value, DataError)
        assert "21 rows" in str(caught.value)
    C, report = product(comm, A, B[:20])
    if comm.rank == 0:
        check(C, A, B[:20], report)


def test_numbers_of_numpy_are_numbers(comm: Any) -> None:
    A, B = draw(1, 20, 5, "f8"), draw(2, 20, 6, "f8")
    C, report = product(comm, A, B, seed=np.int64(3), tasks=np.int32(9), tolerance=np.float32(1e-6), grid="2x2",
                        threads=np.uint8(1), give_up=np.float64(5.0))  # fmt: skip
    assert report["seed"] == 3
    if comm.rank == 0:
        check(C, A, B, report)


BAD = [
    ({"grid": "0x1"}, 64), ({"grid": "abc"}, 64), ({"grid": (2, 3)}, 64), ({"op": "h"}, 64), ({"verify": "ALL"}, 64),
    ({"tolerance": 0}, 64), ({"tolerance": float("nan")}, 64), ({"tolerance": "x"}, 64), ({"tasks": 1.5}, 64),
    ({"tasks": 10**12}, 64), ({"seed": -1}, 64), ({"seed": None}, 64), ({"params": [1]}, 64), ({"threads": 0}, 64),
    ({"give_up": "5"}, 64), ({"code": "raptor"}, 64), ({"dispatch": "push"}, 64), ({"params": {"colour": "red"}}, 64),
]  # fmt: skip


@pytest.mark.parametrize(("options", "code"), BAD)
def test_bad_options_are_refused_on_every_rank_and_leave_the_ranks_in_step(
    comm: Any, options: dict[str, Any], code: int
) -> None:
    """Whether all ranks pass the bad option or only the master does."""
    A, B = draw(1, 12, 8, "f8"), draw(2, 12, 9, "f8")
    for everywhere in (True, False):
        matrices = (A, B) if comm.rank == 0 else (None, None)
        mine = options if everywhere or comm.rank == 0 else {}
        with pytest.raises(UsageError) as caught:
            cmm.matmul(*matrices, comm, **mine)
        assert caught.value.exit_code == code
    C, report = product(comm, A, B)
    assert [worker["status"] for worker in report["workers"]] == ["ok"] * (comm.size - 1)
    if comm.rank == 0:
        check(C, A, B, report)


def test_matrices_that_are_none(comm: Any) -> None:
    for bad in (None, [[1, 2], [3]], np.ones((2, 2, 2)), np.array(["a", "b"])):
        with pytest.raises(cmm.CmmError) as caught:
            product(comm, bad, np.ones((2, 2)))
        assert caught.value.exit_code in (64, 65)
    with pytest.raises(UsageError, match="communicator"):
        cmm.matmul(np.ones(2), np.ones(2), "world")  # type: ignore[arg-type]


def test_refusals_name_the_remedy(comm: Any) -> None:
    with pytest.raises(cmm.CmmError) as caught:
        product(comm, np.ones((4, 3)), np.ones((4, 3)), grid="4x1")
    assert caught.value.exit_code == 64
    with pytest.raises(UsageError, match="workers"):
        product(comm, np.ones((4, 3)), np.ones((4, 3)), inject=[f"freeze:{comm.size}"])


def test_corruption_is_caught_and_replaced(comm: Any) -> None:
    if comm.size < 3:
        pytest.skip("needs an honest worker beside the corrupt one")
    A, B = draw(9, 64, 40, "f8"), draw(10, 64, 40, "f8")
    C, report = product(comm, A, B, grid="4x4", inject=["corrupt:1"])
    if comm.rank == 0:
        check(C, A, B, report)
        assert report["workers"][0]["status"] == "rejected"
        assert report["workers"][0]["rejected_results"] in (2, 3)  # two retire it; a third may be under way
        assert report["verification"]["rejected_results"] == report["workers"][0]["rejected_results"]
