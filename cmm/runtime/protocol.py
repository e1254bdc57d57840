"""The messages between master and workers: fixed headers of 16 int64, raw buffers for everything else. No pickle.

A header travels on its own tag and announces the payload that follows on the payload tag; MPI keeps the order of
messages per sender and tag, so payloads arrive in the order of their headers. Large payloads are cut into messages of
at most `message_limit()` bytes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from cmm.core.errors import InternalError
from cmm.core.rules import message_limit
from cmm.core.task import Array

MAGIC = 0x636D6D01  # "cmm" and the protocol's version
WORDS = 16

TAG_DOWN, TAG_DOWN_DATA, TAG_UP, TAG_UP_DATA = 11, 12, 13, 14

DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128))
MAX_TEXT = 1 << 20  # bytes of a report or a traceback
MAX_PARTS = 1 << 16  # operands, outputs or pairs of one task


class Down(IntEnum):
    """Master to worker."""

    TASK = 1
    STOP = 2  # drop everything, acknowledge
    BYE = 3  # the job is over; carries exit code and report
    ASSIGN = 4  # gradient coding: which parts of the data are yours


class Up(IntEnum):
    """Worker to master."""

    RESULT = 11
    ERROR = 12  # carries a traceback
    ACK = 13  # heard the stop, nothing more will come
    SKIPPED = 14  # gradient coding: left out for a newer task


@dataclass(frozen=True)
class Header:
    """One header. `job` numbers the calls on a communicator, so that late messages are recognised.

    rows, cols_a, cols_b : shape of the operands (rows x cols_a), (rows x cols_b); results are cols_a x cols_b
    parts_a, parts_b, outputs, pairs : operands, output rows and pairs of the task
    nanoseconds : how long the worker computed (RESULT); value : exit code (BYE); length : bytes of text that follow
    """

    kind: int
    job: int
    task: int = -1
    dtype: int = 0
    rows: int = 0
    cols_a: int = 0
    cols_b: int = 0
    parts_a: int = 1
    parts_b: int = 1
    outputs: int = 1
    pairs: int = 1
    nanoseconds: int = 0
    value: int = 0
    length: int = 0

    def pack(self) -> Array:
        """int64 array of WORDS words."""
        words = np.zeros(WORDS, dtype=np.int64)
        words[:15] = (MAGIC, self.kind, self.job, self.task, self.dtype, self.rows, self.cols_a, self.cols_b,
                      self.parts_a, self.parts_b, self.outputs, self.pairs, self.nanoseconds, self.value,
                      self.length)  # fmt: skip
        return words

    @classmethod
    def unpack(cls, words: Array) -> Header:
        """Read and check a header. Raises InternalError on anything malformed: sizes are checked before allocation."""
        if words.shape != (WORDS,) or words.dtype != np.int64 or words[0] != MAGIC:
            raise InternalError(
                f"a message with a foreign header {words[:2].tolist()} arrived: all ranks must run one version of cmm"
            )
        header = cls(*(int(word) for word in words[1:15]))
        header.check()
        return header

    def check(self) -> None:
        sizes = (self.rows, self.cols_a, self.cols_b)
        parts = (self.parts_a, self.parts_b, self.outputs, self.pairs)
        itemsize = DTYPES[self.dtype].itemsize if 0 <= self.dtype < len(DTYPES) else 0
        fine = (
            itemsize > 0
            and all(size >= 0 for size in sizes)
            and max(self.rows, self.cols_b) * max(self.cols_a, self.cols_b) * itemsize < sys.maxsize
            and all(1 <= part <= MAX_PARTS for part in parts)
            and 0 <= self.length <= MAX_TEXT
        )
        if not fine:
            raise InternalError(f"a message with an impossible header arrived: {self}")


def dtype_code(dtype: np.dtype[np.generic]) -> int:
    return DTYPES.index(np.dtype(dtype))


def cut_bytes(array: Array) -> list[Array]:
    """The contiguous array as byte views of at most `message_limit()` bytes each; none for an empty array."""
    flat = array.reshape(-1).view(np.uint8)
    limit = message_limit()
    return [flat[start : start + limit] for start in range(0, flat.size, limit)]


def pack_program(outputs: tuple[tuple[tuple[int, int], ...], ...]) -> Array:
    """The output rows of an assignment as int64 triples (output, index into a, index into b)."""
    triples = [(q, x, y) for q, pairs in enumerate(outputs) for x, y in pairs]
    return np.asarray(triples, dtype=np.int64).reshape(-1, 3)


TRIVIAL = np.zeros((1, 3), dtype=np.int64)  # one output made of one pair: not sent
