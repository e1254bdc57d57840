"""Coded chunks: sparse combinations of the column chunks of one matrix, built in slices, kept while they are needed.

Buffers are allocated once and reused; a buffer is free again when no task that uses it waits to be sent and it has
become the least recently used beyond the capacity. Encoding accumulates in double precision whatever the job's dtype.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np

from cmm.core.task import Array, Combination

SLICE_BYTES = 4 << 20  # source bytes read between two polls of the caller (below a millisecond at memory speed)
CACHE_BYTES = 512 << 10  # a slab of the accumulator that stays in cache while chunks are added to it

ReadChunk = Callable[[int, int, int, Array], None]


class Operand:
    """One coded chunk (rows x cols): its buffer, whether it is ready, and how many pending sends use it."""

    def __init__(self, key: bytes, buffer: Array) -> None:
        self.key, self.buffer, self.users = key, buffer, 0
        self.steps: Iterator[None] | None = None

    @property
    def ready(self) -> bool:
        return self.steps is None

    def step(self) -> bool:
        """Do one slice of the encoding; True when the chunk is ready."""
        if self.steps is not None and next(self.steps, self) is self:
            self.steps = None
        return self.ready


class Encoder:
    """Encoded operands of one side.

    Parameters
    ----------
    read : read(chunk, first row, last row, out) writes those rows of a (scaled) source chunk into `out`
        (rows x cols, padded with zeros)
    shape : (rows, cols) of every coded chunk, padded
    dtype : of the coded chunks as sent
    capacity : chunks kept for reuse
    """

    def __init__(self, read: ReadChunk, shape: tuple[int, int],
                 dtype: np.dtype[np.generic], capacity: int) -> None:  # fmt: skip
        self.read, self.shape, self.dtype, self.capacity = read, shape, np.dtype(dtype), max(1, capacity)
        self.operands: OrderedDict[bytes, Operand] = OrderedDict()
        self.free: list[Array] = []
        self.allocated = 0
        self.chunks_read = 0  # source chunks read so far: the encoding work

    def begin_with(self, buffers: list[Array]) -> None:
        """Use these buffers (of an earlier job, of this shape and dtype) before any is allocated."""
        self.free, self.allocated = buffers, len(buffers)

    def leave(self) -> list[Array]:
        """The buffers that no pending send uses; the encoder is not used any more."""
        return self.free + [operand.buffer for operand in self.operands.values() if operand.users == 0]

    def operand(self, combination: Combination) -> Operand:
        """The coded chunk for a combination; not necessarily ready. The caller counts itself in `users`."""
        key = combination.key
        if key in self.operands:
            self.operands.move_to_end(key)
            return self.operands[key]
        operand = Operand(key, self._buffer())
        operand.steps = self._build(combination, operand.buffer)
        self.operands[key] = operand
        return operand

    def use(self, combination: Combination) -> Operand:
        """`operand`, counted as in use at once: a task of more operands than are kept must not lose its first ones to
        its last ones. Whoever calls this gives it back by lowering `users`."""
        operand = self.operand(combination)
        operand.users += 1
        return operand

    def _buffer(self) -> Array:
        for key in list(self.operands):
            if self.free or self.allocated < self.capacity:
                break
            if self.operands[key].users == 0:
                self.free.append(self.operands.pop(key).buffer)
        if self.free:
            return self.free.pop()
        self.allocated += 1
        buffer = np.empty(self.shape, dtype=self.dtype)
        buffer.fill(0)
        return buffer

    def _build(self, combination: Combination, buffer: Array) -> Iterator[None]:
        self.chunks_read += combination.degree
        if combination.is_unit:
            return self._copy(int(combination.indices[0]), buffer)
        if not combination.degree:  # all its coefficients are zero
            buffer.fill(0)
            return iter(())
        return self._combine(combination, buffer)

    def _copy(self, chunk: int, buffer: Array) -> Iterator[None]:
        rows, cols = self.shape
        step = max(1, SLICE_BYTES // max(1, cols * self.dtype.itemsize))
        for start in range(0, rows, step):
            self.read(chunk, start, min(start + step, rows), buffer[start : start + step])
            yield

    def _combine(self, combination: Combination, buffer: Array) -> Iterator[None]:
        rows, cols = self.shape
        double = np.result_type(self.dtype, np.float64)
        step = max(1, CACHE_BYTES // max(1, cols * double.itemsize))
        source = np.empty((step, cols), dtype=double)
        sums = None if self.dtype == double else np.empty_like(source)
        chunks, values = combination.indices.tolist(), combination.values.tolist()
        done = 0
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            part = source[: stop - start]
            total = buffer[start:stop] if sums is None else sums[: stop - start]
            self.read(chunks[0], start, stop, total)
            total *= values[0]
            for chunk, value in zip(chunks[1:], values[1:], strict=True):
                self.read(chunk, start, stop, part)
                part *= value
                total += part
            if sums is not None:
                buffer[start:stop] = total
            done += part.nbytes * combination.degree
            if done >= SLICE_BYTES:
                done = 0
                yield
        yield
