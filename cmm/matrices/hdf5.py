"""HDF5 datasets, named `file.h5::/group/dataset`. Needs the package h5py (the extra `hdf5`).

A dataset in one piece is mapped from the file, like a .npy file. A chunked one (compressed or not) is read block by
block, aligned with its chunks, so that no chunk is unpacked again and again.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from cmm.core.errors import DataError, InputMissingError, UsageError
from cmm.core.task import Array
from cmm.matrices.npy import elements, slabs
from cmm.matrices.room import check_room
from cmm.matrices.stored import TALLEST, Matrix, Stored, check_sides, parsing

DEFAULT_MEMBER = "C"
CACHE_BYTES = 64 << 20  # of bands, or CACHE_PART of the matrix if that is more
CACHE_PART = 64
BAND_BYTES = 1 << 20  # a band has as many rows of chunks as fit into this, at least one
_LISTED = 20  # datasets looked for when none is named
_REMEDY = "Check it with h5ls, or write it again."


def require(argument: str) -> Any:
    """The package h5py. Raises UsageError where it is not installed."""
    try:
        return import_module("h5py")
    except ImportError as error:
        raise UsageError(argument, "needs the package h5py for HDF5 files", str(error),
                         "Install it (pip install 'cmm[hdf5]'), or use .npy files.") from None  # fmt: skip


def open_array(path: Path, argument: str, member: str | None = None) -> Matrix:
    """The dataset `member` of an HDF5 file; None where the file has only one.

    Raises
    ------
    InputMissingError : no such dataset
    DataError : no HDF5 file, truncated, a group, several datasets and none named, not numeric, elements in other files
    OSError : the file cannot be opened, or is being written by another program
    """
    h5py = require(argument)
    with parsing(path, argument, "an HDF5 file", _REMEDY):
        file = h5py.File(path, "r", locking="best-effort")
        try:
            found = _open(h5py, file, path, argument, member)
        except BaseException:
            file.close()
            raise
        if not isinstance(found, Stored):
            file.close()
        return found


def _open(h5py: Any, file: Any, path: Path, argument: str, member: str | None) -> Matrix:
    dataset = _choose(h5py, file, path, argument, member)
    place = Path(f"{path}::{dataset.name}")
    if dataset.shape is None or dataset.dtype.kind not in "biufc":
        raise DataError(argument, "must hold numbers (bool, integer, float or complex)",
                        f"{place} with {dataset.dtype if dataset.shape is not None else 'nothing'}",
                        "Name another dataset.")  # fmt: skip
    _check_inside(dataset, path, argument, place)
    check_sides(dataset.shape, argument, place)
    if len(dataset.shape) not in (1, 2):
        return np.broadcast_to(np.zeros((), dataset.dtype), dataset.shape)  # its dimensions are refused by the caller
    offset = _contiguous(h5py, dataset)
    if offset is not None and offset + dataset.nbytes <= path.stat().st_size:
        return np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
    return ChunkedMatrix(h5py, file, dataset, argument, place)


def _choose(h5py: Any, file: Any, path: Path, argument: str, member: str | None) -> Any:
    if member is not None and member not in file:
        raise InputMissingError(argument, "must name a dataset of the file", f"{path}::{member}",
                                _listing(_datasets(h5py, file)))  # fmt: skip
    try:
        item = file if member is None else file[member]
    except KeyError:
        raise InputMissingError(argument, "must name a dataset of the file", f"{path}::{member}, a link to nothing",
                                "Check it with h5ls.") from None  # fmt: skip
    if isinstance(item, h5py.Dataset):
        return item
    if not isinstance(item, h5py.Group):
        raise DataError(argument, "must name a dataset", f"{path}::{member}, a {type(item).__name__}", _REMEDY)
    names = _datasets(h5py, item)
    if len(names) != 1:
        raise DataError(argument, f"must name one dataset, as in {path.name}::/group/dataset",
                        f"{path} with {len(names) if len(names) < _LISTED else 'many'} of them",
                        _listing(names))  # fmt: skip
    return item[names[0]]


def _check_inside(dataset: Any, path: Path, argument: str, place: Path) -> None:
    """Refuse elements that lie in other files: nobody watches whether those change, and HDF5 reads the missing parts of
    a virtual dataset as zeros. Raises DataError."""
    if not os.path.samefile(dataset.file.filename, path):
        raise DataError(argument, "must name a dataset of the file itself",
                        f"{place}, reached by a link into {dataset.file.filename}",
                        f"Name it as {dataset.file.filename}::{dataset.name}.")  # fmt: skip
    parts = dataset.virtual_sources() if dataset.is_virtual else ()
    if dataset.external or not all(_plain_source(dataset.file, part) for part in parts):
        kind = "whose elements are in external files" if dataset.external else "a virtual dataset of others"
        raise DataError(argument, "must have its elements in the file itself", f"{place}, {kind}",
                        "Copy it into a dataset of its own.")  # fmt: skip


def _plain_source(file: Any, source: Any) -> bool:
    """Whether a part of a virtual dataset is there, in the same file."""
    found = file.get(source.dset_name) if source.file_name == "." else None
    if found is None or not hasattr(found, "is_virtual") or not os.path.samefile(found.file.filename, file.filename):
        return False
    return not (found.is_virtual or found.external)


def _datasets(h5py: Any, group: Any) -> list[str]:
    """Names of the first datasets below a group."""
    names: list[str] = []

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset):
            names.append(name)
        return True if len(names) >= _LISTED else None

    group.visititems(visit)
    return names


def _listing(names: list[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:8]) or "none"
    return f"It has {shown}{', ...' if len(names) > 8 else ''}."


def _contiguous(h5py: Any, dataset: Any) -> int | None:
    """Where the elements lie in the file if they can be mapped: in one piece, as NumPy knows the type."""
    if dataset.chunks is not None:
        return None
    plain = h5py.h5t.py_create(dataset.dtype, logical=True).equal(dataset.id.get_type())
    complete = dataset.id.get_storage_size() == dataset.nbytes > 0
    contiguous = dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    return dataset.id.get_offset() if plain and complete and contiguous else None


class ChunkedMatrix(Stored):
    """A dataset of one or two dimensions, read block by block.

    Blocks lower than a row of chunks are cut from bands as high as that, which are kept while they are being used:
    encoding goes down several column chunks at a time, in steps of a few rows.
    """

    def __init__(self, h5py: Any, file: Any, dataset: Any, argument: str, place: Path) -> None:
        flat = len(dataset.shape) == 1
        super().__init__((dataset.shape[0], 1 if flat else dataset.shape[1]), dataset.dtype)
        chunks = dataset.chunks or (TALLEST, *dataset.shape[1:])  # not in chunks: any blocks are as good
        self.chunk = (int(chunks[0]), 1 if flat else int(chunks[1]))
        self._file, self._place, self._argument = file, place, argument
        self._limit = min(self.nbytes, max(CACHE_BYTES, self.nbytes // CACHE_PART))
        self._bands: OrderedDict[tuple[int, int, int], Array] = OrderedDict()
        self._kept = self._unpacked = 0
        self._dataset = self._with_cache(h5py, dataset) if dataset.chunks and self.size else dataset

    def _with_cache(self, h5py: Any, dataset: Any) -> Any:
        """The dataset opened again, with room in HDF5 for one chunk; for a row of chunks where they are too tall for
        bands."""
        one = elements(self.chunk) * self.itemsize
        row = one * -(-self.shape[1] // self.chunk[1])
        self._unpacked = one if self.chunk[0] <= TALLEST else max(one, min(row, self._limit))
        check_room(self.memory, self._argument, f"a row of chunks of {self._place}")
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(max(521, 10 * (self._unpacked // one) | 1), self._unpacked, 0.75)
        return h5py.Dataset(h5py.h5d.open(self._file.id, dataset.name.encode(), access))

    @property
    def memory(self) -> int:
        return self._unpacked + self._limit

    def tile(self, limit: int) -> tuple[int, int, bool]:
        """Whole chunks; of tall ones a part at a time, the next one below it."""
        high, wide = (min(side, most) for side, most in zip(self.chunk, self.shape, strict=True))
        wide *= max(1, limit // max(1, high * wide * self.itemsize))
        wide = max(1, min(wide, self.shape[1]))
        high *= max(1, min(TALLEST // max(1, high), limit // max(1, high * wide * self.itemsize)))
        return max(1, min(high, TALLEST, self.shape[0])), wide, self.chunk[0] > TALLEST

    def read(self, rows: slice, cols: slice) -> Array:
        width = cols.stop - cols.start
        if rows.stop == rows.start or not width:
            return np.empty((rows.stop - rows.start, width), self.dtype)
        high = self.chunk[0] * max(1, BAND_BYTES // (self.chunk[0] * width * self.itemsize))
        high = max(1, min(high, TALLEST, self._limit // (8 * width * self.itemsize)))
        if rows.stop - rows.start >= high:
            return self._fetch(rows, cols)
        parts = [
            self._band(k * high, high, cols)[max(0, rows.start - k * high) : rows.stop - k * high]
            for k in range(rows.start // high, (rows.stop - 1) // high + 1)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _band(self, start: int, high: int, cols: slice) -> Array:
        key = (start, cols.start, cols.stop)
        if key in self._bands:
            self._bands.move_to_end(key)
            return self._bands[key]
        band = self._fetch(slice(start, min(start + high, self.shape[0])), cols)
        band.flags.writeable = False
        self._kept += band.nbytes
        while self._bands and self._kept > self._limit:
            self._kept -= self._bands.popitem(last=False)[1].nbytes
        self._bands[key] = band
        return band

    def _fetch(self, rows: slice, cols: slice) -> Array:
        with parsing(self._place, self._argument, "a dataset", _REMEDY):
            if len(self._dataset.shape) == 1:
                return self._dataset[rows].reshape(-1, 1)
            return self._dataset[rows, cols]


def write_array(file: IO[bytes], array: Array, member: str | None = None) -> None:
    """Write `array` as the only dataset of a new HDF5 file, in one piece. `file` names the place.

    HDF5 writes the frame, and the elements are put into it here: a disk that fills up is then an ordinary OSError, and
    not a file that HDF5 can neither write nor close.

    Raises
    ------
    OSError : with the system's error number, where there is one
    """
    h5py = require("--out")
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    try:
        with h5py.File(file.name, "w", locking="best-effort") as target:
            name = member or DEFAULT_MEMBER
            offset = target.create_dataset(name, array.shape, array.dtype, dcpl=layout).id.get_offset()
    except RuntimeError as error:
        raise OSError(str(error)) from error
    if array.size:
        file.seek(offset)
        for slab in slabs(array):
            file.write(slab.view(np.uint8).data)
