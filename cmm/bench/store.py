"""Rows in a CSV file that a run can be resumed from: a row that is there already, and is done, is not made again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from cmm.simulate.rows import CsvFile, read_cell

Row = TypeVar("Row")


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
    signed : fields that may be negative
    judge : what else a row of the file has to meet; raises ValueError
    update : False: only read what is there

    Raises
    ------
    InputMissingError, DataError, OutputError : as CsvFile.begin, and CsvFile.append
    """

    def __init__(self, kind: type[Row], key: Callable[[Row], Hashable], path: Path | None = None, *,
                 done: Callable[[Row], bool] = lambda row: True, argument: str = "--out",
                 signed: Collection[str] = (), judge: Callable[[Row], object] = lambda row: None,
                 update: bool = True) -> None:  # fmt: skip
        self.key, self.done = key, done
        self.fields = {entry.name: str(entry.type) for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
        self.rows: dict[Hashable, Row] = {}
        self._file = CsvFile(path, list(self.fields), argument, update=update)
        kinds = {name: f"signed {of}" if name in signed else of for name, of in self.fields.items()}

        def take(cells: Mapping[str, str]) -> None:
            row = kind(**{name: read_cell(name, cells[name], of) for name, of in kinds.items()})
            judge(row)
            self._take(row)

        self._file.begin(take)

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
