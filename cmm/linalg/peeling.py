"""Does peeling decode? From supports alone, for Monte Carlo over many sets of results.

Peeling reaches the same set of symbols in any order, so no heap is needed: every round solves all rows with one
unknown and all lines with few enough at once, on arrays that shrink as symbols become known.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from cmm.core.task import Array, IntArray


def peel(matrix: sp.csr_array, shape: tuple[int, int] | None = None, checks: tuple[int, int] = (0, 0)) -> Array:
    """Symbols that peeling, alternated with the lines of a product code, leaves unknown: (symbols,) bool.

    Parameters
    ----------
    matrix : CSR (N × symbols); only its pattern is used
    shape : (m̃, ñ) of the array of symbols, row-major, when there is an outer code
    checks : (m̃ − m, ñ − n): a column (row) of the array with at most so many unknowns is solved (MDS)
    """
    unknown = np.ones(matrix.shape[1], dtype=bool)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    columns = matrix.indices.astype(np.intp)
    while True:
        found, rows, columns = _row_round(unknown, rows, columns, matrix.shape[0])
        if found or (shape is not None and _line_round(unknown.reshape(shape), checks)):
            continue
        return unknown


def _row_round(unknown: Array, rows: IntArray, columns: IntArray, count: int) -> tuple[bool, IntArray, IntArray]:
    """Drop known entries, then solve every row with one unknown left."""
    alive = unknown[columns]
    rows, columns = rows[alive], columns[alive]
    if not len(rows):
        return False, rows, columns
    single = np.bincount(rows, minlength=count)[rows] == 1
    unknown[columns[single]] = False
    return bool(single.any()), rows, columns


def _line_round(unknown: Array, checks: tuple[int, int]) -> bool:
    """Solve every row of the array with at most checks[1] unknowns, and every column with at most checks[0]."""
    before = np.count_nonzero(unknown)
    for axis, allowed in ((1, checks[1]), (0, checks[0])):
        solvable = unknown.sum(axis=axis) <= allowed
        if axis == 1:
            unknown[solvable] = False
        else:
            unknown[:, solvable] = False
    return bool(np.count_nonzero(unknown) < before)
