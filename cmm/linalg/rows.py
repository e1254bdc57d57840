"""Sparse rows over the unknown products, and the targets wanted of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from cmm.core.grid import Grid
from cmm.core.task import Array, Assignment, Combination, IntArray


@dataclass(frozen=True, eq=False)
class CodedRow:
    """One row of the coefficient matrix M.

    Attributes
    ----------
    indices : unknown numbers, strictly increasing
    values : coefficients (float64 or complex128), same length
    factors : (a, b) when the row is the single Kronecker product a (x) b; lets the numeric phase work on whole rows
        of blocks instead of block by block
    """

    indices: IntArray
    values: Array
    factors: tuple[Combination, Combination] | None = None

    @property
    def singleton(self) -> bool:
        """Exactly one unknown: the result is that block times a number."""
        return len(self.indices) == 1


def rows_of(assignment: Assignment) -> tuple[CodedRow, ...]:
    """The rows of an assignment made of (a, b) pairs, one per output."""
    rows = []
    for q, pairs in enumerate(assignment.outputs):
        indices, values = assignment.coefficients(q)
        factors = (assignment.a[pairs[0][0]], assignment.b[pairs[0][1]]) if len(pairs) == 1 else None
        rows.append(CodedRow(indices, values, factors))
    return tuple(rows)


def stack(rows: list[CodedRow], columns: int) -> sp.csr_array:
    """CSR matrix of the rows (len(rows) x columns)."""
    lengths = np.fromiter((len(row.indices) for row in rows), dtype=np.intp, count=len(rows))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([row.indices for row in rows]) if rows else np.empty(0, np.intp)
    values = np.concatenate([row.values for row in rows]) if rows else np.empty(0)
    return sp.csr_array((values, indices, indptr), shape=(len(rows), columns))


@dataclass(frozen=True, eq=False)
class Targets:
    """The linear functionals wanted of the unknowns: T (targets x unknowns), or the identity (matrix is None)."""

    count: int
    matrix: sp.csr_array | None = None

    @classmethod
    def blocks(cls, grid: Grid) -> Targets:
        """Block C_ij = sum over the shared split k of A_ki^T B_kj, in the order i * n + j."""
        if grid.p == 1:
            return cls(grid.K)
        k, i, j = (axis.ravel() for axis in np.indices((grid.p, grid.m, grid.n)))
        columns = (k * grid.m + i) * grid.chunks_b + k * grid.n + j
        shape = (grid.K, grid.unknowns)
        return cls(grid.K, sp.csr_array((np.ones(len(columns)), (i * grid.n + j, columns)), shape=shape))

    @property
    def identity(self) -> bool:
        return self.matrix is None
