"""The court of appeal of the random check: some rows of a result computed again, element by element.

`freivalds` uses limits that fit ordinary rounding and are therefore sharp. Honest results can exceed them (constant
columns, whose rounding errors all have one sign; a few columns much more correlated than the rest). Before a result is
called wrong, its worst rows are recomputed here in double precision and compared with a bound that no rounding of a
sum can exceed, so that an honest result is never rejected.

Bound. Adding up terms z_1, z_2, ... in order makes an error of at most u (|p_1| + |p_2| + ...), p_k the partial sums;
other orders (vector lanes, blocks) have other partial sums, allowed for by (8 + sqrt(s)) u sum |z_k|. Rounding of
coded chunks: u per element and coded side, (1 + d) u for d chunks in double precision (in single precision they are
added up in double and rounded once).
Source: Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cmm.core.grid import Partition
from cmm.core.task import Array, Assignment, Combination, IntArray

_BAND = 1 << 20  # bytes of a chunk looked at together: they stay in the cache


class Operand(Protocol):
    """A or B as the code sees it (scaled, converted, conjugated): blocks on demand, never the whole."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def norms(self) -> Array: ...
    def view(self, rows: slice, cols: slice) -> Array | None: ...
    def block(self, rows: slice, cols: slice, out: Array | None = None) -> Array: ...


@dataclass(frozen=True, eq=False)
class Recomputed:
    """One row of a result again.

    Attributes
    ----------
    values : (block_cols,) float64 or complex128, the row
    scale : (block_cols,) product of the norms of its two coded columns
    rough : (block_cols,) error that ordinary rounding stays below; cheap
    """

    values: Array
    scale: Array
    rough: Array


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """u of float32, float64, complex64 or complex128: half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2


def bands(rows: slice, width: int, itemsize: int) -> Iterator[slice]:
    """Cut `rows` so that a band of `width` columns has about _BAND bytes."""
    height = max(16, _BAND // max(1, width * itemsize))
    for start in range(rows.start, rows.stop, height):
        yield slice(start, min(start + height, rows.stop))


def wide(block: Array) -> Array:
    """The block in double precision; itself if it is that already."""
    return block.astype(double(block.dtype), copy=False)


def double(dtype: np.dtype[Any]) -> type[np.generic]:
    """complex128 or float64."""
    return np.complex128 if dtype.kind == "c" else np.float64


class Recomputation:
    """Rows of one output of an assignment, computed from A and B.

    Parameters
    ----------
    rows : row numbers within the result block
    """

    def __init__(self, partition: Partition, a: Operand, b: Operand, assignment: Assignment, output: int,
                 rows: IntArray) -> None:  # fmt: skip
        self._partition, self._a, self._b = partition, a, b
        self._assignment, self._pairs, self._rows = assignment, assignment.outputs[output], rows
        coefficients = [side.values.dtype.kind for side in (*assignment.a, *assignment.b)]
        self._kind = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind, *coefficients) else np.float64
        self._u = max(unit_roundoff(a.dtype), unit_roundoff(b.dtype))
        self._single = self._u > 1e-12

    def rough(self) -> list[Recomputed]:
        """Every row by a skinny product, with the error that the rounding of ordinary data stays well below."""
        shape = (len(self._rows), self._partition.block_cols)
        values, squares = np.zeros(shape, self._kind), np.zeros(shape)
        for x, y in self._pairs:
            left, norm = self._left(self._assignment.a[x]), self._b_norms(self._assignment.b[y])
            for k, block in self._right(self._assignment.b[y]):
                values += left[k].T @ block
            squares += np.multiply.outer((np.abs(left) ** 2).sum(axis=0), norm)
        scale = np.sqrt(squares)
        limit = (8 + np.sqrt(self._partition.chunk_rows) / 2) * self._u * scale
        return [Recomputed(*row) for row in zip(values, scale, limit, strict=True)]

    def bound(self, which: int) -> Array:
        """For one of the rows: error per element that no order of summation in this precision exceeds."""
        total = np.zeros(self._partition.block_cols)
        lanes = 8 + np.sqrt(self._partition.chunk_rows)
        for x, y in self._pairs:
            a, b = self._assignment.a[x], self._assignment.b[y]
            left, magnitude = self._left(a)[:, which], self._left(a, absolute=True)[:, which]
            carry = np.zeros(self._partition.block_cols, self._kind)
            for (k, block), (_, sizes) in zip(self._right(b), self._right(b, absolute=True), strict=True):
                partial = np.cumsum(left[k, None] * block, axis=0)
                partial += carry
                carry = partial[-1]
                total += np.abs(partial).sum(axis=0) + (lanes + self._rounded(a) + self._rounded(b)) * (
                    magnitude[k] @ sizes
                )
            total += len(self._pairs) * np.abs(carry)
        # Complex: two additions to a term. Double precision: the recomputation rounds as well.
        return total * self._u * (2 if self._kind is np.complex128 else 1) * (1 if self._single else 2)

    def _rounded(self, combination: Combination) -> int:
        """Roundings of a coded element: chunks add up in double precision, whatever they are rounded to in the end."""
        return 0 if combination.is_unit else 1 if self._single else 1 + combination.degree

    def _left(self, a: Combination, absolute: bool = False) -> Array:
        """The coded columns of A that make the rows: (chunk_rows, rows)."""
        found = np.zeros((self._partition.chunk_rows, len(self._rows)), np.float64 if absolute else self._kind)
        for ia, value in zip(a.indices, a.values, strict=True):
            rows, cols = self._partition.a_slices(int(ia))
            for k, row in enumerate(self._rows):
                if cols.start + row < cols.stop:
                    column = wide(self._a.block(rows, slice(cols.start + row, cols.start + row + 1)))[:, 0]
                    found[: len(column), k] += abs(value) * np.abs(column) if absolute else value * column
        return found

    def _right(self, b: Combination, absolute: bool = False) -> Iterator[tuple[slice, Array]]:
        """The coded chunk of B in bands: (rows within the chunk, (band, block_cols))."""
        width, height = self._partition.block_cols, self._partition.chunk_rows
        for band in bands(slice(0, height), width, np.dtype(self._kind).itemsize):
            found = np.zeros((band.stop - band.start, width), np.float64 if absolute else self._kind)
            for jb, value in zip(b.indices, b.values, strict=True):
                rows, cols = self._partition.b_slices(int(jb))
                part = slice(rows.start + band.start, min(rows.start + band.stop, rows.stop))
                block = wide(self._b.block(part, cols))
                found[: block.shape[0], : block.shape[1]] += abs(value) * np.abs(block) if absolute else value * block
            yield band, found

    def _b_norms(self, b: Combination) -> Array:
        squares = np.zeros(self._partition.block_cols)
        for _, block in self._right(b):
            squares += (np.abs(block) ** 2).sum(axis=0)
        return squares


def disagreement(
    found: Sequence[Array], extra: Sequence[Array | float], again: Recomputation, error: float
) -> int | None:
    """Which of the recomputed rows a result cannot have by rounding, or None.

    Parameters
    ----------
    found : the rows as they are in the result
    extra : absolute error per element to allow on top, by row
    error : error to allow on top, relative to the norms of the two columns
    """
    for which, row in enumerate(again.rough()):
        deviation = np.abs(found[which] - row.values) - extra[which] - error * row.scale
        if (deviation <= row.rough).all():
            continue
        if not (deviation <= again.bound(which)).all():
            return which
    return None
