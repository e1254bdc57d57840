"""Integers: exact or refused, never wrong."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.core.errors import DataError, InaccurateError
from cmm.core.task import Array
from cmm.matrices.files import EXACT, as_source
from cmm.matrices.integers import (
    PRIMES,
    ExactSystem,
    IntegerRange,
    as_int64,
    check_bounds,
    full_column_rank,
    integral,
    product_bound,
    product_holds,
)


def python_product(A: Array, B: Array) -> list[list[int]]:
    a, b = A.astype(object), B.astype(object)
    return [[sum(int(x) * int(y) for x, y in zip(p, q, strict=True)) for q in b.T] for p in a.T]


def ranges(A: Array, B: Array) -> tuple[IntegerRange, IntegerRange]:
    return IntegerRange.of(as_source(A, "--a")), IntegerRange.of(as_source(B, "--b"))


def test_which_jobs_are_exact():
    assert integral(np.dtype("i2"), np.dtype("?"))
    assert not integral(np.dtype("i2"), np.dtype("f8"))


@pytest.mark.parametrize("dtype", ["i1", "i2", "<i4", ">i8", "u1", "u8", "?"])
def test_bounds_hold(dtype):
    rng = np.random.default_rng(0)
    info = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = max(info[0], -(2**24)), min(info[1], 2**24)
    A, B = (rng.integers(low, high, (60, width), endpoint=True).astype(dtype) for width in (7, 5))
    a, b = ranges(A, B)
    exact = np.array(python_product(np.abs(A.astype(object)), np.abs(B.astype(object))), dtype=object)
    assert a.largest == max(abs(int(x)) for x in A.ravel())
    assert a.column_sum >= max(sum(abs(int(x)) for x in column) for column in A.T)
    assert a.column_square >= max(sum(int(x) ** 2 for x in column) for column in A.T)
    assert exact.max() <= product_bound(a, b) < 10 * exact.max() + 10


def test_most_negative_integers():
    small = np.full((3, 2), -(2**15), dtype=np.int16)
    assert ranges(small, small)[0] == IntegerRange(2**15, 3 * 2**15, 3 * 2**30)
    with pytest.raises(DataError, match="column 1"):
        IntegerRange.of(as_source(np.array([[1, -(2**63)]], dtype=np.int64), "--a"))


def test_refusal_gives_the_bound_and_a_way_out():
    A = np.full((1000, 4), 2**21, dtype=np.int64)
    a, b = ranges(A, A)
    assert check_bounds(a, b) == 1000 * 2**42
    with pytest.raises(DataError, match=r"times 9 for coding.*replication"):
        check_bounds(a, b, 3, 3)
    with pytest.raises(DataError, match="bound of 140737488355328000 for"):
        check_bounds(*ranges(A * 4, A * 8), 1, 1)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_rank_is_proved_and_never_overstated(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    rank = int(rng.integers(1, size + 1))
    matrix = rng.integers(-3, 4, (size + 3, rank)) @ rng.integers(-3, 4, (rank, size))
    assert full_column_rank(matrix) == (np.linalg.matrix_rank(matrix) == size)


def test_rank_when_a_prime_divides_the_determinant():
    assert full_column_rank(np.array([[PRIMES[0]]]))
    assert full_column_rank(np.array([[1, PRIMES[0]], [1, 0]]))
    assert not full_column_rank(np.array([[1, 1]]))
    assert full_column_rank(np.zeros((3, 0), dtype=np.int64))


def system(rng: np.random.Generator, size: int, bound: int) -> tuple[Array, Array, Array]:
    while True:
        M = rng.choice([-3, -2, -1, 1, 2, 3], (size + 2, size)) * (rng.uniform(size=(size + 2, size)) < 0.5)
        if full_column_rank(M):
            break
    X = rng.integers(-bound, bound, (size, 6), endpoint=True)
    return M, X, (M @ X).astype(float)


@pytest.mark.parametrize("size", [1, 4, 30])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_solution_with_rounding_errors_is_settled(size, sparse):
    rng = np.random.default_rng(size)
    M, X, Y = system(rng, size, 10**9)
    solved = X + rng.uniform(-0.4, 0.4, X.shape)
    exact = ExactSystem(sp.csr_array(M) if sparse else M, 10**9)
    assert np.array_equal(exact.settle(Y, solved), X)
    assert np.array_equal(exact.settle(Y, np.linalg.lstsq(M.astype(float), Y)[0]), X)


@pytest.mark.parametrize("damage", ["solution", "result", "nan", "range"])
def test_nothing_wrong_is_settled(damage):
    rng = np.random.default_rng(5)
    M, X, Y = system(rng, 10, 10**6)
    solved = X.astype(float)
    if damage == "solution":
        solved[3, 2] += 0.6
    elif damage == "result":
        Y[4, 1] += 1
    elif damage == "nan":
        solved[0, 0] = np.nan
    else:
        M, Y, solved = np.array([[1]]), np.full((1, 6), 1e7), np.full((1, 6), 1e7)
    with pytest.raises(InaccurateError):
        ExactSystem(M, 10**6).settle(Y, solved)


def test_systems_without_a_unique_integer_solution_are_refused():
    with pytest.raises(InaccurateError, match="uniquely"):
        ExactSystem(np.array([[1, 1], [2, 2], [3, 3]]), 5)
    with pytest.raises(DataError, match="coefficients=integers"):
        ExactSystem(np.array([[0.5]]), 5)
    with pytest.raises(DataError, match=r"2\^53"):
        ExactSystem(np.array([[3, 1], [1, 2]]), EXACT // 2)


def test_conversion_to_int64():
    assert as_int64(np.array([[-3.0, 2.0**53 - 1]])).tolist() == [[-3, 2**53 - 1]]
    for value in (0.5, 2.0**53, np.nan, np.inf):
        with pytest.raises(InaccurateError):
            as_int64(np.array([value]))


# ---- the finished product ----------------------------------------------------------------------------------------


def test_int16_does_not_wrap():
    A = np.random.default_rng(0).integers(-(2**15), 2**15, (300, 9)).astype(np.int16)
    check_bounds(*ranges(A, A))
    C = as_int64(A.T.astype(float) @ A.astype(float))
    assert C.tolist() == python_product(A, A)
    assert product_holds(A, A, C)


@settings(max_examples=1000, deadline=None)
@given(seed=st.integers(0, 10**9), bits=st.integers(1, 53), s=st.integers(1, 20))
def test_near_the_limit_exact_or_refused_never_wrong(seed, bits, s):
    rng = np.random.default_rng(seed)
    A = rng.integers(-(2**bits), 2**bits, (s, 3), endpoint=True)
    B = rng.integers(-(2 ** max(0, 54 - bits)), 2 ** max(0, 54 - bits), (s, 2), endpoint=True)
    try:
        check_bounds(*ranges(A, B))
    except DataError:
        return
    C = as_int64(A.T.astype(float) @ B.astype(float))
    assert C.tolist() == python_product(A, B)
    assert product_holds(A, B, C)


@pytest.mark.parametrize("dtype", ["i1", ">i8", "u2", "?"])
def test_a_single_unit_off_is_found(dtype):
    rng = np.random.default_rng(1)
    high = 2 if dtype == "?" else 100
    A, B = (rng.integers(0, high, (200, width)).astype(dtype) for width in (31, 23))
    C = A.T.astype(np.int64) @ B.astype(np.int64)
    assert product_holds(A, np.asfortranarray(B), np.asfortranarray(C))
    for change in (1, -1, 2**31, PRIMES[0]):
        wrong = C.copy()
        wrong[rng.integers(31), rng.integers(23)] += change
        assert not product_holds(A, B, wrong)


def test_large_elements_take_the_careful_path():
    rng = np.random.default_rng(2)
    A, B = rng.integers(-(2**52), 2**52, (5, 4)), rng.integers(-1, 2, (5, 3))
    C = np.array(python_product(A, B), dtype=np.int64)
    assert product_holds(A, B, C)
    C[0, 0] += 1
    assert not product_holds(A, B, C)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_empty(shape):
    s, r, t = shape
    A, B = np.ones((s, r), dtype=int), np.ones((s, t), dtype=int)
    assert check_bounds(*ranges(A, B)) >= 0
    assert product_holds(A, B, A.T @ B)
