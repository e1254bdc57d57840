"""Which result gives which unknown at once: what the decoder remembers of most results of a systematic code.

A dict of tuples costs some 200 bytes an entry, and a job may have hundreds of thousands of them; these are 12.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cmm.linalg.plan import SourceKey


class Directs(Mapping[int, tuple[SourceKey, complex]]):
    """Unknown -> ((task, output), coefficient), in the order of the unknowns."""

    def __init__(self, unknowns: int) -> None:
        self._tasks = np.full(unknowns, -1, np.int64)
        self._outputs = np.zeros(unknowns, np.int32)
        self._coefficients: dict[int, complex] = {}  # those that are not 1.0
        self._count = 0

    def __getitem__(self, unknown: int) -> tuple[SourceKey, complex]:
        if unknown not in self:
            raise KeyError(unknown)
        key = int(self._tasks[unknown]), int(self._outputs[unknown])
        return key, self._coefficients.get(unknown, 1.0)

    def __setitem__(self, unknown: int, given: tuple[SourceKey, complex]) -> None:
        (task, output), coefficient = given
        self._count += self._tasks[unknown] < 0
        self._tasks[unknown], self._outputs[unknown] = task, output
        if coefficient == 1 and not isinstance(coefficient, complex):
            self._coefficients.pop(unknown, None)
        else:
            self._coefficients[unknown] = coefficient

    def __contains__(self, unknown: object) -> bool:
        return isinstance(unknown, int) and 0 <= unknown < len(self._tasks) and bool(self._tasks[unknown] >= 0)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._tasks >= 0).tolist())

    def copy(self) -> Directs:
        """As it is now."""
        found = Directs(0)
        found._tasks, found._outputs = self._tasks.copy(), self._outputs.copy()
        found._coefficients, found._count = dict(self._coefficients), self._count
        return found
