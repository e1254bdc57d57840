"""Rows in a CSV file that a run can be resumed from: a row whose key is there already is not made again."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

from cmm.core.errors import DataError, OutputError

Row = TypeVar("Row")
KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


class Store(Generic[Row]):
    """Rows of one dataclass with fields of int, float and str, in memory and, with a path, appended to a file.

    Parameters
    ----------
    kind : the dataclass; the columns are its fields
    key : of a row; the first row with a key counts
    path : a CSV file of these columns, or one to be made

    Raises
    ------
    DataError : the file is of another kind, or a line of it cannot be read; a last line that was cut off is dropped
    OutputError : it cannot be written
    """

    def __init__(self, kind: type[Row], key: Callable[[Row], Hashable], path: Path | None = None) -> None:
        self.kind, self.key, self.path = kind, key, path
        self.fields = {entry.name: str(entry.type) for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
        self.rows: dict[Hashable, Row] = {}
        if path is not None and path.exists() and path.stat().st_size:
            self._read(path)
        elif path is not None:
            self._write([list(self.fields)])

    def __contains__(self, key: Hashable) -> bool:
        return key in self.rows

    def add(self, row: Row) -> None:
        """Take in a row and append it to the file."""
        if self.key(row) not in self.rows:
            self.rows[self.key(row)] = row
            if self.path is not None:
                self._write([[_text(getattr(row, name)) for name in self.fields]])

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError("CSV", "must be a readable text file", str(path), f"{error}.") from None
        lines = text.splitlines()
        if next(csv.reader(lines[:1])) != list(self.fields):
            raise DataError("CSV", "must be empty or have the columns of this command", str(path), "Name another file.")
        if not text.endswith("\n"):  # cut off in the middle of a line
            lines = lines[: max(1, len(lines) - 1)]
            path.write_text("".join(f"{line}\n" for line in lines))
        for number, cells in enumerate(csv.DictReader(lines), start=2):
            try:
                row = self.kind(**{name: KINDS[kind](cells[name]) for name, kind in self.fields.items()})
            except (ValueError, TypeError) as error:
                raise DataError("CSV", f"line {number} cannot be read ({error})", str(path),
                                "Remove the line, or name another file.") from None  # fmt: skip
            self.rows.setdefault(self.key(row), row)

    def _write(self, rows: Iterable[Iterable[str]]) -> None:
        try:
            with open(self.path or "", "a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise OutputError("CSV", "must be writable", str(self.path), f"{error}.") from None


def _text(value: Any) -> str:
    """As it is read again; a text is kept on one line."""
    return " ".join(value.split()) if isinstance(value, str) else repr(value)
