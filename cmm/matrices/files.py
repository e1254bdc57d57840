"""Matrices from files and to files: opened memory-mapped, read by blocks, written under a temporary name and renamed.

A format is one module with `open_array(path, argument)` and `write_array(file, array)` and one line in
`cmm.matrices.formats`. Formats that hold several matrices take the name of one as a further argument (`FILE::NAME`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from cmm.core.errors import DataError, InputMissingError, OutputError, UsageError
from cmm.core.spec import split_member
from cmm.core.task import Array
from cmm.matrices import formats
from cmm.matrices.room import check_room
from cmm.matrices.sparse import from_scipy
from cmm.matrices.stored import TALLEST, Deferred, Matrix, Stored

EXACT = 1 << 53  # every integer up to 2^53 in absolute value is a float64
_TILE = 1 << 20  # bytes looked at together when a matrix is scanned: they stay in the cache


@dataclass(frozen=True, eq=False)
class MatrixSource:
    """A matrix as it lies in memory or in a file; nothing is copied or converted until a block is asked for.

    Attributes
    ----------
    array : 2-D, of any byte order and numeric dtype: an ndarray or memmap of any strides, or a `Stored` matrix
    argument : what the user called it, for messages ("--a")
    path : the file, with the name of the matrix in it; or None
    stamp : (inode, size, time of change) of the file when it was opened, or None
    """

    array: Matrix
    argument: str
    path: Path | None = None
    stamp: tuple[int, int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self.array.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def bytes(self) -> int:
        """Size of the elements."""
        return self.array.nbytes

    @property
    def memory(self) -> int:
        """Bytes of it that are held in memory; a mapped file needs none."""
        if isinstance(self.array, Stored):
            return self.array.memory
        return 0 if isinstance(self.array, np.memmap) else self.bytes

    @property
    def name(self) -> str:
        return str(self.path) if self.path else f"an array of shape {self.shape}"

    def check_unchanged(self) -> None:
        """Raise DataError if somebody has written to the file since it was opened. One that was deleted or replaced
        by another of its name has not changed: the old content is what was read, to the end."""
        if self.path is None or self.stamp is None:
            return
        now = _stamp(Path(split_member(str(self.path))[0]))
        if now is not None and now[0] == self.stamp[0] and now != self.stamp:
            raise DataError(self.argument, "must not change while it is read", f"{self.path}, which was written to",
                            "Run again when nobody writes to it.")  # fmt: skip


# ---- input -------------------------------------------------------------------------------------------------------


def open_matrix(path: str | os.PathLike[str], argument: str = "--a", *, load: bool = True) -> MatrixSource:
    """Open a matrix file, memory-mapped or read by blocks where the format allows it. A 1-D array is one column.

    Parameters
    ----------
    path : the file; FILE::NAME for one of several matrices in a file
    load : read what has to be read as a whole (text, compressed .npz) now. Otherwise when it is first looked at; shape
        and dtype are known either way

    Raises
    ------
    InputMissingError : no such file or matrix in it, a directory, not readable (exit code 66)
    DataError : empty, truncated, unknown format, several matrices and none named, too large for the memory, not
        numeric, not 1-D or 2-D (exit code 65)
    UsageError : a package for the format is missing (exit code 64)
    """
    text, member = split_member(os.fspath(path))
    file, place = Path(text), Path(path)
    _check_readable(file, argument)
    stamp = _stamp(file)
    module = formats.module_of(file)
    if module is None:
        raise DataError(
            argument, f"must be one of the formats {formats.readable()}", file, "Convert it with numpy.save."
        )
    try:
        array: Matrix = module.open_array(file, argument, *formats.member_of(file, member))
        check_room(32 * sum(array.shape), argument, f"vectors as long as the sides of {place}, {array.shape}")
        if load and isinstance(array, Deferred):
            array = array.load()
    except OSError as error:
        raise InputMissingError(argument, "must be readable", f"{file} ({error.strerror or error})",
                                "Check the file and its permissions.") from error  # fmt: skip
    return replace(as_source(array, argument, place), stamp=stamp)


def as_source(array: npt.ArrayLike | Stored, argument: str, path: Path | None = None) -> MatrixSource:
    """Wrap a matrix that is already there: anything NumPy takes for an array, or a SciPy sparse matrix. A 1-D array is
    one column. Raises DataError as `open_matrix` does."""
    if isinstance(array, np.ma.MaskedArray):
        raise DataError(argument, "must not be a masked array", f"shape {array.shape}", "Fill it: array.filled(0).")
    data: Any = from_scipy(array, argument, str(path or "")) if sp.issparse(array) else array
    data = data if isinstance(data, Stored) else np.asanyarray(data)
    name = f"{path} with " if path else ""
    if data.dtype.kind not in "biufc":
        raise DataError(argument, "must hold numbers (bool, integer, float or complex)", f"{name}dtype {data.dtype}",
                        "Convert it with array.astype(float).")  # fmt: skip
    if data.dtype.kind in "fc" and data.dtype.itemsize > (8 if data.dtype.kind == "f" else 16):
        raise DataError(argument, "must be at most float64 or complex128", f"{name}dtype {data.dtype}",
                        "Convert it with array.astype(float).")  # fmt: skip
    if data.ndim not in (1, 2):
        raise DataError(argument, "must be a matrix or a vector (2 or 1 dimensions)", f"{name}shape {data.shape}",
                        "Reshape it to two dimensions.")  # fmt: skip
    return MatrixSource(data.reshape(-1, 1) if data.ndim == 1 else data, argument, path)


def _check_readable(file: Path, argument: str) -> None:
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputMissingError(argument, "must be an existing file", file, "Check the name.") from None
    except (OSError, ValueError) as error:
        raise InputMissingError(argument, "must be readable", f"{file} ({error})", "Check the name.") from None
    if stat.S_ISDIR(mode):
        raise InputMissingError(argument, "must be a file", f"the directory {file}", "Name the file in it.")
    if not stat.S_ISREG(mode):
        raise InputMissingError(argument, "must be a regular file (it is read memory-mapped)", file,
                                "Copy the data to a file first.")  # fmt: skip
    if not os.access(file, os.R_OK):
        raise InputMissingError(argument, "must be readable", f"{file} (permission denied)", "Check its permissions.")


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


# ---- output ------------------------------------------------------------------------------------------------------


def check_output(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = (), overwrite: bool = False,
                 *, argument: str = "--out", matrix: bool = True, size: int = 0) -> None:  # fmt: skip
    """Judge before the work whether `path` can be written after it.

    Parameters
    ----------
    inputs : files that must not be overwritten, whatever `overwrite` says
    overwrite : whether an existing file may be replaced
    matrix : the suffix must be a known matrix format (False for reports and figures)
    size : bytes that have to fit on the file system

    Raises
    ------
    OutputError : directory missing or not writable, a directory itself, existing, an input, no space (exit code 73)
    UsageError : suffix of no known format (exit code 64)
    """
    file, member = _place(path) if matrix else (Path(path), None)
    if matrix:
        _check_format(file, member, argument)
    try:
        folder, existing = file.is_dir(), file.exists()
    except OSError as error:  # a name too long for the file system, say
        raise OutputError(argument, "must be a name that the file system takes", f"{file} ({error.strerror or error})",
                          "Choose another name.") from error  # fmt: skip
    if folder:
        raise OutputError(argument, "must be a file", f"the directory {file}", "Name a file in it.")
    if existing:
        _check_existing(file, inputs, overwrite, argument)
    parent = Path(os.path.realpath(file)).parent
    if not parent.is_dir():
        raise OutputError(argument, "must lie in an existing directory", file, f"Create {parent} first.")
    try:
        with tempfile.TemporaryFile(dir=parent):  # the only test that no mount option or quota can fool
            pass
        free = shutil.disk_usage(parent).free
    except OSError as error:
        raise OutputError(argument, "must lie in a directory that can be written to",
                          f"{file} ({error.strerror or error})", "Choose another directory.") from error  # fmt: skip
    if free < size:
        raise OutputError(argument, f"needs {size} bytes on its file system", f"{free} free", "Make room for it.")


def _place(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    text, member = split_member(os.fspath(path))
    return Path(text), member


def _check_format(file: Path, member: str | None, argument: str) -> Any:
    """The module that writes this file. Raises UsageError."""
    module = formats.module_of(file)
    if module is None or formats.suffix_of(file) in formats.READ_ONLY:
        raise UsageError(argument, f"must be one of the formats {formats.writable()}", file, "Choose such a suffix.")
    if hasattr(module, "require"):
        module.require(argument)
    if member is not None and {".", ".."} & set(member.split("/")):
        raise UsageError(argument, "must name a matrix without . and ..", f"{file}::{member}", "Choose another name.")
    return module


def _check_existing(file: Path, inputs: Iterable[str | os.PathLike[str]], overwrite: bool, argument: str) -> None:
    for other in (_place(path)[0] for path in inputs):
        if os.path.exists(other) and os.path.samefile(file, other):
            raise OutputError(argument, "must not be an input", file, "Choose another name.")
    if not overwrite:
        raise OutputError(argument, "must not exist yet", file, "Choose another name or pass --overwrite.")
    if not file.is_file():
        raise OutputError(argument, "must be a regular file to be overwritten", file, "Choose another name.")


def write_matrix(path: str | os.PathLike[str], matrix: Array, *, argument: str = "--out") -> None:
    """Write a 2-D array so that `path` is either as it was or complete and on disk, never in between.

    Raises
    ------
    OutputError : with the operating system's text (no space left, permission denied, ...)
    UsageError : suffix of no known format, or a package for it is missing
    """
    target, member = _place(path)
    module = _check_format(target, member, argument)
    _replace(target, lambda file: module.write_array(file, matrix, *formats.member_of(target, member)), argument)


def write_atomic(path: str | os.PathLike[str], content: str | bytes, *, argument: str = "--report") -> None:
    """Write text (UTF-8) or bytes as `write_matrix` does. Raises OutputError."""
    data = content.encode() if isinstance(content, str) else content
    _replace(path, lambda file: file.write(data), argument)


def _replace(path: str | os.PathLike[str], write: Callable[[IO[bytes]], Any], argument: str) -> None:
    """Temporary name in the same directory, write, sync, rename, sync the directory."""
    target = Path(os.path.realpath(path))  # a link stays a link, its target is replaced
    temporary = target.with_name(f".cmm-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _sync_directory(target.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(argument, "must be writable", f"{path} ({error.strerror or error})",
                              "Make room or choose another place.") from error  # fmt: skip
        raise


def _sync_directory(directory: Path) -> None:
    """Make the rename durable. Some file systems cannot sync a directory; the file itself is synced in any case."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


# ---- dtypes and blocks -------------------------------------------------------------------------------------------


def working_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype a product of such matrices is computed in: float32, float64, complex64 or complex128, native.

    Floats promote as in NumPy (float32 with complex128 is complex128), except that float16 counts as float32: BLAS has
    no half precision, and the conversion is exact. Integers and bool count as float64 (see `check_exact`).

    Raises
    ------
    DataError : long double, which no worker can multiply
    """
    found: list[np.dtype[Any]] = []
    for dtype in dtypes:
        if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
            raise DataError("dtype", "must be at most float64 or complex128", dtype,
                            "Convert it with array.astype(float).")  # fmt: skip
        small = np.dtype(np.float32) if dtype.kind == "f" else dtype
        found.append(np.dtype(np.float64) if dtype.kind in "biu" else small if dtype.itemsize == 2 else dtype)
    return np.result_type(*found).newbyteorder("=")


def check_exact(source: MatrixSource) -> None:
    """Refuse integers that float64 cannot hold. Looks at blocks of rows; nothing is copied.

    Raises
    ------
    DataError : an integer beyond 2^53 in absolute value, naming its column
    """
    array = source.array
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return
    for rows, cols in tiles(array):
        block = array[rows, cols]
        bad = block.max(axis=0) > EXACT
        if array.dtype.kind == "i":  # no absolute values: the most negative integer has none
            bad |= block.min(axis=0) < -EXACT
        if bad.any():
            raise DataError(source.argument, "integers must be at most 2^53 in absolute value to be converted exactly",
                            f"a larger one in column {cols.start + int(np.argmax(bad))} of {source.name}",
                            "Divide the column, or convert with array.astype(float) if rounding is fine.")  # fmt: skip


def tiles(array: Matrix, limit: int = _TILE) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) of tiles of about `limit` bytes that cover a 2-D array, in the order in which it lies in memory
    (or in its file); at most TALLEST rows each, so that sums over a tile's column stay accurate in single precision."""
    rows, cols = array.shape
    height, width, by_columns = array.tile(limit) if isinstance(array, Stored) else _array_tile(array, limit)
    bands = [slice(k, min(k + height, rows)) for k in range(0, rows, height)]
    strips = [slice(k, min(k + width, cols)) for k in range(0, cols, width)]
    if by_columns:
        yield from ((band, strip) for strip in strips for band in bands)
    else:
        yield from ((band, strip) for band in bands for strip in strips)


def _array_tile(array: Array, limit: int) -> tuple[int, int, bool]:
    rows, cols = array.shape
    elements = max(1, limit // array.itemsize)
    by_columns = rows > 1 and abs(array.strides[0]) < abs(array.strides[1])
    if by_columns:
        height = max(1, min(rows, TALLEST))
        return height, max(1, elements // height), True
    width = max(1, min(cols, 1 << 15))
    return min(TALLEST, max(1, elements // width)), width, False


def column_block(array: Matrix, rows: slice, cols: slice, dtype: np.dtype[Any], *, conjugate: bool = False,
                 out: Array | None = None) -> Array:  # fmt: skip
    """Rows x columns of `array` as a C-contiguous native block of `dtype`, copied once whatever the strides.

    Parameters
    ----------
    conjugate : take complex conjugates (op = H)
    out : where to put it, at least as large in both directions; its other elements become zero (padding)
    """
    part = array[rows, cols]
    height, width = part.shape
    if out is None:
        out = np.empty((height, width), dtype)
    elif out.shape != part.shape:
        out[height:] = 0
        out[:height, width:] = 0
    target = out[:height, :width]
    np.copyto(target, part, casting="same_kind")
    if conjugate and dtype.kind == "c":
        np.conjugate(target, out=target)  # np.negative in place errs on some strides (NumPy 2.4 on AVX-512)
    return out
