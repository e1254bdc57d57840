"""Powers of two: exact, once, and only where they are needed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.matrices.files import as_source
from cmm.matrices.scaling import ColumnScan, apply, clear_zero_lines, look_at, scan, unscale

DTYPES = [np.dtype(name) for name in ("f4", "f8", "c8", "c16")]
REACH = {4: 120, 8: 1000}


def matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    array = rng.normal(size=shape)
    return (array + 1j * rng.normal(size=shape) if dtype.kind == "c" else array).astype(dtype)


def real_bytes(dtype: np.dtype) -> int:
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def exact_norms(array: np.ndarray) -> list[tuple[float, int]]:
    """2-norm of every column as (mantissa, exponent), by rational arithmetic."""
    result = []
    for column in array.T:
        reals = np.concatenate([column.real, column.imag]).astype(float)
        square = sum(Fraction(x) ** 2 for x in reals)
        shift = 0
        while square and not Fraction(1, 4) <= square < 1:
            shift += 1 if square >= 1 else -1
            square = square / 4 if square >= 1 else square * 4
        result.append((float(square) ** 0.5, shift))
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["C", "F", "strided", "swapped"])
def test_scan_of_columns_of_every_size(dtype, layout):
    rng = np.random.default_rng(3)
    array = matrix(rng, (23, 11), dtype)
    with np.errstate(under="ignore"):
        apply(array, rng.integers(-REACH[real_bytes(dtype)], REACH[real_bytes(dtype)], 11))
    array[:, 4] = 0
    array[:-1, 5] = 0
    array[-1, 6] = np.finfo(dtype).max
    array[:, 7] = np.finfo(dtype).smallest_subnormal
    view = {"C": array, "F": np.asfortranarray(array), "strided": np.repeat(array, 3, 1)[:, ::3],
            "swapped": array.astype(dtype.newbyteorder())}[layout]  # fmt: skip
    found = scan(view, dtype)
    assert found.finite.all()
    assert found.norms[4] == 0
    assert found.exponents[4] == 0
    for j, (mantissa, exponent) in enumerate(exact_norms(array)):
        if j != 4:
            value = Fraction(float(found.norms[j])) * Fraction(2) ** int(found.exponents[j])
            assert abs(float(value / (Fraction(mantissa) * Fraction(2) ** exponent)) - 1) < 1e-5
            assert 0.5 <= found.norms[j] <= 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ordinary_columns_are_left_alone(dtype):
    array = matrix(np.random.default_rng(0), (4096, 40), dtype)
    found = scan(array, dtype)
    assert not found.scaled
    assert np.allclose(found.norms, np.linalg.norm(array, axis=0), rtol=1e-5)
    assert scan(array * dtype.type(2.0**20), dtype).scaled is False
    assert scan(array * dtype.type(2.0 ** (REACH[real_bytes(dtype)] // 3)), dtype).scaled  # would overflow in products


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_nonfinite_columns_are_found_and_taken_out(dtype, order):
    array = np.asarray(matrix(np.random.default_rng(0), (50, 9), dtype), order=order)
    array[:, 2] = np.finfo(dtype).max  # its square is infinite, the column is not
    assert scan(array, dtype).finite.all()
    array[7, 5] = np.nan
    array[8, 6] = -np.inf
    if dtype.kind == "c":
        array[3, 8] = complex(0, np.inf)
    found = scan(array, dtype)
    assert np.flatnonzero(~found.finite).tolist() == ([5, 6, 8] if dtype.kind == "c" else [5, 6])
    assert not found.norms[~found.finite].any()
    assert not found.exponents[~found.finite].any()
    block = look_at(as_source(array, "--a"), dtype).block(slice(0, 50), slice(4, 7))
    assert np.isfinite(block).all()
    assert not block[:, 1:].any()
    assert block[:, 0].all()


@pytest.mark.parametrize("dtype", [np.dtype(k) for k in ("i2", "u8", "?", "f2")], ids=str)
def test_scan_converts_other_numbers(dtype):
    array = np.random.default_rng(0).integers(0, 2, (30, 5)).astype(dtype)
    found = scan(array, np.dtype(float))
    norms = np.ldexp(found.norms, found.exponents)
    assert np.allclose(norms, np.sqrt((array.astype(float) ** 2).sum(axis=0)))


def test_integers_are_left_as_they_are():
    array = np.array([[1, 4000], [0, 3]], dtype=np.int16)
    source = as_source(array, "--a")
    assert look_at(source, np.dtype(float)).scan.scaled
    whole = look_at(source, np.dtype(float), scale=False)
    assert np.array_equal(whole.block(slice(0, 2), slice(0, 2)), array)
    assert np.allclose(whole.scan.norms, [1, np.hypot(4000, 3)])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (1, 1)])
def test_scan_of_almost_nothing(shape):
    found = scan(np.zeros(shape), np.dtype(float))
    assert len(found.norms) == shape[1]
    assert not found.scaled
    assert found.finite.all()


@settings(max_examples=80, deadline=None)
@given(dtype=st.sampled_from(DTYPES), seed=st.integers(0, 999), wide=st.booleans(), layout=st.sampled_from("CFS"))
def test_apply_and_unscale_are_one_exact_multiplication(dtype, seed, wide, layout):
    rng = np.random.default_rng(seed)
    reach = REACH[real_bytes(dtype)] * (2 if wide else 1) // 2
    ea, eb = rng.integers(-reach, reach, 7), rng.integers(-reach, reach, 5)
    array = matrix(rng, (7, 5), dtype)
    array = np.repeat(array, 2, 1)[:, ::2] if layout == "S" else np.asarray(array, order=layout)
    copy = array.copy()
    unscale(array, ea, eb)
    total = np.add.outer(ea, eb)
    with np.errstate(over="ignore", under="ignore"):
        assert np.array_equal(array.real, np.ldexp(copy.real, total))
        assert np.array_equal(array.imag, np.ldexp(copy.imag, total) if dtype.kind == "c" else array.imag)
        expected = np.ldexp(copy.real, -eb)
    apply(copy, eb)
    assert np.array_equal(copy.real, expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_lines_of_zero_columns_are_zero(order):
    C = np.asarray(np.full((3, 4), 1e-17), order=order)
    clear_zero_lines(C, np.array([1.0, 0.0, 2.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert np.array_equal(C != 0, np.outer([1, 0, 1], [0, 1, 1, 0]))


def test_unscale_in_one_step_keeps_digits_that_two_steps_lose():
    C = np.array([[1.0 + 2.0**-40]])
    unscale(C, np.array([-1070]), np.array([1070]))
    assert C[0, 0] == 1.0 + 2.0**-40
    C = np.array([[2.0**-1000, 2.0**900]])
    unscale(C, np.array([1000]), np.array([900, -1000]))
    assert C[0].tolist() == [2.0**900, 2.0**900]


def test_a_scaled_product_is_the_product():
    """A^T B from scaled columns, unscaled, against the plain product where that neither over- nor underflows."""
    rng = np.random.default_rng(5)
    A, B = rng.normal(size=(60, 8)), rng.normal(size=(60, 6))
    ea, eb = rng.integers(-400, 400, 8), rng.integers(-90, 90, 6)
    apply(A, -ea)
    apply(B, -eb)
    a, b = (look_at(as_source(X, name), X.dtype) for X, name in ((A, "--a"), (B, "--b")))
    assert a.scan.scaled
    assert b.scan.scaled
    assert isinstance(a.scan, ColumnScan)
    C = a.block(slice(0, 60), slice(0, 8)).T @ b.block(slice(0, 60), slice(0, 6))
    unscale(C, a.scan.exponents, b.scan.exponents)
    limit = 60 * np.finfo(float).eps * np.multiply.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
    assert (np.abs(C - A.T @ B) <= limit).all()
