"""Columns of A and B brought to comparable size by powers of two, and C brought back.

Coding mixes chunks, so the error of a repaired block carries the size of every column it was mixed with. Column j of A
is therefore multiplied by 2^-e_j, which is exact, with e_j such that the scaled column has a 2-norm in [1/2, 1): the
2-norm and not the largest element, because the accuracy of C_ij is promised relative to the norms of its two columns.
C stays scaled until all of it is decoded and is then unscaled once, with the sum of both exponents: in two steps, the
first could underflow and lose digits.

Elements more than about 1e300 below the norm of their own column underflow in the scaled column (documented limit).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cmm.core.task import Array
from cmm.matrices.files import MatrixSource, column_block, tiles
from cmm.matrices.stored import Matrix

Exponents = npt.NDArray[np.int64]

_SPREAD = 1  # exponents this close are left alone: ordinary data then cost nothing
_PLAIN = {4: 30, 8: 250}  # by bytes of a real: up to here products and sums of products have room without scaling
_LARGEST = {4: 126, 8: 1022}  # 2^e and 2^-e are both normal numbers up to here
_SLAB = 1 << 18  # bytes of factors made at a time: they stay in the cache


@dataclass(frozen=True, eq=False)
class ColumnScan:
    """What one look at a matrix tells.

    Attributes
    ----------
    exponents : int64 (columns,), e_j: the scaled column is column j times 2^-e_j. All zero when no scaling is needed;
        zero for columns that are zero or not finite.
    finite : bool (columns,), neither NaN nor infinity in the column
    norms : float64 (columns,), 2-norms of the *scaled* columns; zero for columns that are not finite
    """

    exponents: Exponents
    finite: Array
    norms: Array

    @cached_property
    def scaled(self) -> bool:
        return bool(self.exponents.any())

    @cached_property
    def plain(self) -> bool:
        """Whether the scaled matrix is the matrix itself."""
        return not self.scaled and bool(self.finite.all())


@dataclass(frozen=True, eq=False)
class ScaledMatrix:
    """A matrix as the code sees it: scaled, converted, conjugated for op = H, columns that are not finite taken as
    zero. Blocks are made on demand, each with one copy."""

    source: MatrixSource
    dtype: np.dtype[Any]
    scan: ColumnScan
    conjugate: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    @property
    def exponents(self) -> Exponents:
        return self.scan.exponents

    @property
    def finite(self) -> Array:
        return self.scan.finite

    @property
    def norms(self) -> Array:
        """2-norms of the columns, float64; zero for columns that are not finite."""
        return self.scan.norms

    def view(self, rows: slice, cols: slice) -> Array | None:
        """Rows x columns where they lie in memory, if they are used as they are; else None."""
        array = self.source.array
        if not self.scan.plain or self.conjugate or not isinstance(array, np.ndarray) or array.dtype != self.dtype:
            return None
        return np.asarray(array)[rows, cols]

    def block(self, rows: slice, cols: slice, out: Array | None = None) -> Array:
        """Rows x columns as a C-contiguous block; with `out` (of this or a wider dtype), into its upper left corner,
        the rest becomes zero."""
        block = column_block(self.source.array, rows, cols, self.dtype, conjugate=self.conjugate, out=out)
        if self.scan.plain:
            return block
        width = len(range(*cols.indices(self.shape[1])))
        if not self.scan.finite[cols].all():
            block[:, :width][:, ~self.scan.finite[cols]] = 0
        if self.scan.scaled:
            apply(block[:, :width], self.scan.exponents[cols])
        return block


def look_at(source: MatrixSource, dtype: np.dtype[Any], op: str = "N", *, scale: bool = True) -> ScaledMatrix:
    """Scan a matrix and wrap it.

    Parameters
    ----------
    op : "H" for the A of A^H B; anything else takes the elements as they are
    scale : False leaves all columns as they are (exact integers)
    """
    found = scan(source.array, dtype)
    if not scale:
        norms = np.ldexp(found.norms, found.exponents)
        found = ColumnScan(np.zeros_like(found.exponents), found.finite, norms)
    return ScaledMatrix(source, dtype, found, op == "H" and dtype.kind == "c")


# ---- looking -----------------------------------------------------------------------------------------------------


def scan(array: Matrix, dtype: np.dtype[Any]) -> ColumnScan:
    """Look at every element once, by tiles (columns of extreme size or not finite: three times).

    Parameters
    ----------
    array : 2-D, any strides, byte order and numeric dtype
    dtype : the working dtype: float32, float64, complex64 or complex128
    """
    finite = np.ones(array.shape[1], dtype=bool)
    with np.errstate(all="ignore"):
        squares = _sums_of_squares(array, dtype)
        mantissas, exponents = np.frexp(np.sqrt(squares))
        exponents = exponents.astype(np.int64)
        hard = np.flatnonzero(~(np.isfinite(squares) & (squares >= _safe_square(dtype))))
        if len(hard):
            mantissas[hard], exponents[hard], finite[hard] = _extreme_norms(array, dtype, hard)
    if not _worth_scaling(exponents[mantissas != 0], dtype):
        return ColumnScan(np.zeros_like(exponents), finite, np.ldexp(mantissas, exponents))
    return ColumnScan(exponents, finite, mantissas)


def _real_bytes(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def _safe_square(dtype: np.dtype[Any]) -> float:
    """Sums of squares below this may have lost something to underflow."""
    return 2.0**-80 if _real_bytes(dtype) == 4 else 2.0**-900


def _worth_scaling(exponents: Exponents, dtype: np.dtype[Any]) -> bool:
    if not len(exponents):
        return False
    low, high = int(exponents.min()), int(exponents.max())
    return high - low > _SPREAD or max(-low, high) > _PLAIN[_real_bytes(dtype)]


def _sums_of_squares(array: Matrix, dtype: np.dtype[Any]) -> Array:
    """Sum of |x|^2 by column, float64; wrong (infinite, NaN or tiny) for columns of extreme size or not finite."""
    sums = np.zeros(array.shape[1])
    for rows, cols in tiles(array):
        part, flipped = _real_tile(array[rows, cols], dtype)
        if flipped:
            sums[cols] += np.einsum("ij,ij->i", part, part)
        else:
            found = np.einsum("ij,ij->j", part, part)
            sums[cols] += found if len(found) == cols.stop - cols.start else found.reshape(-1, 2).sum(axis=1)
    return sums


def _real_tile(tile: Array, dtype: np.dtype[Any]) -> tuple[Array, bool]:
    """A tile as native reals with a contiguous last axis, and whether it had to be transposed for that. Complex
    elements become two neighbours. Copied only where the tile is not like that already."""
    flipped = tile.shape[0] > 1 and abs(tile.strides[0]) < abs(tile.strides[1])
    part = tile.T if flipped else tile
    if part.dtype != dtype or part.strides[1] != part.itemsize:
        part = part.astype(dtype, order="C")
    return part.view(np.dtype(f"f{_real_bytes(dtype)}")), flipped


def _extreme_norms(array: Matrix, dtype: np.dtype[Any], columns: Array) -> tuple[Array, Exponents, Array]:
    """(mantissas, exponents, finite) of the 2-norms of some columns, safe from overflow and underflow."""
    largest = np.zeros(len(columns))
    for chosen, part in _column_tiles(array, dtype, columns):
        np.maximum.at(largest, chosen, np.abs(part).max(axis=(0, 2)))
    finite = np.isfinite(largest)
    shifts = np.frexp(np.where(finite, largest, 0))[1].astype(np.int64)
    sums = np.zeros(len(columns))
    for chosen, part in _column_tiles(array, dtype, columns[finite]):
        chosen = np.flatnonzero(finite)[chosen]
        sums[chosen] += (np.ldexp(part, -shifts[chosen][:, None]) ** 2).sum(axis=(0, 2))
    mantissas, exponents = np.frexp(np.sqrt(sums))
    return mantissas, np.where(sums > 0, shifts + exponents, 0), finite


def _column_tiles(array: Matrix, dtype: np.dtype[Any], columns: Array) -> Any:
    """(positions in `columns`, their elements in a tile as float64 of shape (rows, positions, 1 or 2))."""
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    for rows, cols in tiles(array):
        chosen = np.flatnonzero((columns >= cols.start) & (columns < cols.stop))
        if len(chosen):
            part = np.ascontiguousarray(array[rows, cols][:, columns[chosen] - cols.start], dtype=wide)
            yield chosen, part.view(np.float64).reshape(*part.shape, -1)


# ---- scaling and unscaling ---------------------------------------------------------------------------------------


def apply(block: Array, exponents: Exponents) -> None:
    """Multiply column j of a native block (rows, columns) by 2^-exponents[j], in place; exact but for underflow.

    Any strides; float32, float64, complex64 or complex128.
    """
    limit = _LARGEST[_real_bytes(block.dtype)]
    with np.errstate(over="ignore", under="ignore"):
        for part, powers in _reals(block, -exponents):
            if _reach(powers) <= limit:
                np.multiply(part, np.ldexp(np.ones((), part.dtype), powers), out=part)
            else:
                np.ldexp(part, powers, out=part)


def unscale(C: Array, exponents_a: Exponents, exponents_b: Exponents) -> None:
    """Multiply C_ij by 2^(exponents_a[i] + exponents_b[j]), in place, in one step; rounds only where the result is
    subnormal, overflows only where it does not fit.

    Parameters
    ----------
    C : (r, t), float32, float64, complex64 or complex128, any strides
    """
    if not C.size or not (exponents_a.any() or exponents_b.any()):
        return
    if C.flags.f_contiguous and not C.flags.c_contiguous:
        unscale(C.T, exponents_b, exponents_a)
        return
    height = max(1, _SLAB // (C.shape[1] * C.itemsize))
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, C.shape[0], height):
            for part, powers in _reals(C[start : start + height], exponents_b):
                _unscale_slab(part, exponents_a[start : start + height], powers)


def clear_zero_lines(C: Array, norms_a: Array, norms_b: Array) -> None:
    """Write zero where a column of A or of B is zero, in place: there decoding leaves the rounding of other columns,
    and an error relative to |A_i| |B_j| = 0 must be none.

    Parameters
    ----------
    C : (r, t); norms_a, norms_b : (r,) and (t,), `ScaledMatrix.norms`
    """
    C[norms_a == 0] = 0
    C[:, norms_b == 0] = 0


def _unscale_slab(part: Array, rows: Exponents, cols: Exponents) -> None:
    sums = max(int(rows.max() + cols.max()), -int(rows.min() + cols.min()))
    if max(sums, _reach(rows), _reach(cols)) <= _LARGEST[part.itemsize]:
        one = np.ones((), part.dtype)
        np.multiply(part, np.multiply.outer(np.ldexp(one, rows), np.ldexp(one, cols)), out=part)
    else:
        np.ldexp(part, np.add.outer(rows, cols), out=part)


def _reals(block: Array, exponents: Exponents) -> list[tuple[Array, Exponents]]:
    """Real views of a block with the exponents of their columns: complex elements are two neighbours where the rows are
    contiguous, two strided views elsewhere."""
    if block.dtype.kind != "c":
        return [(block, exponents)]
    if block.strides[1] == block.itemsize:
        return [(block.view(np.dtype(f"f{block.itemsize // 2}")), np.repeat(exponents, 2))]
    return [(block.real, exponents), (block.imag, exponents)]


def _reach(exponents: Exponents) -> int:
    return int(np.abs(exponents).max(initial=0))
