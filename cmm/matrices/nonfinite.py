"""NaN and infinity: the lines of C they reach, without a full product.

One NaN in a coded chunk would ruin every block it is mixed into, so columns that are not finite take part in the coded
product as zeros (`ScaledMatrix`). Every element of C on the line of such a column is NaN or infinite, because a term
that is not finite times anything is not finite and stays so in a sum. Which of the two it is depends on those terms
only: NaN if there is a NaN among them, or infinities of both signs, else the infinity. So a line costs one pass over
the rows of the other matrix in which the column is infinite (none if it holds a NaN), never the product.

For complex matrices NumPy's own kind of non-finite result depends on the kernel; the lines are set to NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from cmm.core.task import Array, IntArray
from cmm.matrices.files import tiles
from cmm.matrices.stored import Matrix

_LINES = 1 << 22  # elements of C judged together
_BAND = 1 << 22  # bytes of the other matrix looked at together
_PLUS, _MINUS, _NAN = np.uint8(1), np.uint8(2), np.uint8(4)


@dataclass(frozen=True)
class Lines:
    """What was filled in.

    Attributes
    ----------
    rows, columns : numbers of rows and of columns of C that are not finite
    terms : sign products looked at: (infinite elements of A in columns without a NaN) times t, and of B times r
    """

    rows: int
    columns: int
    terms: int


def fill_nonfinite(C: Array, A: Matrix, B: Matrix, finite_a: Array, finite_b: Array) -> Lines:
    """Write the lines of C = A^T B that belong to columns with NaN or infinity; the rest of C is left alone.

    Parameters
    ----------
    C : (r, t), float or complex, computed with those columns taken as zero; written in place
    A : (s, r), B : (s, t), the matrices as they are: any numeric dtype, strides and byte order
    finite_a, finite_b : bool (r,) and (t,), the columns without NaN and infinity (`ColumnScan.finite`)
    """
    rows, cols = np.flatnonzero(~finite_a), np.flatnonzero(~finite_b)
    if C.dtype.kind == "c":
        C[rows] = complex(np.nan, np.nan)
        C[:, cols] = complex(np.nan, np.nan)
        return Lines(len(rows), len(cols), 0)
    with np.errstate(invalid="ignore"):
        terms = _fill_columns(C, A, B, cols)
        return Lines(len(rows), len(cols), terms + _fill_rows(C, A, B, rows, cols))


def _fill_columns(C: Array, A: Matrix, B: Matrix, cols: IntArray) -> int:
    terms = 0
    for part in _parts(cols, C.shape[0]):
        kinds, seen = _kinds(B, part, A)
        C[:, part] = _values(kinds).T
        terms += seen
    return terms


def _fill_rows(C: Array, A: Matrix, B: Matrix, rows: IntArray, cols: IntArray) -> int:
    """Rows after columns: where they cross, the terms of both decide."""
    terms = 0
    for part in _parts(rows, C.shape[1]):
        kinds, seen = _kinds(A, part, B)
        if len(cols):
            crossing = C[np.ix_(part, cols)]
            kinds[:, cols] |= np.where(np.isnan(crossing), _NAN, np.where(crossing > 0, _PLUS, _MINUS))
        C[part] = _values(kinds)
        terms += seen
    return terms


def _parts(lines: IntArray, length: int) -> Iterator[IntArray]:
    count = max(1, _LINES // max(1, length))
    for start in range(0, len(lines), count):
        yield lines[start : start + count]


def _values(kinds: Array) -> Array:
    return np.where(kinds == _PLUS, np.inf, np.where(kinds == _MINUS, -np.inf, np.nan))


def _kinds(X: Matrix, columns: IntArray, Y: Matrix) -> tuple[Array, int]:
    """For some columns of X, which kinds of non-finite terms X_ki Y_kj there are: bits by (column, j), and how many
    terms were looked at."""
    infinite, holds_nan = _infinities(X, columns)
    infinite.data[np.repeat(holds_nan, np.diff(infinite.indptr))] = 0  # NaN whatever else there is
    infinite.eliminate_zeros()
    kinds = np.zeros((len(columns), Y.shape[1]), dtype=np.uint8)
    kinds[holds_nan] = _NAN
    used = np.unique(infinite.indices)
    by_row = infinite.tocsc()
    height = max(1, _BAND // max(1, Y.shape[1] * 8))
    for start in range(0, len(used), height):
        rows = used[start : start + height]
        signs = np.nan_to_num(np.sign(Y[rows].astype(np.float64)))
        piece = by_row[:, rows].tocsr()
        net, count = piece @ signs, abs(piece) @ np.abs(signs)
        kinds |= np.where(count + net > 0, _PLUS, 0).astype(np.uint8)
        kinds |= np.where(count - net > 0, _MINUS, 0).astype(np.uint8)
        kinds |= np.where(abs(piece).sum(axis=1)[:, None] > count, _NAN, 0).astype(np.uint8)  # times 0 or NaN
    return kinds, infinite.nnz * Y.shape[1]


def _infinities(X: Matrix, columns: IntArray) -> tuple[sp.csr_array, Array]:
    """Signs of the infinite elements of some columns, (columns x rows of X) sparse, and which columns hold a NaN."""
    holds_nan = np.zeros(len(columns), dtype=bool)
    found: list[tuple[Array, Array, Array]] = []
    for rows, cols in tiles(X):
        chosen = np.flatnonzero((columns >= cols.start) & (columns < cols.stop))
        if not len(chosen) or X.dtype.kind not in "f":
            continue
        part = X[rows, cols][:, columns[chosen] - cols.start].astype(np.float64)
        holds_nan[chosen] |= np.isnan(part).any(axis=0)
        where, line = np.nonzero(np.isinf(part))
        found.append((chosen[line], where + rows.start, np.sign(part[where, line])))
    lines, places, signs = (np.concatenate(parts) for parts in zip(*found, strict=True)) if found else ([], [], [])
    return sp.csr_array((signs, (lines, places)), shape=(len(columns), X.shape[0]), dtype=np.float64), holds_nan
