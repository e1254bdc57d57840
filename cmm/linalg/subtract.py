"""Subtracting known blocks from coded results: most of the numeric work when few blocks are missing.

Coded rows that are Kronecker products a (x) b share their a's in rounds of groups. All distinct a's times C are then
one GEMM with C seen as a matrix of rows of blocks, without a copy of C, and the b's are applied to that much smaller
product:

    result of (a, b)  -=  sum_j b_j (sum_i a_i C_ij)          C zero where blocks are missing

No loop over blocks. Rows without this structure, or with few known blocks, use a sparse product instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from cmm.core.grid import Partition
from cmm.core.task import Array, IntArray
from cmm.linalg.plan import Plan
from cmm.linalg.slots import Slots, runs, take

FLOPS_PER_AXPY = 12
"""A GEMM does about this many times the operations of a sparse product (memory-bound) in the same time."""

MIXED_BYTES = 2 << 20
"""Memory for all a's times a part of C and what comes of it: it should stay in cache until the b's are applied."""


class Subtraction:
    """results -= (known coefficients) (known blocks), slice by slice; the missing slots of C must be zero there.

    Attributes
    ----------
    fast : whether the GEMM form is used
    workspace : elements needed per element of a block
    """

    def __init__(self, plan: Plan, partition: Partition, C: Array, slots: list[Slots]) -> None:
        self._partition, self._slots = partition, slots
        complex_data = slots[0].view.dtype.kind == "c"
        r = partition.bounds_r
        self._row_runs = [(i0, i1, C[r[i0] : r[i1]].reshape(i1 - i0, -1, partition.t)) for i0, i1 in runs(r)]
        self._column_runs = runs(partition.bounds_t)
        self._wide = np.dtype(np.complex128 if complex_data else np.float64)
        self._known = plan.known_coefficients
        self.fast = False
        if self._known.nnz and all(row.factors is not None for row in plan.rows):
            self._factor(plan)
        if not self.fast:
            self._used: IntArray = np.unique(self._known.indices)
            self._sparse: sp.csr_array = self._known[:, self._used]
            self.workspace = len(self._used)

    def _factor(self, plan: Plan) -> None:
        """Distinct a's (distinct, m), all b's (sources, n) sorted by their a; use them when that is faster."""
        grid = self._partition.grid
        factors = [row.factors for row in plan.rows if row.factors is not None]
        index: dict[bytes, int] = {}
        owner = np.array([index.setdefault(a.key, len(index)) for a, _ in factors], dtype=np.intp)
        gemm = len(index) * (grid.K + grid.n) + len(factors) * grid.n
        if gemm >= FLOPS_PER_AXPY * self._known.nnz:
            return
        self.fast = True
        self._order = np.argsort(owner, kind="stable")
        self._bounds = np.searchsorted(owner[self._order], np.arange(len(index) + 1)).tolist()
        firsts = self._order[self._bounds[:-1]]
        self._a = _dense([(factors[k][0].indices, factors[k][0].values) for k in firsts], grid.m)
        self._b = _dense([(factors[k][1].indices, factors[k][1].values) for k in self._order], grid.n)
        converted = grid.K if self._slots[0].view.dtype != self._wide else 0
        per_element = len(self._a) * grid.n + len(factors) + converted
        self._best = max(1, MIXED_BYTES // (self._wide.itemsize * per_element))
        self.workspace = len(factors)

    def apply(self, rows: slice, cols: slice, results: Array) -> Array:
        """results (sources, rows, columns) minus the known part of that slice; in place where the dtype allows it.

        Real coefficients act on real and imaginary parts of complex data alike, so those count as twice the columns.
        """
        if not self._known.nnz:
            return results
        if not self.fast:
            return self._apply_sparse(rows, cols, results)
        if np.iscomplexobj(self._a) or np.iscomplexobj(self._b):
            results = results.astype(np.complex128, copy=False)
            self._subtract_products(rows, cols, results, pairs=1)
        elif self._wide.kind == "c":
            self._subtract_products(rows, cols, results.view(np.float64), pairs=2)
        else:
            self._subtract_products(rows, cols, results, pairs=1)
        return results

    def _apply_sparse(self, rows: slice, cols: slice, results: Array) -> Array:
        known = np.zeros((len(self._used), *results.shape[1:]), dtype=self._wide)
        take(self._slots, self._partition.grid.n, np.arange(len(self._used)), self._used, rows, cols, known)
        update: Array = (self._sparse @ known.reshape(len(known), -1)).reshape(results.shape)
        if np.iscomplexobj(update) and not np.iscomplexobj(results):
            return results - update
        results -= update
        return results

    def _subtract_products(self, rows: slice, cols: slice, results: Array, pairs: int) -> None:
        """results (sources, rows, pairs * columns); pairs = 2: complex data as pairs of real numbers."""
        across = min(self._best, cols.stop - cols.start)
        down = max(1, self._best // across)
        for row in range(rows.start, rows.stop, down):
            for col in range(cols.start, cols.stop, across):
                some = slice(row, min(rows.stop, row + down)), slice(col, min(cols.stop, col + across))
                r0, r1, c0, c1 = (x - y for part, all_ in zip(some, (rows, cols), strict=True)
                                  for x, y in ((part.start, all_.start), (part.stop, all_.start)))  # fmt: skip
                self._subtract_part(*some, results[:, r0:r1, pairs * c0 : pairs * c1], pairs)

    def _subtract_part(self, rows: slice, cols: slice, results: Array, pairs: int) -> None:
        for j0, j1, mixed in self._mixed(rows, cols, pairs):
            width = mixed.shape[3]
            kind = np.result_type(self._b, mixed)
            update = np.empty((rows.stop - rows.start, len(self._b), width), dtype=kind)
            for k, (low, high) in enumerate(zip(self._bounds[:-1], self._bounds[1:], strict=True)):
                # (of this a, n) times, for each row, (n, columns)
                np.matmul(self._b[low:high, j0:j1], mixed[k], out=update[:, low:high])
            results[self._order, :, :width] -= update.transpose(1, 0, 2)

    def _mixed(self, rows: slice, cols: slice, pairs: int) -> list[tuple[int, int, Array]]:
        """All a's times C: for each width of column chunk (j0, j1, array (a's, rows, j1 - j0, columns))."""
        if cols.stop - cols.start == self._partition.block_cols:
            return self._mixed_rows(rows, pairs)
        sums: dict[tuple[int, int], Array] = {}
        for slots in self._slots:
            width = min(cols.stop, slots.view.shape[3]) - cols.start
            if slots.view.shape[1] < rows.stop or width <= 0:
                continue
            part = slots.view[:, rows, :, cols.start : cols.start + width]
            shape = (len(self._a), rows.stop - rows.start, slots.j1 - slots.j0, width * pairs)
            product = _mix(self._a[:, slots.i0 : slots.i1], part, self._wide, pairs).reshape(shape)
            key = (slots.j0, slots.j1)
            sums[key] = sums[key] + product if key in sums else product
        return [(j0, j1, mixed) for (j0, j1), mixed in sums.items()]

    def _mixed_rows(self, rows: slice, pairs: int) -> list[tuple[int, int, Array]]:
        """The same for whole rows of C: one GEMM for each height of row chunk, and no copy of C."""
        total: Array | None = None
        for i0, i1, view in self._row_runs:
            if rows.stop <= view.shape[1]:
                product = _mix(self._a[:, i0:i1], view[:, rows], self._wide, pairs)
                total = product if total is None else total + product
        assert total is not None, "some row chunk has these rows"
        total = total.reshape(len(self._a), rows.stop - rows.start, -1)
        bounds = self._partition.bounds_t
        parts = []
        for j0, j1 in self._column_runs:
            columns = total[:, :, pairs * bounds[j0] : pairs * bounds[j1]]
            parts.append((j0, j1, columns.reshape(*columns.shape[:2], j1 - j0, -1)))
        return parts


def _mix(a: Array, part: Array, wide: np.dtype[Any], pairs: int) -> Array:
    """a (distinct, i) times part (i, rows, ...), flattened: no copy where part's rows lie together in C."""
    flat = part.astype(wide, copy=False).reshape(len(part), -1)  # a view when all columns of C are taken
    if flat.strides[-1] != flat.itemsize:  # single columns
        flat = np.ascontiguousarray(flat)
    if pairs == 2:
        flat = flat.view(np.float64)
    if np.iscomplexobj(a) and not np.iscomplexobj(flat):
        both = np.concatenate([a.real, a.imag]) @ flat
        return np.asarray(both[: len(a)] + 1j * both[len(a) :])
    product: Array = a @ flat
    return product


def _dense(vectors: list[tuple[IntArray, Array]], columns: int) -> Array:
    dtype: Any = np.result_type(np.float64, *(values.dtype for _, values in vectors))
    out = np.zeros((len(vectors), columns), dtype=dtype)
    for row, (indices, values) in zip(out, vectors, strict=True):
        row[indices] = values
    return out
