"""The worker's kernel: output rows from coded operands, in slices between which the caller can listen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cmm.core.task import Array

SLICE_FLOPS = 2e9  # about 40 ms at 50 Gflop/s: long enough for BLAS to be efficient, short enough to hear a stop
SLICE_ROWS_LEAST = 64
SPARSE = 0.02  # share of elements that are not zero up to which sparse products are faster, conversion included
SPARSE_FLOPS = 1e9  # of the dense product: below, loading SciPy would cost more than is saved
SAMPLED_ROWS = 64  # looked at before all elements are counted

Multiply = Callable[[int, int], Array]


def slice_rows(rows: int, cols: int) -> int:
    """Rows of the result per slice for operands with `rows` rows and a right side with `cols` columns."""
    return max(SLICE_ROWS_LEAST, int(SLICE_FLOPS // max(1, 2 * rows * cols)))


def products(a: Sequence[Array], b: Sequence[Array], program: Array, out: Sequence[Array]) -> Iterator[None]:
    """Compute out[q] = sum over the program's pairs (q, x, y) of a[x]^T b[y]; yields after every slice.

    Parameters
    ----------
    a : operands (rows x cols_a); b : operands (rows x cols_b), one dtype
    program : int64 (pairs x 3), triples (output, index into a, index into b)
    out : one (cols_a x cols_b) array per output, overwritten
    """
    rows, cols = b[0].shape
    step = slice_rows(rows, cols)
    seen: set[int] = set()
    for q, x, y in program.tolist():
        target, left, right = out[q], a[x], b[y]
        multiply = sparse_product(left, right)
        for start in range(0, max(target.shape[0], 1), step):
            part = target[start : start + step]
            with np.errstate(all="ignore"):
                if multiply is not None:
                    np.add(part if q in seen else 0, multiply(start, start + len(part)), out=part)
                elif q in seen:
                    part += left[:, start : start + step].T @ right
                else:
                    np.matmul(left[:, start : start + step].T, right, out=part)
            yield
        seen.add(q)


def sparse_product(left: Array, right: Array) -> Multiply | None:
    """Rows start ... stop of left^T right, when one of the two is sparse enough to pay; None for BLAS."""
    if 2.0 * left.size * right.shape[1] < SPARSE_FLOPS:
        return None
    empty = nearly_empty(left)
    if not empty and not nearly_empty(right):
        return None
    from cmm.runtime.sparse_kernel import multiply, multiply_right, transposed  # SciPy is loaded only for this

    compressed = transposed(left if empty else right)
    if empty:
        return lambda start, stop: multiply(compressed, right, start, stop)
    return lambda start, stop: multiply_right(left[:, start:stop], compressed)


def nearly_empty(operand: Array) -> bool:
    """Whether at most SPARSE of the elements are not zero; a sample of rows settles it for dense operands."""
    sample = operand[:: max(1, len(operand) // SAMPLED_ROWS)]
    return all(np.count_nonzero(part) <= SPARSE * part.size for part in (sample, operand))
