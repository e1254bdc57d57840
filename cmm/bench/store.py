"""Rows in a CSV file that a run can be resumed from: a row that is there already, and is done, is not made again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

from cmm.simulate.rows import CsvFile

Row = TypeVar("Row")
KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


class Store(Generic[Row]):
    """Rows of one dataclass with fields of int, float and str, in memory and, with a path, appended to a file.

    Parameters
    ----------
    kind : the dataclass; the columns are its fields
    key : of a row
    path : a CSV file of these columns, or one to be made
    done : whether a row is final. The first final row with a key counts; one that is not is made again, and both stay
        in the file
    argument : the flag of the path, for messages
    update : False: only read what is there

    Raises
    ------
    InputMissingError, DataError, OutputError : as CsvFile.begin, and CsvFile.append
    """

    def __init__(self, kind: type[Row], key: Callable[[Row], Hashable], path: Path | None = None, *,
                 done: Callable[[Row], bool] = lambda row: True, argument: str = "--out",
                 update: bool = True) -> None:  # fmt: skip
        self.key, self.done = key, done
        self.fields = {entry.name: str(entry.type) for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
        self.rows: dict[Hashable, Row] = {}
        self._file = CsvFile(path, list(self.fields), argument, update=update)
        self._file.begin(lambda cells: self._take(
            kind(**{name: KINDS[of](cells[name]) for name, of in self.fields.items()})))  # fmt: skip

    def __contains__(self, key: Hashable) -> bool:
        """Whether there is a final row with this key."""
        return key in self.rows and self.done(self.rows[key])

    def add(self, row: Row) -> None:
        """Take in a row and append it to the file."""
        if self._take(row):
            self._file.append([_text(getattr(row, name)) for name in self.fields])

    def _take(self, row: Row) -> bool:
        fresh = self.key(row) not in self
        if fresh:
            self.rows[self.key(row)] = row
        return fresh


def _text(value: Any) -> str:
    """As it is read again; a text is kept on one line."""
    return " ".join(value.split()) if isinstance(value, str) else repr(value)
