"""The results file of a checkpoint: records appended one after another, each recognisable and checked by itself.

    record  = prelude | header (JSON) | blocks, as they lie in memory
    prelude = magic, identity of the plan, bytes of the header, bytes of the blocks, CRC-32 of both; CRC-32 of these

So the file is right at every moment: what is torn, damaged or foreign is recognised, and the rest is used. A prelude
that is whole says where the next record begins, whatever has become of its own; after a damaged one the next magic is
looked for. The header holds the task with its coefficients, so that a result means the same without its code's help.
No size is believed before it is compared with the file's and the plan's. No MPI here.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from cmm.core.task import Array, Assignment, Combination

MAGIC = b"\x89cmm\r\n\x1a\x01"  # not text, and broken by transfers that take it for text; the last byte is the version
PRELUDE = struct.Struct("<8s16sIQI")
CHECKSUM = struct.Struct("<I")
PRELUDE_BYTES = PRELUDE.size + CHECKSUM.size
LONGEST_HEADER = 1 << 26  # coefficients of a task of some million chunks
LARGEST_TASK = 1 << 62
_SEARCH = 1 << 20  # bytes looked through at a time for the next record


@dataclass(frozen=True)
class Form:
    """What every result of a plan looks like.

    plan : 16 bytes, the plan's identity
    block : (rows, columns) of a result block; dtype : of its elements
    chunks : of A and of B, both with the split of the shared dimension
    """

    plan: bytes
    block: tuple[int, int]
    dtype: np.dtype[Any]
    chunks: tuple[int, int]

    @property
    def block_bytes(self) -> int:
        return self.block[0] * self.block[1] * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Saved:
    """A result without its blocks. `kind`: what the timeline calls the task; `checked`: it has passed its check."""

    assignment: Assignment
    kind: str
    checked: bool


# ---- headers -----------------------------------------------------------------------------------------------------


def pack_header(saved: Saved) -> bytes:
    """As JSON: floats by their shortest exact text, complex numbers as pairs."""
    task = saved.assignment
    table = {"task": task.task, "kind": saved.kind, "checked": saved.checked, "systematic": task.systematic,
             "outputs": task.outputs, "a": [_listed(x) for x in task.a], "b": [_listed(x) for x in task.b]}  # fmt: skip
    return json.dumps(table, allow_nan=False, separators=(",", ":")).encode()


def same_task(one: Assignment, other: Assignment) -> bool:
    """Whether two assignments are the same, coefficients included."""
    return pack_header(Saved(one, "", True)) == pack_header(Saved(other, "", True))


def unpack_header(raw: bytes, chunks: tuple[int, int]) -> Saved:
    """The header again. Raises ValueError when it is none, or names chunks that there are not."""
    try:
        table = json.loads(raw)
        task, systematic = table["task"], table["systematic"]
        a, b = ([_combination(x, count) for x in table[side]] for side, count in zip("ab", chunks, strict=True))
        outputs = tuple(tuple((x, y) for x, y in pairs) for pairs in table["outputs"])
        kind, checked = table["kind"], table["checked"]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"no header of a result ({type(error).__name__})") from None
    right = (_whole(task, LARGEST_TASK) and (systematic is None or _whole(systematic, chunks[0] * chunks[1]))
             and all(_whole(x, len(a)) and _whole(y, len(b)) for pairs in outputs for x, y in pairs)
             and all(outputs) and bool(outputs) and isinstance(kind, str) and isinstance(checked, bool))  # fmt: skip
    if not right:
        raise ValueError("a header with values out of range")
    return Saved(Assignment(task, tuple(a), tuple(b), outputs, systematic, chunks[1]), kind, checked)


def _listed(combination: Combination) -> list[Any]:
    values = combination.values
    pairs = [[v.real, v.imag] for v in values.tolist()] if np.iscomplexobj(values) else values.tolist()
    return [combination.indices.tolist(), pairs]


def _combination(raw: Any, chunks: int) -> Combination:
    indices, values = raw
    if len(indices) != len(values) or not all(_whole(index, chunks) for index in indices):
        raise ValueError
    if any(first >= second for first, second in pairwise(indices)):
        raise ValueError
    numbers = [_number(value) for value in values]
    if not all(math.isfinite(abs(number)) and number != 0 for number in numbers):
        raise ValueError
    kind = np.complex128 if any(isinstance(number, complex) for number in numbers) else np.float64
    return Combination(np.array(indices, dtype=np.intp), np.array(numbers, dtype=kind))


def _number(value: Any) -> float | complex:
    """A JSON number, or a pair of them for a complex one."""
    if isinstance(value, list):
        real, imaginary = value
        return complex(_number(real), _number(imaginary))
    if not isinstance(value, float):
        raise ValueError
    return value


def _whole(value: Any, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


# ---- writing -----------------------------------------------------------------------------------------------------


def append(fd: int, at: int, form: Form, saved: Saved, blocks: Sequence[Array]) -> int:
    """Write one record at offset `at`, usually with one call; returns where it ends. Raises OSError."""
    header = pack_header(saved)
    parts = [memoryview(header), *(block.data.cast("B") for block in blocks if block.size)]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    size = sum(part.nbytes for part in parts[1:])
    prelude = PRELUDE.pack(MAGIC, form.plan, len(header), size, checksum)
    left = [memoryview(prelude + CHECKSUM.pack(zlib.crc32(prelude))), *parts]
    while left:
        written = os.pwritev(fd, left[:512], at)
        at += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if left:
            left[0] = left[0][written:]
    return at


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """The records of a file, read one by one.

    Attributes
    ----------
    end : after iterating, where the last record that was recognised ends: what follows is of no use
    damaged, foreign : records that were skipped
    torn : bytes of no use at the end
    """

    fd: int
    form: Form
    end: int = 0
    damaged: int = 0
    foreign: int = 0
    torn: int = 0
    _blocks: list[Array] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Saved, list[Array]]]:
        """(result, its blocks), in the order of the file. The blocks are valid until the next step."""
        size, at = os.fstat(self.fd).st_size, 0
        while at < size:
            found = self._prelude(at, size)
            if found is None:
                following = self._next(at + 1, size)
                if following is None:
                    break
                self.damaged += 1
                at = following
                continue
            plan, header, blocks, checksum = found
            whole = at + PRELUDE_BYTES + header + blocks
            if plan != self.form.plan:
                self.foreign += 1
            elif (saved := self._read(at + PRELUDE_BYTES, header, blocks, checksum)) is None:
                self.damaged += 1
            else:
                yield saved, self._blocks[: len(saved.assignment.outputs)]
            at = self.end = whole
        self.torn = size - self.end

    def report(self) -> list[str]:
        """What was not used, for the user; nothing when all was."""
        said = []
        if self.damaged:
            said.append(f"{self.damaged} damaged result(s)")
        if self.foreign:
            said.append(f"{self.foreign} result(s) of another job")
        if self.torn:
            said.append(f"a torn end of {self.torn} bytes")
        return said

    def _prelude(self, at: int, size: int) -> tuple[bytes, int, int, int] | None:
        """(plan, bytes of header, of blocks, checksum); None where no whole record begins."""
        raw = os.pread(self.fd, PRELUDE_BYTES, at)
        if len(raw) < PRELUDE_BYTES or raw[: len(MAGIC)] != MAGIC:
            return None
        if CHECKSUM.unpack_from(raw, PRELUDE.size)[0] != zlib.crc32(raw[: PRELUDE.size]):
            return None
        _, plan, header, blocks, checksum = PRELUDE.unpack_from(raw)
        return None if at + PRELUDE_BYTES + header + blocks > size else (plan, header, blocks, checksum)

    def _next(self, at: int, size: int) -> int | None:
        """Where the next whole record begins."""
        while at < size:
            raw = os.pread(self.fd, _SEARCH, at)
            found = raw.find(MAGIC)
            if found >= 0:
                if self._prelude(at + found, size) is not None:
                    return at + found
                at += found + 1
            else:
                at += max(1, len(raw) - len(MAGIC) + 1) if len(raw) == _SEARCH else size
        return None

    def _read(self, at: int, header: int, blocks: int, checksum: int) -> Saved | None:
        """The record's content, its blocks in `_blocks`; None when it is damaged."""
        if header > LONGEST_HEADER:
            return None
        raw = os.pread(self.fd, header, at)
        try:
            saved = unpack_header(raw, self.form.chunks)
        except ValueError:
            return None
        count = len(saved.assignment.outputs)
        if blocks != count * self.form.block_bytes:
            return None
        at, found = at + header, zlib.crc32(raw)
        while len(self._blocks) < count:
            self._blocks.append(np.empty(self.form.block, self.form.dtype))
        for block in self._blocks[:count]:
            if not self._fill(block, at):
                return None
            at += block.nbytes
            found = zlib.crc32(block.data.cast("B"), found) if block.size else found
        return saved if found == checksum else None

    def _fill(self, block: Array, at: int) -> bool:
        """Read a block; one call reads 2 GiB at most."""
        left = block.data.cast("B") if block.size else memoryview(b"")
        while left.nbytes:
            read = os.preadv(self.fd, [left], at)
            if not read:
                return False
            left, at = left[read:], at + read
        return True
