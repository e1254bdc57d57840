"""Coded chunks equal the combinations they stand for, buffers are reused, and work is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cmm.core.task import Array, Combination
from cmm.runtime.encoder import Encoder
from cmm.runtime.kernel import SLICE_ROWS_LEAST, products, slice_rows

ROWS, COLS, CHUNKS = 700, 9, 6


@pytest.fixture
def source() -> Array:
    return np.random.default_rng(0).standard_normal((CHUNKS, ROWS, COLS))


def make(source: Array, dtype: Any = np.float64, capacity: int = 2) -> Encoder:
    def read(chunk: int, start: int, stop: int, out: Array) -> None:
        out[: stop - start] = source[chunk, start:stop]

    return Encoder(read, (ROWS, COLS), np.dtype(dtype), capacity)


def encoded(encoder: Encoder, combination: Combination) -> Array:
    operand = encoder.operand(combination)
    while not operand.step():
        pass
    return operand.buffer.copy()


def test_combinations(source: Array) -> None:
    encoder = make(source)
    for indices, values in ([2], [1.0]), ([4], [-0.7]), ([0, 3, 5], [1.0, -1.25, 0.5]):
        found = encoded(encoder, Combination.of(indices, values))
        exact = sum(v * source[i] for i, v in zip(indices, values, strict=True))
        np.testing.assert_allclose(found, exact, rtol=0, atol=4 * np.finfo(float).eps * np.abs(exact).max())
    assert encoder.chunks_read == 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_chunk_at_all_is_zero(source: Array, dtype: Any) -> None:
    encoder = make(source, dtype, capacity=1)
    encoded(encoder, Combination.of([1, 2], [1.0, 2.0]))  # leaves its numbers in the buffer
    assert not encoded(encoder, Combination.of([3], [0.0])).any()


def test_float32_accumulates_in_double(source: Array) -> None:
    """Large chunks that cancel: in single precision nothing would be left of the third."""
    source[0] *= 1e6
    source[1] = -source[0]
    found = encoded(make(source, np.float32), Combination.of([0, 1, 2], [1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(found, source[2].astype(np.float32))


def test_complex_coefficients(source: Array) -> None:
    found = encoded(make(source, np.complex128), Combination.of([1, 2], [1j, 1 - 1j]))
    np.testing.assert_allclose(found, 1j * source[1] + (1 - 1j) * source[2], rtol=1e-15)


def test_buffers_are_reused_but_never_under_a_pending_send(source: Array) -> None:
    encoder = make(source, capacity=2)
    first = encoder.operand(Combination.unit(0))
    first.users += 1
    assert encoder.operand(Combination.unit(0)) is first
    for chunk in range(1, CHUNKS):
        other = encoder.operand(Combination.unit(chunk))
        assert not np.shares_memory(first.buffer, other.buffer)
    assert encoder.allocated == 2
    first.users -= 1
    second = encoder.operand(Combination.unit(1))
    second.users += 1
    third = encoder.operand(Combination.unit(2))
    third.users += 1
    fourth = encoder.operand(Combination.unit(3))  # both buffers wait to be sent: a third one is made
    assert encoder.allocated == 3
    assert not any(np.shares_memory(fourth.buffer, operand.buffer) for operand in (second, third))


@pytest.mark.parametrize("shape", [(0, 3, 2), (5, 0, 3), (5, 3, 0), (40, 700, 30)])
def test_kernel_sums_of_products(shape: tuple[int, int, int]) -> None:
    rows, left, right = shape
    rng = np.random.default_rng(1)
    a = [rng.standard_normal((rows, left)) for _ in range(2)]
    b = [rng.standard_normal((rows, right)) for _ in range(3)]
    out = [np.full((left, right), np.nan) for _ in range(2)]
    program = np.array([[0, 0, 0], [1, 1, 2], [0, 1, 1]])
    slices = sum(1 for _ in products(a, b, program, out))
    np.testing.assert_allclose(out[0], a[0].T @ b[0] + a[1].T @ b[1], atol=1e-13 * max(rows, 1))
    np.testing.assert_allclose(out[1], a[1].T @ b[2], atol=1e-13 * max(rows, 1))
    assert slices == 3 * max(1, -(-left // slice_rows(rows, right)))


def test_slices_shrink_with_the_work() -> None:
    assert slice_rows(10**6, 10**4) == SLICE_ROWS_LEAST
    assert slice_rows(1000, 1000) == 1000


def test_a_task_may_have_more_operands_than_are_kept() -> None:
    """What `use` returned is not overwritten by the next operands of the same task."""
    parts = np.random.default_rng(3).standard_normal((6, 7, 3))

    def read(chunk: int, start: int, stop: int, out: Array) -> None:
        out[...] = parts[chunk, start:stop]

    encoder = Encoder(read, (7, 3), np.dtype(np.float64), capacity=2)
    operands = [encoder.use(Combination.unit(chunk)) for chunk in range(6)]
    for operand in operands:
        while not operand.step():
            pass
        assert operand.users == 1
    for chunk, operand in enumerate(operands):
        assert (operand.buffer == parts[chunk]).all()
