"""The .npz format: .npy files in a zip archive, named `file.npz::member`.

A member that is stored as it is (numpy.savez) is mapped in place, like a .npy file. A compressed one
(numpy.savez_compressed) is unfolded into memory, checked against its CRC. An archive written by scipy.sparse.save_npz
is one sparse matrix.
"""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp

from cmm.core.errors import DataError, InputMissingError
from cmm.core.task import Array
from cmm.matrices import npy
from cmm.matrices.room import check_room
from cmm.matrices.sparse import from_scipy, sparse_memory
from cmm.matrices.stored import Deferred, Matrix, check_sides, parsing

DEFAULT_MEMBER = "C"
_HEADER = 1 << 20  # bytes in which a .npy header has to end
_PIECE = 1 << 22
_DEFLATE = 1032  # deflate cannot shrink further than to this fraction
_SPARSE = {"format.npy", "shape.npy", "data.npy"}
_REMEDY = "Write it with numpy.savez."


def open_array(path: Path, argument: str, member: str | None = None) -> Matrix:
    """The array in a member of a .npz file, mapped, or Deferred where it is compressed.

    Parameters
    ----------
    member : its name, with or without ".npy"; None where the archive has only one, or is a sparse matrix

    Raises
    ------
    InputMissingError : no such member
    DataError : no zip archive, several members and none named, encrypted, truncated, Python objects
    """
    with parsing(path, argument, "a .npz file", _REMEDY), zipfile.ZipFile(path) as archive:
        if member is None and set(archive.namelist()) >= _SPARSE:
            return _sparse(archive, path, argument)
        info = _choose(archive, path, argument, member)
        place = Path(f"{path}::{info.filename.removesuffix('.npy')}")
        shape, fortran, dtype, start = _described(archive, info, place, argument)
        if info.compress_type == zipfile.ZIP_STORED:
            return npy.mapped(path, place, argument, _offset(path, info) + start, shape, fortran, dtype)
        if len(shape) not in (1, 2):
            return np.broadcast_to(np.zeros((), dtype), shape)  # its dimensions are refused by the caller
    sides = (shape[0], shape[1] if len(shape) == 2 else 1)
    size = dtype.itemsize * sides[0] * sides[1]

    def load() -> Array:
        check_room(size, argument, f"{place} unfolded")
        with parsing(place, argument, "a .npz member", _REMEDY), zipfile.ZipFile(path) as archive:
            flat = _unfold(archive, info, start, size)
        return flat.view(dtype).reshape(sides, order="F" if fortran else "C")

    return Deferred(sides, dtype, load, size)


def _choose(archive: zipfile.ZipFile, path: Path, argument: str, member: str | None) -> zipfile.ZipInfo:
    names = archive.namelist()
    if member is not None:
        for name in (member, f"{member}.npy"):
            if name in names:
                return archive.getinfo(name)
        raise InputMissingError(argument, "must name a member of the archive", f"{path}::{member}", _listing(names))
    arrays = [name for name in dict.fromkeys(names) if name.endswith(".npy")]
    if not arrays:
        raise DataError(argument, "must hold a .npy member", f"{path} with {len(names)} others", _REMEDY)
    if len(arrays) > 1:
        raise DataError(argument, f"must name one of the members, as in {path.name}::NAME",
                        f"{path} with {len(arrays)} of them", _listing(arrays))  # fmt: skip
    return archive.getinfo(arrays[0])


def _listing(names: list[str]) -> str:
    shown = ", ".join(name.removesuffix(".npy")[:40] for name in names[:8]) or "none"
    return f"It has {shown}{', ...' if len(names) > 8 else ''}."


def _described(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: Path,
               argument: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:  # fmt: skip
    """(shape, Fortran order, dtype, where the elements start in the member)."""
    with archive.open(info) as stream:
        head = io.BytesIO(stream.read(_HEADER))
    shape, fortran, dtype = npy.header(head, place, argument)
    need = head.tell() + dtype.itemsize * npy.elements(shape)
    if info.file_size != need:
        raise DataError(argument, "must be a complete .npy member", f"{place} with {info.file_size} of {need} bytes",
                        "The archive is damaged: copy or save it again.")  # fmt: skip
    if info.compress_type == zipfile.ZIP_DEFLATED and need > _DEFLATE * info.compress_size + (1 << 16):
        raise DataError(argument, "must have a plausible size",
                        f"{place} with {need} bytes from {info.compress_size} compressed ones",
                        "The archive is damaged: copy or save it again.")  # fmt: skip
    return shape, fortran, dtype, head.tell()


def _offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member start: behind its local header, whose lengths the directory does not know."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(30)
    name, extra = struct.unpack("<HH", local[26:30])
    return info.header_offset + 30 + int(name) + int(extra)


def _unfold(archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int, size: int) -> Array:
    flat = np.empty(size, np.uint8)
    with archive.open(info) as stream:
        stream.read(start)
        done = 0
        while done < size:
            piece = stream.read(min(_PIECE, size - done))
            if not piece:
                raise EOFError(f"{done} of {size} bytes")
            flat[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        stream.read(1)  # the end, where the CRC is compared
    return flat


def _sparse(archive: zipfile.ZipFile, path: Path, argument: str) -> Matrix:
    """A matrix of scipy.sparse.save_npz."""
    place = Path(f"{path}::shape")
    with archive.open("shape.npy") as stream:
        sides = np.lib.format.read_array(io.BytesIO(stream.read(1 << 12)), allow_pickle=False).ravel().tolist()
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise DataError(argument, "must be a sparse matrix of two dimensions", f"{path} with shape {sides}", _REMEDY)
    check_sides(tuple(sides), argument, place)
    total = 0
    for info in archive.infolist():
        described = _described(archive, info, Path(f"{path}::{info.filename}"), argument)
        total += info.file_size
        if info.filename == "data.npy":
            data = described
    shape, dtype = (sides[0], sides[1]), data[2]
    nnz = npy.elements(data[0])

    def load() -> Matrix:
        check_room(3 * total, argument, f"{path}, a sparse matrix")
        with parsing(path, argument, "a sparse matrix", "Write it with scipy.sparse.save_npz."):
            matrix = sp.load_npz(path)
            if matrix.shape != shape:
                raise ValueError(f"shape {matrix.shape}")
            return from_scipy(matrix, argument, str(path))

    return Deferred(shape, dtype, load, min(sparse_memory(nnz, shape, dtype.itemsize), total * 64))


def write_array(file: IO[bytes], array: Array, member: str | None = None) -> None:
    """Write `array` as the only member of a new archive, not compressed. Raises OSError."""
    name = (member or DEFAULT_MEMBER).removesuffix(".npy") + ".npy"
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        archive.open(name, "w", force_zip64=True) as stream,
    ):
        npy.write_array(stream, array)
