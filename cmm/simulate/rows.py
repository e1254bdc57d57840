"""CSV files that a run adds to and goes on from: all that can be wrong with them, in one place."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cmm.core.errors import DataError, OutputError, UsageError


class CsvFile:
    """Rows under a heading, appended as they come.

    Parameters
    ----------
    path : of the file; None: nothing is kept
    columns : the heading; the first of them is never empty
    flag : that named the file, for messages
    """

    def __init__(self, path: Path | None, columns: Sequence[str], flag: str = "--csv") -> None:
        self.path, self.columns, self.flag = path, list(columns), flag

    def begin(self, take: Callable[[Mapping[str, str]], object]) -> None:
        """Call `take` with every row that is there (headings of files appended to this one are passed over), or write
        the heading. A last line that was cut off is removed.

        Raises
        ------
        DataError : a file of another kind, or a row that `take` refuses by ValueError, KeyError or TypeError
        OutputError : the file cannot be written
        UsageError : a folder, a pipe or a device
        """
        path = self.path
        if path is None:
            return
        if path.exists() and not path.is_file():
            raise UsageError(self.flag, "must be a regular file", f"{path}, which is none", "Name another file.")
        lines = self._lines(path)
        if not lines:
            self.append([self.columns])
            return
        if next(csv.reader(lines[:1]), None) != self.columns:
            raise DataError(self.flag, "must be empty or a file of this command", str(path), "Name another file.")
        for number, row in enumerate(csv.DictReader(lines), start=2):
            if row[self.columns[0]] == self.columns[0]:
                continue
            try:
                take(row)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(self.flag, f"line {number} cannot be read ({error})", str(path),
                                "Remove the line, or name another file.") from error  # fmt: skip
        self.append([])  # can it be written?

    def append(self, rows: Iterable[Iterable[str]]) -> None:
        """Write rows at the end. Raises OutputError."""
        if self.path is None:
            return
        try:
            with open(self.path, "a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise OutputError(self.flag, "cannot be written", str(self.path), str(error)) from error

    def _lines(self, path: Path) -> list[str]:
        """What is in the file, whole lines only."""
        try:
            text = path.read_text() if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(self.flag, "must be a readable text file", str(path), f"{error}.") from error
        lines = text.splitlines()
        if lines and not text.endswith("\n"):
            lines.pop()
            self._rewrite(path, lines)
        return lines

    def _rewrite(self, path: Path, lines: Sequence[str]) -> None:
        """Through a second file, so that nothing is lost on the way."""
        aside = path.with_name(path.name + ".part")
        try:
            aside.write_text("".join(f"{line}\n" for line in lines))
            aside.replace(path)
        except OSError as error:
            raise OutputError(self.flag, "cannot be written", str(path), str(error)) from error
