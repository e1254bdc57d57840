"""Matrix Market files, `.mtx` and `.mtx.gz`, dense (array) and sparse (coordinate), read by scipy.io.

All fields and symmetries: real, integer (64 bits), unsigned-integer, complex, pattern (ones); general, symmetric,
skew-symmetric, hermitian. Text cannot be mapped: the matrix is read into memory, sparse ones as sparse matrices.
Source: Boisvert, Pozo, Remington, The Matrix Market Exchange Formats (NISTIR 5935), 1996.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.io
import scipy.sparse as sp

from cmm.core.errors import DataError
from cmm.core.task import Array
from cmm.matrices.room import check_room
from cmm.matrices.sparse import from_scipy, sparse_memory
from cmm.matrices.stored import Deferred, Matrix, check_sides, parsing

FIELDS = {"real": np.float64, "double": np.float64, "integer": np.int64, "unsigned-integer": np.uint64,
          "complex": np.complex128, "pattern": np.float64}  # fmt: skip
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_REMEDY = "Write it with scipy.io.mmwrite."
_LINE, _COMMENTS = 1 << 16, 1 << 24  # bytes of a header line, of all comments
_DEFLATE = 1032  # gzip cannot shrink further than to this fraction
_PIECE = 1 << 20
_SPACE = b" \t\r\n"
_DIGIT = b"0123456789"
_LETTER = b"infatyINFATY"
_WORD = re.compile(rb"\S*[a-df-zA-DF-Z]\S*")
_NO_NUMBER = re.compile(rb"-?(inf|infinity|nan)", re.IGNORECASE)


@dataclass(frozen=True)
class Header:
    """The first lines. `entries`: numbers of lines that follow, one element each."""

    sparse: bool
    field: str
    symmetry: str
    shape: tuple[int, int]
    entries: int

    @property
    def nnz(self) -> int:
        """Elements stored once symmetry is written out, at most."""
        return self.entries * (1 if self.symmetry == "general" else 2)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(FIELDS[self.field])


def open_array(path: Path, argument: str) -> Matrix:
    """The matrix in a Matrix Market file, read when it is needed.

    Raises
    ------
    DataError : empty, no Matrix Market header, or one that promises more than the file can hold; when it is read:
        truncated, not the numbers of its field, too large for the memory
    OSError : the file cannot be opened
    """
    with parsing(path, argument, "a Matrix Market file", _REMEDY), _opened(path) as file:
        header = _header(file, path, argument)
    check_sides(header.shape, argument, path)
    size = path.stat().st_size * (_DEFLATE if _packed(path) else 1)
    least = 2 if not header.sparse else 4 if header.field == "pattern" else 6  # bytes of the shortest line
    if header.entries * least > size + 1:
        raise DataError(argument, "must hold as many lines as its header says",
                        f"{path} with {header.entries} promised in {path.stat().st_size} bytes",
                        "It is truncated: copy or write it again.")  # fmt: skip
    item = header.dtype.itemsize
    dense = header.shape[0] * header.shape[1] * item
    memory = min(dense, sparse_memory(header.nnz, header.shape, item)) if header.sparse else dense
    return Deferred(header.shape, header.dtype, lambda: _load(path, argument, header, memory), memory)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if _packed(path) else path.open("rb")  # type: ignore[return-value]


def _packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _header(file: IO[bytes], path: Path, argument: str) -> Header:
    first = file.readline(_LINE)
    words = first.decode("latin-1").lower().split()
    if len(words) != 5 or words[0] not in ("%%matrixmarket", "%matrixmarket") or words[1] != "matrix":
        what = f"{path}, an empty file" if not first else f"{path}, whose first line is not %%MatrixMarket matrix ..."
        raise DataError(argument, "must be a Matrix Market file", what, _REMEDY)
    _, _, form, field, symmetry = words
    sparse = form == "coordinate"
    if form not in ("coordinate", "array") or field not in FIELDS or symmetry not in SYMMETRIES or (
        field == "pattern" and not sparse
    ):  # fmt: skip
        raise DataError(argument, "must have a known kind of Matrix Market header",
                        f"{path} with {' '.join(words[2:])}", _REMEDY)  # fmt: skip
    sizes = _sizes(file, path, argument, 3 if sparse else 2)
    rows, cols = sizes[0], sizes[1]
    if symmetry != "general" and rows != cols:
        raise DataError(argument, f"must be square to be {symmetry}", f"{path} with {rows} x {cols}", _REMEDY)
    triangle = cols * (cols - 1) // 2 if symmetry == "skew-symmetric" else cols * (cols + 1) // 2
    lines = sizes[2] if sparse else rows * cols if symmetry == "general" else triangle
    return Header(sparse, field, symmetry, (rows, cols), lines)


def _sizes(file: IO[bytes], path: Path, argument: str, count: int) -> list[int]:
    words = _behind_comments(file).split()
    if len(words) != count or not all(word.isdigit() and len(word) < 20 for word in words):
        raise DataError(argument, f"must have a line with {count} sizes in its header", path, _REMEDY)
    return [int(word) for word in words]


def _behind_comments(file: IO[bytes]) -> bytes:
    """The first line that is neither a comment nor empty, that of the sizes; nothing at the end of the file.

    Raises ValueError for a zero byte, at which the parser would stop, and for comments without end.
    """
    seen, within = 0, False  # a comment longer than what is read at a time
    while seen < _COMMENTS:
        line = file.readline(_LINE)
        seen += len(line)
        if b"\0" in line:
            raise ValueError("a zero byte")
        comment = within or line.lstrip().startswith(b"%")
        within = comment and not line.endswith(b"\n")
        if not line or (not comment and line.split()):
            return line
    raise ValueError(f"no line of sizes in the first {_COMMENTS >> 20} MB")


def _load(path: Path, argument: str, header: Header, memory: int) -> Matrix:
    item = header.dtype.itemsize
    reading = header.nnz * (2 * item + 32) if header.sparse else 0  # coordinates, and their sorted copy
    check_room(memory + reading, argument, f"{path}, {header.shape[0]} x {header.shape[1]}")
    with parsing(path, argument, "a Matrix Market file", _REMEDY):
        with _opened(path) as file:
            _check_text(file, header)
        if not header.entries:  # the parser divides by what is zero then
            empty = sp.csc_array(header.shape, dtype=header.dtype)
            return from_scipy(empty, argument, str(path)) if header.sparse else empty.toarray()
        with _opened(path) as file:
            found = scipy.io.mmread(_Complete(file), spmatrix=False)
        if found.shape != header.shape or found.dtype != header.dtype or sp.issparse(found) != header.sparse:
            raise ValueError("the file changed while it was read")
        return from_scipy(found, argument, str(path)) if header.sparse else np.asarray(found)


class _Complete:
    """A stream whose last line is complete: the parser reads beyond the end of one without a line feed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._last = file, b"\n"

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        if not piece and self._last != b"\n":
            piece = b"\n"
        self._last = piece[-1:] or self._last
        return piece


def _pairs(real: bool) -> npt.NDArray[np.bool_]:
    """Which byte may follow which in lines of numbers, at [256 * first + second]."""
    follows = [(_SPACE, _SPACE + _DIGIT + b"-"), (_DIGIT, _DIGIT + _SPACE), (b"-", _DIGIT)]
    if real:
        follows += [(_SPACE + b"-", b"." + _LETTER), (_DIGIT, b".eE"), (b".", _DIGIT + b"eE" + _SPACE)]
        follows += [(b"eE", _DIGIT + b"+-"), (b"+", _DIGIT), (_LETTER, _LETTER + _SPACE)]
    table = np.zeros((256, 256), dtype=bool)
    for first, second in follows:
        table[np.ix_(list(first), list(second))] = True
    return table.ravel()


_INTEGERS, _REALS = _pairs(False), _pairs(True)


def _check_text(file: IO[bytes], header: Header) -> None:
    """Raise ValueError unless the lines of numbers are made of numbers, as many as there should be.

    The parser ignores what follows a number, and so takes 1.5 for the integer 1, 1d5 for 1 and 1.5.3 for 1.5.
    """
    _behind_comments(file)
    table = _INTEGERS if header.field in ("integer", "unsigned-integer", "pattern") else _REALS
    words = sum(_look(lines, table) for lines in _whole_lines(file))
    expected = header.entries * ((2 if header.sparse else 0) + {"complex": 2, "pattern": 0}.get(header.field, 1))
    if words != expected:
        raise ValueError(f"{words} numbers where the header promises {expected}")


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file in pieces that start behind a line feed and end with one; the first byte is the one before."""
    left = b"\n"
    while piece := file.read(_PIECE):
        end = piece.rfind(b"\n") + 1
        if not end and len(left) > _LINE:
            raise ValueError("a line without end")
        if end:
            yield left + piece[:end]
            left = b"\n"
        left += piece[end:]
    yield left + b"\n"


def _look(text: bytes, table: npt.NDArray[np.bool_]) -> int:
    """Judge whole lines; the number of words in them."""
    codes = np.frombuffer(text, np.uint8)
    wrong = ~table[codes[:-1].astype(np.uint16) * 256 + codes[1:]]
    if wrong.any():
        where = int(np.argmax(wrong))
        raise ValueError(f"{text[max(0, where - 8) : where + 9]!r} among the numbers")
    blank = codes <= ord(" ")
    starts = blank[:-1] & ~blank[1:]
    if table is _REALS:
        _look_inside(text, codes, starts)
    return int(np.count_nonzero(starts))


def _look_inside(text: bytes, codes: npt.NDArray[np.uint8], starts: npt.NDArray[np.bool_]) -> None:
    """Within a number at most a point and then an exponent; letters only in words for infinity and NaN."""
    marks = np.flatnonzero((codes == ord(".")) | (codes | 32 == ord("e")))
    number = np.cumsum(starts)[marks - 1]
    again = np.flatnonzero(number[1:] == number[:-1])
    if ((codes[marks[again]] != ord(".")) | (codes[marks[again + 1]] == ord("."))).any():
        raise ValueError("a number with two points or two exponents")
    if (codes >= ord("A")).sum() > np.count_nonzero(codes | 32 == ord("e")):
        for word in _WORD.findall(text):
            if not _NO_NUMBER.fullmatch(word):
                raise ValueError(f"{word[:20]!r} among the numbers")


def write_array(file: IO[bytes], array: Array) -> None:
    """Write a dense matrix as text, every element to its last digit, which for single precision are those of the
    double precision it will be read in. Raises OSError."""
    if not array.size:  # SciPy's writer crashes or never ends
        field = {"c": "complex", "f": "real"}.get(array.dtype.kind, "integer")
        file.write(f"%%MatrixMarket matrix array {field} general\n{array.shape[0]} {array.shape[1]}\n".encode())
        return
    double = array.astype(np.result_type(array, np.float64), copy=False) if array.dtype.kind in "fc" else array
    scipy.io.mmwrite(file, double, symmetry="general")
