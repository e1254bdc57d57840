"""The numeric side of decoding: C, the blocks that wait to be decoded, and the plan applied to both.

Results that are blocks of C go straight there. All others are parked in slots of C that are still empty, so that
hardly any memory is needed beyond C; what arrives when no slot is empty goes to a surplus buffer. Decoding works in
slices of elements (a range of rows of every block), takes the parked pieces out, subtracts what is known, solves, and
writes the missing blocks. Arithmetic is float64 or complex128 whatever the dtype of C, rounded once when written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cmm.core.errors import DataError, InternalError
from cmm.core.grid import Partition
from cmm.core.task import Array, IntArray
from cmm.linalg.plan import Plan, SourceKey
from cmm.linalg.rows import CodedRow
from cmm.linalg.slots import Slots, scatter, take
from cmm.linalg.subtract import MIXED_BYTES, Subtraction

WORKSPACE_BYTES = 8 << 20
"""Working memory of `decode` may always be this large; eight blocks, or as much as the plan, where that is more."""

Settle = Callable[[Array, Array], Array]
_REAL, _IMAG = 0, 1
Part = tuple[int, int, int]  # (task, output, real or imaginary part)


@dataclass(eq=False)
class _Parked:
    """One waiting block: in an empty slot of C (with the edges that do not fit there), or in a buffer of its own."""

    slot: int = -1
    buffer: Array | None = None
    bottom: Array | None = None
    right: Array | None = None

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in (self.buffer, self.bottom, self.right) if part is not None)


class BlockStore:
    """C and the results that wait for decoding.

    Parameters
    ----------
    partition : how C is cut (p = 1: the unknowns are the blocks of C; otherwise all results wait)
    dtype : of C: float32, float64, complex64 or complex128
    out : where C is built, C-contiguous (r, t) of that dtype; allocated when None

    Raises
    ------
    DataError : `out` has another shape, dtype or memory order
    """

    def __init__(self, partition: Partition, dtype: npt.DTypeLike, out: Array | None = None) -> None:
        self.partition, self.dtype = partition, np.dtype(dtype)
        shape = (partition.r, partition.t)
        if out is not None and (out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous):
            raise DataError("out", f"must be a C-contiguous {shape} array of {self.dtype}",
                            f"{out.shape} of {out.dtype}", "Pass np.empty(shape, dtype).")  # fmt: skip
        self.C: Array = np.zeros(shape, self.dtype) if out is None else out
        self.direct = partition.grid.p == 1
        self._slots = Slots.of(self.C, partition)
        self._decoded = False
        self._filled = np.zeros(partition.grid.K, dtype=bool)
        self._parked: dict[Part, _Parked] = {}
        self._tenant: dict[int, Part] = {}
        self._giver = np.zeros((partition.grid.K, 2), np.int64)  # of filled blocks: the result (task, output) it is
        self._empty = _EmptySlots(partition.grid.K)

    # ---- results in --------------------------------------------------------------------------------------------

    def put(self, key: SourceKey, block: Array, row: CodedRow) -> None:
        """Take in a result block (block_rows, block_cols), padded with zeros; `block` may be reused afterwards.

        A result that is there already, or that arrives when C is complete, is ignored; of two for one block of C the
        one with the lower number counts.
        """
        if self._decoded:
            return
        if self.direct and row.singleton:
            self._put_direct(key, int(row.indices[0]), block, row.values[0])
        elif (*key, _REAL) not in self._parked:
            if np.iscomplexobj(block) and self.dtype.kind != "c":
                self._park((*key, _REAL), block.real)
                self._park((*key, _IMAG), block.imag)
            else:
                self._park((*key, _REAL), block)

    def _put_direct(self, key: SourceKey, target: int, block: Array, coefficient: Any) -> None:
        if self._filled[target] and key >= tuple(self._giver[target]):
            return
        self._giver[target] = key
        tenant = self._tenant.pop(target, None)
        self._filled[target] = True
        self._empty.remove(target)
        if tenant is not None:
            waiting = self._block(self._parked.pop(tenant))
            self._park(tenant, waiting)
        slot = self._slot(target)
        value = block[: slot.shape[0], : slot.shape[1]]
        if coefficient != 1:
            value = value / coefficient
        slot[...] = value.real if np.iscomplexobj(value) and self.dtype.kind != "c" else value

    def _park(self, part: Part, block: Array) -> None:
        fits = np.can_cast(block.dtype, self.dtype, "safe")
        target = self._empty.take() if fits else None
        if target is None:
            self._parked[part] = _Parked(buffer=np.array(block))
            return
        slot = self._slot(target)
        rows, cols = slot.shape
        slot[...] = block[:rows, :cols]
        self._parked[part] = _Parked(
            slot=target,
            bottom=block[rows:].copy() if rows < block.shape[0] else None,
            right=block[:, cols:].copy() if cols < block.shape[1] else None,
        )
        self._tenant[target] = part

    def _block(self, parked: _Parked) -> Array:
        """A copy of a parked block, whole."""
        if parked.buffer is not None:
            return parked.buffer
        slot = self._slot(parked.slot)
        block = np.zeros((self.partition.block_rows, self.partition.block_cols), self.dtype)
        block[: slot.shape[0], : slot.shape[1]] = slot
        if parked.right is not None:
            block[:, slot.shape[1] :] = parked.right
        if parked.bottom is not None:
            block[slot.shape[0] :] = parked.bottom
        return block

    def _slot(self, target: int) -> Array:
        i, j = divmod(target, self.partition.grid.n)
        slot: Array = self.C[self.partition.c_slices(i, j)]
        return slot

    @property
    def surplus_bytes(self) -> int:
        """Memory held beyond C: surplus blocks and edges that do not fit their slot."""
        return sum(parked.bytes for parked in self._parked.values())

    @property
    def parked(self) -> int:
        """Number of blocks that wait."""
        return len(self._parked)

    # ---- decoding ----------------------------------------------------------------------------------------------

    def decode(self, plan: Plan, settle: Settle | None = None) -> None:
        """Fill C by the plan. Raises InternalError when plan and results do not belong together.

        settle : settle(results, solved) -> solved is asked for every slice, with the results of the plan's sources less
            the known blocks (sources, e) and what was solved (missing, e): integer jobs round and prove it there
        """
        missing = np.asarray(plan.missing, dtype=np.intp)
        self._check(plan, missing)
        self._decoded = True
        if not len(missing) or not self.C.size:
            return
        plan = plan.prepared(self.partition.block_rows * self.partition.block_cols)
        gather = _Gather(self, plan)
        subtraction = Subtraction(plan, self.partition, self.C, self._slots) if self.direct else None
        kind = np.complex128 if gather.complex or self.dtype.kind == "c" else np.float64
        for rows, cols in self._slices(plan, subtraction):
            self._decode_slice(plan, missing, gather.pieces(rows, cols, kind), subtraction, rows, cols, settle)
        self._filled[missing] = True
        self._parked.clear()
        self._tenant.clear()

    def _decode_slice(self, plan: Plan, missing: IntArray, results: Array, subtraction: Subtraction | None, rows: slice,
                      cols: slice, settle: Settle | None) -> None:  # fmt: skip
        """Subtract, solve and write the missing blocks' slice. results (sources, rows, columns) may be overwritten."""
        scatter(self._slots, self.partition.grid.n, missing, rows, cols, None)
        if subtraction is not None:
            results = subtraction.apply(rows, cols, results)
        flat = results.reshape(len(results), -1)
        kept = flat.copy() if settle is not None else flat
        solved = plan.solve(None, flat)
        if settle is not None:
            solved = settle(kept, solved)
        solved = solved.reshape(len(missing), rows.stop - rows.start, cols.stop - cols.start)
        if np.iscomplexobj(solved) and self.dtype.kind != "c":
            solved = solved.real
        scatter(self._slots, self.partition.grid.n, missing, rows, cols, solved)

    def _check(self, plan: Plan, missing: IntArray) -> None:
        known = self._filled.copy()
        known[missing] = True
        if not known.all():
            raise InternalError(f"the plan takes {int((~known).sum())} blocks of C as known that never arrived")
        lost = [key for key in plan.sources if (*key, _REAL) not in self._parked]
        if lost:
            raise InternalError(f"the plan uses result {lost[0]} of task {lost[0][0]}, which was not stored")

    def _slices(self, plan: Plan, subtraction: Subtraction | None) -> Iterator[tuple[slice, slice]]:
        """(rows, columns) of a block to work on at a time, so that working memory stays within its bound."""
        height, width = self.partition.block_rows, self.partition.block_cols
        itemsize = 16 if self.dtype.kind == "c" else 8
        budget = max(8 * height * width, WORKSPACE_BYTES // itemsize, len(plan.sources) ** 2)
        budget -= min(budget // 2, MIXED_BYTES // 8)
        # a copy of the results is needed to take pieces out, subtract and put them back
        copies = max(len(plan.sources), subtraction.workspace if subtraction else 0)
        elements = max(1, budget // (plan.workspace + copies))
        cols_at_once = min(width, elements)
        rows_at_once = max(1, min(height, elements // cols_at_once))
        common = min(slots.view.shape[1] for slots in self._slots)
        for low, high in ((0, common), (common, height)):
            for row in range(low, high, rows_at_once):
                for col in range(0, width, cols_at_once):
                    yield slice(row, min(high, row + rows_at_once)), slice(col, min(width, col + cols_at_once))


class _EmptySlots:
    """Slots of C in which nothing has been put, last ones first; removal of any in constant time."""

    def __init__(self, count: int) -> None:
        self._stack = list(range(count))
        self._free = [True] * count

    def take(self) -> int | None:
        while self._stack:
            slot = self._stack.pop()
            if self._free[slot]:
                self._free[slot] = False
                return slot
        return None

    def remove(self, slot: int) -> None:
        self._free[slot] = False


class _Gather:
    """Takes slices of the blocks of a plan's sources from wherever they wait."""

    def __init__(self, store: BlockStore, plan: Plan) -> None:
        self._n, self._slots = store.partition.grid.n, store._slots
        self._count = len(plan.sources)
        self._loose: list[tuple[int, int, _Parked]] = []
        positions: tuple[list[int], list[int]] = ([], [])
        targets: tuple[list[int], list[int]] = ([], [])
        for k, key in enumerate(plan.sources):
            for part in (_REAL, _IMAG):
                parked = store._parked.get((*key, part))
                if parked is None:
                    continue
                if parked.slot >= 0:
                    positions[part].append(k)
                    targets[part].append(parked.slot)
                if parked.buffer is not None or parked.bottom is not None or parked.right is not None:
                    self._loose.append((part, k, parked))
        self._seated = [
            (part, np.array(positions[part], np.intp), np.array(targets[part], np.intp)) for part in (_REAL, _IMAG)
        ]
        complex_parts = any(p.buffer is not None and np.iscomplexobj(p.buffer) for _, _, p in self._loose)
        self.complex = complex_parts or bool(positions[_IMAG]) or any(part == _IMAG for part, _, _ in self._loose)

    def pieces(self, rows: slice, cols: slice, kind: type[Any]) -> Array:
        """(sources, rows, columns) of float64 or complex128."""
        out = np.zeros((self._count, rows.stop - rows.start, cols.stop - cols.start), dtype=kind)
        for part, positions, targets in self._seated:
            into = out.imag if part == _IMAG else out
            if self.complex and part == _REAL and self._slots[0].view.dtype.kind != "c":
                into = out.real
            if len(positions):
                take(self._slots, self._n, positions, targets, rows, cols, into)
        for part, k, parked in self._loose:
            piece = out[k].imag if part == _IMAG else out[k]
            self._fringe(parked, rows, cols, piece)
        return out

    def _fringe(self, parked: _Parked, rows: slice, cols: slice, piece: Array) -> None:
        """Copy what lies outside C: the whole block, or the last row or column."""
        if parked.buffer is not None:
            _assign(piece, parked.buffer[rows, cols])
            return
        if parked.right is not None and cols.stop > (width := self._width(parked)):
            _assign(piece[:, width - cols.start :], parked.right[rows])
        if parked.bottom is not None and rows.stop > (height := self._height(parked)):
            _assign(piece[height - rows.start :], parked.bottom[:, cols])

    def _width(self, parked: _Parked) -> int:
        return self._shape(parked)[1]

    def _height(self, parked: _Parked) -> int:
        return self._shape(parked)[0]

    def _shape(self, parked: _Parked) -> tuple[int, int]:
        i, j = divmod(parked.slot, self._n)
        for slots in self._slots:
            if slots.i0 <= i < slots.i1 and slots.j0 <= j < slots.j1:
                return slots.view.shape[1], slots.view.shape[3]
        return 0, 0


def _assign(piece: Array, value: Array) -> None:
    """Write real parts only where the piece was read from a real slot (its imaginary part comes separately)."""
    if np.iscomplexobj(piece) and not np.iscomplexobj(value):
        piece.real[...] = value
    else:
        piece[...] = value
