"""The worker's kernel: output rows from coded operands, in slices between which the caller can listen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cmm.core.task import Array

SLICE_FLOPS = 2e9  # about 40 ms at 50 Gflop/s: long enough for BLAS to be efficient, short enough to hear a stop
SLICE_ROWS_LEAST = 64


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
        for start in range(0, max(target.shape[0], 1), step):
            part = target[start : start + step]
            with np.errstate(all="ignore"):
                if q in seen:
                    part += left[:, start : start + step].T @ right
                else:
                    np.matmul(left[:, start : start + step].T, right, out=part)
            yield
        seen.add(q)
