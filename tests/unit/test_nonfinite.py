"""NaN and infinity: C finite exactly where NumPy's is, of the same kind, and without a full product."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.core.task import Array
from cmm.matrices.files import as_source
from cmm.matrices.nonfinite import Lines, fill_nonfinite
from cmm.matrices.scaling import look_at, unscale

NAN, INF = np.nan, np.inf


def product(A: Array, B: Array) -> tuple[Array, Lines]:
    """The product as the runtime makes it: columns that are not finite as zeros, then their lines."""
    dtype = np.result_type(A, B, np.float32)
    a, b = (look_at(as_source(X, name), dtype) for X, name in ((A, "--a"), (B, "--b")))
    C = a.block(slice(0, len(A)), slice(0, A.shape[1])).T @ b.block(slice(0, len(B)), slice(0, B.shape[1]))
    assert np.isfinite(C).all()
    unscale(C, a.exponents, b.exponents)
    return C, fill_nonfinite(C, A, B, a.finite, b.finite)


def exact(A: Array, B: Array) -> Array:
    """A^T B by sums of terms, without a BLAS that might skip zeros."""
    with np.errstate(invalid="ignore", over="ignore"):
        return (A[:, :, None] * B[:, None, :]).sum(axis=0)


def agree(C: Array, A: Array, B: Array) -> None:
    reference = exact(A, B)
    finite = np.isfinite(reference)
    assert np.array_equal(np.isfinite(C), finite)
    assert np.allclose(C[finite], reference[finite], rtol=1e-5, atol=1e-5)
    if C.dtype.kind != "c":
        assert np.array_equal(C[~finite], reference[~finite], equal_nan=True)


def bad(kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    A, B = rng.normal(size=(30, 12)), rng.normal(size=(30, 10))
    B[rng.uniform(size=B.shape) < 0.1] = 0
    if kind == "one NaN":
        A[4, 3] = NAN
    elif kind == "one infinity":
        A[4, 3] = -INF
    elif kind == "a column in A and in B":
        A[:, 2], B[:, 5] = INF, NAN
    elif kind == "a row":
        A[7] = NAN
    elif kind == "a row of infinities":
        A[7], B[7] = INF, -INF
    elif kind == "all columns":
        A[rng.integers(0, 30, 12), np.arange(12)] = rng.choice([NAN, INF, -INF], 12)
    elif kind == "both signs":
        A[3, 1], A[9, 1] = INF, -INF
    elif kind == "all of A":
        A[:] = INF
    elif kind == "crossing":
        A[2, 3], B[2, 4], B[6, 4], A[8, 5] = INF, INF, -INF, NAN
    return A, B


KINDS = ["none", "one NaN", "one infinity", "a column in A and in B", "a row", "a row of infinities", "all columns",
         "both signs", "all of A", "crossing"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8", "c8", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_finite_exactly_where_numpy_is(kind, dtype, order):
    A, B = (np.asarray(X, order=order).astype(dtype) for X in bad(kind, np.random.default_rng(1)))
    C, _ = product(A, B)
    agree(C, A, B)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), density=st.sampled_from([0.01, 0.1, 0.5]), zeros=st.booleans())
def test_any_pattern_of_nonfinite_elements(seed, density, zeros):
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(9, 5)), rng.normal(size=(9, 4))
    for X in (A, B):
        if zeros:
            X[rng.uniform(size=X.shape) < 0.3] = 0
        where = rng.uniform(size=X.shape) < density
        X[where] = rng.choice([NAN, INF, -INF, INF, -INF], where.sum())
    C, _ = product(A, B)
    agree(C, A, B)


def test_in_small_pieces(monkeypatch):
    monkeypatch.setattr("cmm.matrices.nonfinite._LINES", 20)
    monkeypatch.setattr("cmm.matrices.nonfinite._BAND", 200)
    monkeypatch.setattr("cmm.matrices.files.tiles.__defaults__", (300,))
    for kind in KINDS:
        A, B = bad(kind, np.random.default_rng(2))
        agree(product(A, B)[0], A, B)


def test_one_bad_row_is_not_a_product():
    """Terms looked at: one row's worth of lines, r t, where the product has s r t."""
    A, B = bad("a row of infinities", np.random.default_rng(3))
    assert product(A, B)[1] == Lines(12, 10, 12 * 10 + 10 * 12)
    A, B = bad("a row", np.random.default_rng(3))
    assert product(A, B)[1] == Lines(12, 0, 0)  # NaN decides alone
    A, B = bad("one infinity", np.random.default_rng(3))
    assert product(A, B)[1] == Lines(1, 0, 10)
    A, B = bad("none", np.random.default_rng(3))
    assert product(A, B)[1] == Lines(0, 0, 0)


def test_integers_beside_infinities():
    A = np.array([[1, 0], [2, 3]])
    B = np.array([[INF, 1.0], [2.0, -1.0]])
    C, _ = product(A, B)
    agree(C, A.astype(float), B)
