"""What of the checks touches memory: looks at A, B and results, in tiles that stay in the cache.

The cost of a check is its passes over memory, and copies on the way: A, B, the results and C are each read once; only
results in single precision are converted, tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cmm.core.task import Array
from cmm.verify.recompute import Operand, double

TILE = 1 << 20  # bytes looked at together with one vector
_MANY = 1 << 22  # the same with several, which BLAS packs the block for
_FEW = 1 << 19  # the same where it does not: measured with OpenBLAS
_TALLEST = 256  # rows of a tile: bounds what sums in single precision add up
_NARROWEST = 16  # rows of a tile in memory order by rows; columns otherwise
_COPIED = 64  # rows at the least where tiles have to be copied
_SLAB = 1 << 18  # elements of a result converted at a time: 64 k took half as long again (one core, OpenBLAS)


def tiles(operand: Operand, rows: slice, cols: slice, size: int) -> Iterator[tuple[slice, slice, Array]]:
    """(rows, columns, block) of about `size` bytes in the operand's precision, along its order in memory. Not copied
    where the operand is used as it lies there; a block is good until the next one is asked for."""
    height, width = _shape(operand, rows, cols, size)
    scratch: Array | None = None
    for col in range(cols.start, cols.stop, width):
        across = slice(col, min(col + width, cols.stop))
        for row in range(rows.start, rows.stop, height):
            down = slice(row, min(row + height, rows.stop))
            block = operand.view(down, across)
            if block is None:
                shape = down.stop - down.start, across.stop - across.start
                scratch = np.empty(shape[0] * shape[1], operand.dtype) if scratch is None else scratch
                block = operand.block(down, across, out=scratch[: shape[0] * shape[1]].reshape(shape))
            yield down, across, block


def tile_size(vectors: int, dtype: np.dtype[Any]) -> int:
    """Bytes of a tile for products with so many vectors."""
    return _FEW if vectors <= 8 and dtype.kind != "c" else _MANY


def _shape(operand: Operand, rows: slice, cols: slice, size: int) -> tuple[int, int]:
    """Rows and columns of a tile."""
    tall, wide = rows.stop - rows.start, cols.stop - cols.start
    elements = max(1, size // operand.dtype.itemsize)
    view = operand.view(rows, cols)
    if view is not None and abs(view.strides[0]) < abs(view.strides[1]):
        height = max(1, min(tall, _TALLEST, elements // _NARROWEST))
        return height, max(1, min(wide, elements // height))
    width = max(1, min(wide, elements // (_COPIED if view is None else _NARROWEST)))
    return max(1, min(tall, _TALLEST, elements // width)), width


def squares(block: Array) -> Array:
    """Sum of |element|^2 by column, in double precision."""
    if block.dtype.kind == "c":
        return squares(block.real) + squares(block.imag)
    block = block.astype(np.float64, copy=False)
    return np.einsum("ij,ij->j", block, block)


def times(array: Array, x: Array) -> Array:
    """array @ x in double precision, by slabs of rows where that needs a conversion.

    Not in single precision: what a product of a result rounds off could hide a part of an error in it.
    """
    if array.dtype in (np.float64, np.complex128):
        return array @ x
    kind = np.dtype(double(array.dtype))
    height = max(1, _SLAB // max(1, array.shape[1]))
    scratch = np.empty((min(height, len(array)), array.shape[1]), kind)
    found = np.zeros(len(array), np.result_type(scratch, x))
    for k in range(0, len(array), height):
        slab = scratch[: len(array) - k]
        np.copyto(slab, array[k : k + height])
        np.matmul(slab, x, out=found[k : k + height])
    return found
