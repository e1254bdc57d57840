"""The .npy format: memory-mapped reading and plain writing, without pickle.

Versions 1 to 3, C and Fortran order, any byte order. NumPy's own header functions do the parsing; the array is mapped
here so that every way a file can be wrong gets its own message.
Source: NEP 1 and the description in `numpy.lib.format`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from cmm.core.errors import DataError
from cmm.core.task import Array
from cmm.matrices.stored import check_sides

_HEADER = 1 << 20  # bytes in which a header has to end
_SLAB = 1 << 24  # bytes written at a time: OSError then carries its errno, which ndarray.tofile loses


def open_array(path: Path, argument: str) -> Array:
    """The array in a .npy file as a read-only memory map (an ordinary array when it has no elements).

    Raises
    ------
    DataError : empty, truncated or no .npy file, Python objects
    OSError : the file cannot be opened
    """
    with path.open("rb") as file:
        head = io.BytesIO(file.read(_HEADER))
    shape, fortran, dtype = header(head, path, argument)
    return mapped(path, path, argument, head.tell(), shape, fortran, dtype)


def mapped(path: Path, place: Path, argument: str, offset: int, shape: tuple[int, ...], fortran: bool,
           dtype: np.dtype[Any]) -> Array:  # fmt: skip
    """The elements that start at byte `offset` of a file. `place`: what messages call it. Raises DataError."""
    need = offset + dtype.itemsize * elements(shape)
    have = path.stat().st_size
    if have < need:
        raise DataError(argument, "must be a complete .npy file", f"{place} with {have} of {need} bytes",
                        "It is truncated: copy or save it again.")  # fmt: skip
    if need == offset:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def header(file: IO[bytes], path: Path, argument: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether in Fortran order, dtype) from the start of a file, which is left behind its header.

    Parameters
    ----------
    path : what messages call it

    Raises
    ------
    DataError : no .npy header, or one of Python objects
    """
    remedy = "Write it with numpy.save."
    try:
        version = npy.read_magic(file)
    except ValueError:
        file.seek(0, 2)
        what = f"{path}, an empty file" if file.tell() == 0 else f"{path}, which has no .npy signature"
        raise DataError(argument, "must be a .npy file", what, remedy) from None
    # Version 3 differs from 2 only in the encoding of field names, and arrays with fields are refused anyway.
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise DataError(argument, "must be a .npy file of version 1 to 3", f"{path}, version {version}", remedy)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers of Python 2
            shape, fortran, dtype = readers[version](file)
    except Exception as error:  # NumPy evaluates the header as a Python literal: anything can come of a damaged one
        text = str(error).splitlines()[0][:120] if str(error) else "unreadable"
        raise DataError(argument, "must have a valid .npy header", f"{path} ({text})", remedy) from None
    if dtype.hasobject:
        raise DataError(argument, "must not hold Python objects", f"{path} with dtype {dtype}",
                        "Convert it with array.astype(float) and save it again.")  # fmt: skip
    if dtype.shape or not all(type(side) is int for side in shape):  # NumPy lets True pass for 1
        raise DataError(argument, "must have a valid .npy header", f"{path} ({dtype}, shape {shape})", remedy)
    check_sides(shape, argument, path)
    return shape, fortran, dtype


def elements(shape: tuple[int, ...]) -> int:
    """The product, as a Python integer: nothing overflows."""
    count = 1
    for size in shape:
        count *= size
    return count


def write_array(file: IO[bytes], array: Array) -> None:
    """Write `array` (2-D, any strides) to an open binary file. Raises OSError with the system's error number."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    described = {"descr": npy.dtype_to_descr(array.dtype), "fortran_order": fortran, "shape": array.shape}
    npy.write_array_header_1_0(file, described)
    for slab in slabs(array.T if fortran else array):
        file.write(slab.view(np.uint8).data)


def slabs(array: Array) -> Iterator[Array]:
    """C-contiguous row slabs of about _SLAB bytes that together are the array."""
    if array.size == 0:
        return
    rows = max(1, _SLAB // (array.shape[1] * array.itemsize))
    for start in range(0, array.shape[0], rows):
        yield np.ascontiguousarray(array[start : start + rows])
