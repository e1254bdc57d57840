"""Sparse matrices: kept by columns as they are, made dense block by block while chunks are encoded.

A chunk of columns is looked at in many bands of rows, which a matrix stored by columns (CSC) gives slowly. The chunks
in use are therefore kept by rows (CSR) as well, as many as about one more copy of the matrix takes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmm.core.errors import DataError
from cmm.core.task import Array
from cmm.matrices.stored import TALLEST, Matrix, Stored

POINTERS_KEPT = 64  # chunks whose row pointers fit into the cache, whatever the matrix holds


class SparseMatrix(Stored):
    """A sparse matrix seen as a dense one.

    Parameters
    ----------
    matrix : CSC in canonical form (indices sorted, none twice); used, not copied
    """

    def __init__(self, matrix: sp.csc_array) -> None:
        super().__init__(matrix.shape, matrix.dtype)
        self.matrix = matrix
        self._strips: OrderedDict[tuple[int, int], sp.csr_array] = OrderedDict()
        self._kept = 0
        self._limit = sparse_bytes(matrix) + POINTERS_KEPT * 4 * (self.shape[0] + 1)

    @property
    def memory(self) -> int:
        return sparse_bytes(self.matrix) + self._limit

    def tile(self, limit: int) -> tuple[int, int, bool]:
        height = max(1, min(self.shape[0], TALLEST))
        return height, max(1, min(self.shape[1], limit // (self.itemsize * height))), True

    def read(self, rows: slice, cols: slice) -> Array:
        out = np.zeros((rows.stop - rows.start, cols.stop - cols.start), self.dtype)
        if not out.size:
            return out
        if len(out) == self.shape[0] or out.shape[1] == 1:
            self._fill_columns(out, rows, cols)
        else:
            strip = self._strip(cols.start, cols.stop)
            first, last = strip.indptr[rows.start], strip.indptr[rows.stop]
            lines = np.repeat(np.arange(len(out)), np.diff(strip.indptr[rows.start : rows.stop + 1]))
            out[lines, strip.indices[first:last]] = strip.data[first:last]
        return out

    def _fill_columns(self, out: Array, rows: slice, cols: slice) -> None:
        """Whole columns, or a part of one."""
        pointers = self.matrix.indptr
        first, last = pointers[cols.start], pointers[cols.stop]
        lines = self.matrix.indices[first:last]
        columns = np.repeat(np.arange(out.shape[1]), np.diff(pointers[cols.start : cols.stop + 1]))
        low, high = (0, len(lines)) if len(out) == self.shape[0] else np.searchsorted(lines, (rows.start, rows.stop))
        out[lines[low:high] - rows.start, columns[low:high]] = self.matrix.data[first:last][low:high]

    def _strip(self, start: int, stop: int) -> sp.csr_array:
        key = (start, stop)
        if key in self._strips:
            self._strips.move_to_end(key)
            return self._strips[key]
        strip = self.matrix[:, start:stop].tocsr()
        self._kept += sparse_bytes(strip)
        while self._strips and self._kept > self._limit:
            self._kept -= sparse_bytes(self._strips.popitem(last=False)[1])
        self._strips[key] = strip
        return strip


def sparse_bytes(matrix: Any) -> int:
    """Bytes of a CSC or CSR matrix."""
    return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)


def sparse_memory(nnz: int, shape: tuple[int, int], itemsize: int) -> int:
    """Bytes that a SparseMatrix of so many stored elements will keep (`SparseMatrix.memory`), at most."""
    width = 4 if max(nnz, *shape) < 1 << 31 else 8
    return 2 * (nnz * (itemsize + width) + (shape[1] + 1) * width) + POINTERS_KEPT * 4 * (shape[0] + 1)


def dense_pays(nnz: int, shape: tuple[int, int], itemsize: int) -> bool:
    """Whether the dense matrix takes less memory than the sparse one."""
    return shape[0] * shape[1] * itemsize <= sparse_memory(nnz, shape, itemsize)


def from_scipy(matrix: Any, argument: str, name: str = "") -> Matrix:
    """Wrap any SciPy sparse matrix or array; elements given twice add up, as in SciPy. Dense where that is smaller.

    Raises
    ------
    DataError : not two-dimensional, indices outside the shape, or sums of integers that wrap around
    """
    if matrix.ndim != 2:
        raise DataError(argument, "must have two dimensions when sparse", f"{name or 'shape'} {matrix.shape}",
                        "Reshape it.")  # fmt: skip
    if hasattr(matrix, "check_format"):  # indices out of range would be read from and written to
        try:
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise DataError(argument, "must be a valid sparse matrix", f"{name} {error}".strip(),
                            "Write it again.") from None  # fmt: skip
    columns = sp.csc_array(matrix)
    if not columns.has_canonical_format:
        columns = columns.copy()
        columns.sum_duplicates()
    _check_sums(matrix, columns, argument, name)
    if dense_pays(columns.nnz, columns.shape, columns.dtype.itemsize):
        return columns.toarray()
    return SparseMatrix(columns)


def _check_sums(given: Any, columns: sp.csc_array, argument: str, name: str) -> None:
    """Integers given twice for one place must not have wrapped around when they were added."""
    if columns.dtype.kind not in "iu" or given.nnz == columns.nnz:
        return
    sums = sp.csc_array(given.astype(np.float64))
    sums.sum_duplicates()
    if not np.allclose(sums.data, columns.data.astype(np.float64), rtol=1e-9, atol=0):
        raise DataError(argument, f"elements given twice must add up within {columns.dtype}", name or "a larger sum",
                        "Add them up before.")  # fmt: skip
