"""Matrices from files and to files: opened memory-mapped, read by blocks, written under a temporary name and renamed.

A format is one module with `open_array(path, argument)` and `write_array(file, array)` and one line in FORMATS.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cmm.core.errors import DataError, InputMissingError, OutputError, UsageError
from cmm.core.task import Array

FORMATS: dict[str, str] = {
    ".npy": "cmm.matrices.npy",
}

EXACT = 1 << 53  # every integer up to 2^53 in absolute value is a float64
_TILE = 1 << 20  # bytes looked at together when a matrix is scanned: they stay in the cache


@dataclass(frozen=True, eq=False)
class MatrixSource:
    """A matrix as it lies in memory or in a file; nothing is copied or converted until a block is asked for.

    Attributes
    ----------
    array : 2-D ndarray or memmap of any strides, byte order and numeric dtype
    argument : what the user called it, for messages ("--a")
    path : the file, or None
    """

    array: Array
    argument: str
    path: Path | None = None

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
    def name(self) -> str:
        return str(self.path) if self.path else f"an array of shape {self.shape}"


# ---- input -------------------------------------------------------------------------------------------------------


def open_matrix(path: str | os.PathLike[str], argument: str = "--a") -> MatrixSource:
    """Open a matrix file memory-mapped. A 1-D file is one column.

    Raises
    ------
    InputMissingError : no such file, a directory, not readable (exit code 66)
    DataError : empty, truncated, unknown format, not numeric, not 1-D or 2-D (exit code 65)
    """
    file = Path(path)
    _check_readable(file, argument)
    module = _format(file)
    if module is None:
        raise DataError(argument, f"must be one of the formats {_known()}", file, "Convert it with numpy.save.")
    try:
        array: Array = module.open_array(file, argument)
    except OSError as error:
        raise InputMissingError(argument, "must be readable", f"{file} ({error.strerror or error})",
                                "Check the file and its permissions.") from error  # fmt: skip
    return as_source(array, argument, file)


def as_source(array: npt.ArrayLike, argument: str, path: Path | None = None) -> MatrixSource:
    """Wrap an array that is already there. A 1-D array is one column. Raises DataError as `open_matrix` does."""
    if isinstance(array, np.ma.MaskedArray):
        raise DataError(argument, "must not be a masked array", f"shape {array.shape}", "Fill it: array.filled(0).")
    data = np.asanyarray(array)
    name = f"{path} with " if path else ""
    if data.dtype.kind not in "biufc":
        raise DataError(argument, "must hold numbers (bool, integer, float or complex)", f"{name}dtype {data.dtype}",
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


def _format(file: Path) -> Any:
    """The module that reads and writes this file, by its suffix; None when there is none."""
    module = FORMATS.get(file.suffix.lower())
    return None if module is None else import_module(module)


def _known() -> str:
    return ", ".join(sorted(FORMATS))


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
    file = Path(path)
    if matrix and file.suffix.lower() not in FORMATS:
        raise UsageError(argument, f"must be one of the formats {_known()}", file, "Choose such a suffix.")
    if file.is_dir():
        raise OutputError(argument, "must be a file", f"the directory {file}", "Name a file in it.")
    if file.exists():
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


def _check_existing(file: Path, inputs: Iterable[str | os.PathLike[str]], overwrite: bool, argument: str) -> None:
    for other in inputs:
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
    UsageError : suffix of no known format
    """
    module = _format(Path(path))
    if module is None:
        raise UsageError(argument, f"must be one of the formats {_known()}", path, "Choose such a suffix.")
    _replace(path, lambda file: module.write_array(file, matrix), argument)


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


def tiles(array: Array, limit: int = _TILE) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) of tiles of about `limit` bytes that cover a 2-D array, in the order in which it lies in memory
    (or in its file); at most 4096 rows each, so that sums over a tile's column stay accurate in single precision."""
    rows, cols = array.shape
    elements = max(1, limit // array.itemsize)
    by_columns = rows > 1 and abs(array.strides[0]) < abs(array.strides[1])
    if by_columns:
        height = max(1, min(rows, 4096))
        width = max(1, elements // height)
    else:
        width = max(1, min(cols, 1 << 15))
        height = min(4096, max(1, elements // width))
    bands = [slice(k, min(k + height, rows)) for k in range(0, rows, height)]
    strips = [slice(k, min(k + width, cols)) for k in range(0, cols, width)]
    if by_columns:
        yield from ((band, strip) for strip in strips for band in bands)
    else:
        yield from ((band, strip) for band in bands for strip in strips)


def column_block(array: Array, rows: slice, cols: slice, dtype: np.dtype[Any], *, conjugate: bool = False,
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
    else:
        out[height:] = 0
        out[:height, width:] = 0
    target = out[:height, :width]
    np.copyto(target, part, casting="same_kind")
    if conjugate and dtype.kind == "c":
        np.negative(target.imag, out=target.imag)
    return out
