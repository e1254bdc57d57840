"""The blocks of C as slots: at most four shapes, each a four-dimensional view, read and written in slices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cmm.core.grid import Partition
from cmm.core.task import Array, IntArray


@dataclass(frozen=True)
class Slots:
    """The blocks of C of one shape: rows i0..i1 and columns j0..j1 of the grid, as a view (i, row, j, column) of C."""

    i0: int
    i1: int
    j0: int
    j1: int
    view: Array = field(repr=False, compare=False)

    @classmethod
    def of(cls, matrix: Array, partition: Partition) -> list[Slots]:
        """At most four kinds of blocks: tall or short times wide or narrow (sizes differ by one)."""
        return [
            cls(i0, i1, j0, j1, _four(matrix, partition, i0, i1, j0, j1))
            for i0, i1 in runs(partition.bounds_r) for j0, j1 in runs(partition.bounds_t)
        ]  # fmt: skip


def runs(bounds: tuple[int, ...]) -> list[tuple[int, int]]:
    """Ranges of consecutive chunks of one size, empty chunks left out."""
    sizes = np.diff(bounds)
    larger = int(np.count_nonzero(sizes == sizes[0]))
    runs = [(0, larger), (larger, len(sizes))]
    return [(k0, k1) for k0, k1 in runs if k1 > k0 and sizes[k0] > 0]


def _four(matrix: Array, partition: Partition, i0: int, i1: int, j0: int, j1: int) -> Array:
    r, t = partition.bounds_r, partition.bounds_t
    part = matrix[r[i0] : r[i1], t[j0] : t[j1]]
    view = part.view()
    view.shape = (i1 - i0, part.shape[0] // (i1 - i0), j1 - j0, part.shape[1] // (j1 - j0))
    return view


def _members(slots: Slots, n: int, targets: IntArray) -> tuple[Array, IntArray, IntArray]:
    """Which targets lie in these slots, and their indices in the view."""
    i, j = np.divmod(targets, n)
    inside = (i >= slots.i0) & (i < slots.i1) & (j >= slots.j0) & (j < slots.j1)
    return inside, i[inside] - slots.i0, j[inside] - slots.j0


def _clipped(slots: Slots, rows: slice, cols: slice) -> tuple[int, int]:
    """How many rows and columns of a slice these slots have."""
    height, width = slots.view.shape[1], slots.view.shape[3]
    return max(0, min(rows.stop, height) - rows.start), max(0, min(cols.stop, width) - cols.start)


def take(all_slots: list[Slots], n: int, positions: IntArray, targets: IntArray, rows: slice, cols: slice,
          out: Array) -> None:  # fmt: skip
    """out[positions] = the slice of the slots `targets`; elements a smaller slot does not have are left alone."""
    for slots in all_slots:
        inside, i, j = _members(slots, n, targets)
        height, width = _clipped(slots, rows, cols)
        if len(i) and height and width:
            part = slots.view[:, rows.start : rows.start + height, :, cols.start : cols.start + width]
            out[positions[inside], :height, :width] = part[i, :, j]


def scatter(all_slots: list[Slots], n: int, targets: IntArray, rows: slice, cols: slice, values: Array | None) -> None:
    """Write the slice of every target's slot: values (targets, rows, columns), or zeros."""
    for slots in all_slots:
        inside, i, j = _members(slots, n, targets)
        height, width = _clipped(slots, rows, cols)
        if len(i) and height and width:
            part = slots.view[:, rows.start : rows.start + height, :, cols.start : cols.start + width]
            part[i, :, j] = 0 if values is None else values[inside, :height, :width]
