"""CSV files that a run adds to and goes on from: all that can be wrong with them, in one place."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cmm.core.errors import DataError, InputMissingError, OutputError, UsageError
from cmm.core.rules import read_float, read_int


def _count(text: str) -> int:
    value = read_int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _amount(text: str) -> float:
    """nan: not known."""
    value = math.nan if text == "nan" else read_float(text)
    if value < 0:
        raise ValueError(text)
    return value


def _signed(text: str) -> float:
    return float(text) if text in ("nan", "inf") else read_float(text)


_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (_count, "a whole number, 0 or more"), "float": (_amount, "a number, 0 or more, or nan"),
    "str": (str, "a text"), "signed int": (read_int, "a whole number"), "signed float": (_signed, "a number"),
}  # fmt: skip


def read_cell(name: str, text: str, kind: str) -> Any:
    """The value of a cell. kind: int or float (not negative), signed int, signed float or str. Raises ValueError."""
    read, rule = _KINDS[kind]
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{name} must be {rule}; got {text!r}") from None


class CsvFile:
    """Rows under a heading, appended as they come.

    Parameters
    ----------
    path : of the file; None: nothing is kept
    columns : the heading; the first of them is never empty
    flag : that named the file, for messages
    update : False: it is only read
    """

    def __init__(self, path: Path | None, columns: Sequence[str], flag: str = "--csv", *, update: bool = True) -> None:
        self.path, self.columns, self.flag, self.update = path, list(columns), flag, update
        self._begun = False

    def begin(self, take: Callable[[Mapping[str, str]], object]) -> None:
        """Call `take` with every row that is there (headings of files appended to this one are passed over). A last
        line that was cut off is dropped. Nothing is written but for that.

        Raises
        ------
        DataError : a file of another kind, or a row that `take` refuses by ValueError, KeyError, TypeError or
            UsageError
        InputMissingError : without `update`, no such file
        OutputError : with it, one that cannot be written
        """
        if self.path is None:
            return
        self._judge(self.path)
        text = self._text(self.path)
        lines = text.splitlines()
        self._begun = bool(lines)
        if not lines and self.update:
            return
        if next(csv.reader(lines[:1]), None) != self.columns:
            raise DataError(self.flag, "must be a CSV file with the columns of this command", str(self.path),
                            "Name another file.")  # fmt: skip
        if not text.endswith("\n"):
            lines = lines[: max(1, len(lines) - 1)]
            self._rewrite(self.path, lines)
        for number, row in enumerate(csv.DictReader(lines), start=2):
            if row[self.columns[0]] == self.columns[0]:
                continue
            try:
                if None in row or None in row.values():
                    raise ValueError(f"it must have {len(self.columns)} cells")
                take(row)
            except (ValueError, KeyError, TypeError, UsageError) as error:
                raise DataError(self.flag, f"line {number} cannot be read ({error})", str(self.path),
                                "Remove the line, or name another file.") from error  # fmt: skip

    def append(self, row: Iterable[str]) -> None:
        """Write a row at the end, the heading before the first. Raises OutputError."""
        if self.path is None:
            return
        try:
            with open(self.path, "a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([row] if self._begun else [self.columns, row])
        except OSError as error:
            raise OutputError(self.flag, "must be a file that can be written", str(self.path),
                              f"{error.strerror}.") from error  # fmt: skip
        self._begun = True

    def _judge(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            refusal = OutputError if self.update else InputMissingError
            raise refusal(self.flag, "must be a regular file", f"{path}, which is none", "Name another file.")
        if self.update and not os.access(path if path.exists() else path.parent, os.W_OK):
            why = "It may not be written." if path.parent.exists() else f"Make {path.parent} first."
            raise OutputError(self.flag, "must be a file that can be written", str(path), why)

    def _text(self, path: Path) -> str:
        try:
            return path.read_text() if path.exists() or not self.update else ""
        except OSError as error:
            raise InputMissingError(self.flag, "must be a file that can be read", str(path),
                                    f"{error.strerror}.") from error  # fmt: skip
        except UnicodeDecodeError as error:
            raise DataError(self.flag, "must be a text file (CSV)", str(path), "Name another file.") from error

    def _rewrite(self, path: Path, lines: Sequence[str]) -> None:
        """Whole lines only; through a second file, so that nothing is lost on the way."""
        if not self.update:
            return
        aside = path.with_name(path.name + ".part")
        try:
            aside.write_text("".join(f"{line}\n" for line in lines))
            aside.replace(path)
        except OSError as error:
            raise OutputError(self.flag, "must be a file that can be written", str(path), str(error)) from error
