"""Matrices that are no arrays: compressed or chunked in a file, sparse, or not read yet.

They answer what cmm asks of an array (shape, dtype, blocks by slices, T) and hand out ordinary arrays, one block at a
time. Whoever goes through all elements uses `cmm.matrices.files.tiles`, which asks a stored matrix how it likes to be
read.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cmm.core.errors import CmmError, DataError
from cmm.core.task import Array

TALLEST = 4096  # rows of a tile: sums over its columns then stay accurate in single precision


class Stored(ABC):
    """A matrix read by blocks.

    Attributes
    ----------
    shape, dtype : as of an array; always two dimensions
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype

    @abstractmethod
    def read(self, rows: slice, cols: slice) -> Array:
        """The block, which may be shared: not to be written to. Slices have step 1 and lie within the shape."""

    @property
    def memory(self) -> int:
        """Bytes that it keeps in memory from the first read on."""
        return 0

    def tile(self, limit: int) -> tuple[int, int, bool]:
        """(rows, columns, by columns): blocks of about `limit` bytes that are cheap to read, and whether the next one
        is below (by columns) or beside."""
        width = max(1, min(self.shape[1], limit // self.itemsize))
        return max(1, min(self.shape[0], TALLEST, limit // (self.itemsize * width))), width, False

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Stored:  # noqa: N802, as arrays have it
        return Transposed(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        """`matrix[rows, cols]` or `matrix[rows]` with slices of step 1; rows may also be increasing row numbers."""
        rows, cols = index if isinstance(index, tuple) else (index, slice(None))
        if isinstance(rows, slice):
            return self.read(_span(rows, self.shape[0]), _span(cols, self.shape[1]))
        return self._some(np.asarray(rows), _span(cols, self.shape[1]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All of it: what np.asarray makes. For small matrices and tests."""
        whole = self.read(slice(0, self.shape[0]), slice(0, self.shape[1]))
        return whole if dtype is None else whole.astype(dtype)

    def _some(self, rows: Array, cols: slice) -> Array:
        """Numbered rows, read in runs of neighbours."""
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        found = [self.read(slice(int(run[0]), int(run[-1]) + 1), cols) for run in runs if len(run)]
        return np.concatenate(found) if found else np.empty((0, cols.stop - cols.start), self.dtype)


Matrix: TypeAlias = Array | Stored


def _span(part: slice, length: int) -> slice:
    start, stop, step = part.indices(length)
    if step != 1:
        raise IndexError(f"a stored matrix is read in steps of 1, not {step}")
    return slice(start, max(start, stop))


class Transposed(Stored):
    """The transpose of a stored matrix."""

    def __init__(self, base: Stored) -> None:
        super().__init__((base.shape[1], base.shape[0]), base.dtype)
        self._base = base

    @property
    def T(self) -> Stored:  # noqa: N802
        return self._base

    def read(self, rows: slice, cols: slice) -> Array:
        return self._base.read(cols, rows).T

    def tile(self, limit: int) -> tuple[int, int, bool]:
        height, width, by_columns = self._base.tile(limit)
        return width, height, not by_columns


class Deferred(Stored):
    """A matrix whose shape is known and whose content has to be read as a whole, which happens once, when needed.

    Parameters
    ----------
    load : reads it; the result has this shape and dtype, or is sparse or dense as it pays
    memory : bytes that the loaded matrix will take
    """

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], load: Callable[[], Matrix], memory: int) -> None:
        super().__init__(shape, dtype)
        self._load, self._memory = load, memory
        self._loaded: Matrix | None = None

    @property
    def memory(self) -> int:
        return self._memory

    def load(self) -> Matrix:
        """The matrix itself. Raises what reading the file raises."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def read(self, rows: slice, cols: slice) -> Array:
        return self.load()[rows, cols]


@contextmanager
def parsing(path: Path, argument: str, kind: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library says about the content of a file into one DataError.

    Parsers of damaged files raise about everything (zlib.error, struct.error, KeyError, OverflowError, ...). Errors of
    the operating system, which have a number, pass; so do our own.
    """
    try:
        yield
    except CmmError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, 0, errno.EINVAL):
            raise
        text = " ".join((str(error) or type(error).__name__).split())
        raise DataError(argument, f"must be {kind} that can be read", f"{path} ({text[:160]})", remedy) from error


def check_sides(shape: tuple[int, ...], argument: str, path: Path) -> None:
    """Refuse dimensions that no machine can count; zeros would hide them from every test of sizes."""
    if any(not isinstance(side, int) or not 0 <= side < 1 << 40 for side in shape):
        raise DataError(argument, "must have a valid header, with dimensions from 0 to 2^40",
                        f"{path} with shape {shape}",
                        "The header is damaged: copy or write the file again.")  # fmt: skip
