"""Backup copies: every product computed by more than one worker when need be. No arithmetic in encoding or decoding.

Oneshot: task i is product i mod pK, so P = c * pK gives c copies of each and P need not be a multiple. Pull: copies are
made on demand (speculative execution, as MapReduce's backup tasks: Dean and Ghemawat, OSDI 2004, section 3.6).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from cmm.codes.base import Code, Threshold
from cmm.codes.uncoded import product_task
from cmm.core.grid import Grid
from cmm.core.task import Assignment, IntArray


class Replication(Code):
    """Copies of the source products.

    A repair is a copy of the outstanding product that has been copied least; copies are counted by their task numbers,
    so a repair numbered q knows those numbered below q, and numbering anew starts a new count.
    """

    name = "replication"
    paper = "backup tasks, Dean and Ghemawat, OSDI 2004"
    recovery = "one copy of each: P - floor(P/K) + 1 in the worst case"
    good_for = "a few slow workers and blocks too cheap to encode; decoding is bit-identical to plain products"

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return grid.p * grid.K

    def _prepare(self) -> None:
        self._copies: dict[int, int] = {}  # repair task -> unknown product
        parts = [product_task(self.grid, 0, number).systematic for number in range(self.minimum_tasks())]
        self._number = {unknown: number for number, unknown in enumerate(parts) if unknown is not None}

    def _task(self, index: int) -> Assignment:
        return product_task(self.grid, index, index % self.minimum_tasks())

    @property
    def integer_weights(self) -> tuple[int, int]:
        return 1, 1

    @property
    def systematic(self) -> int:
        return self.grid.K if self.grid.p == 1 else 0

    @property
    def repairs(self) -> bool:
        return self.dispatch == "pull"

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        wanted = [int(u) for u in outstanding if int(u) in self._number]
        if not wanted:
            raise ValueError(f"no wanted product among outstanding {outstanding.tolist()}")
        self._copies = {task: u for task, u in self._copies.items() if task < index}
        counts = Counter(self._copies.values())
        chosen = min(wanted, key=lambda u: counts[u])  # the first of equals: by number, that is row by row
        self._copies[index] = chosen
        return product_task(self.grid, index, self._number[chosen])

    @property
    def recovery_threshold(self) -> Threshold:
        """Worst case: every copy of one product is among those missing."""
        return Threshold(self.P - self.P // self.minimum_tasks() + 1, certain=True)

    def order(self, rng: np.random.Generator, workers: int = 0) -> list[int]:
        """As numbered under pull. Oneshot: position q goes to worker 1 + q mod W, so every round of copies is dealt
        such that, as far as possible, no worker gets a product that it has already."""
        if self.repairs:
            return list(range(self.systematic or self.P))
        least, has = self.minimum_tasks(), [set[int]() for _ in range(max(workers, 1))]
        dealt: list[int] = []
        for start in range(0, self.P, least):
            left = dict.fromkeys(range(start, min(start + least, self.P)))
            while left:
                mine = has[len(dealt) % len(has)]
                task = next((task for task in left if task % least not in mine), next(iter(left)))
                del left[task]
                mine.add(task % least)
                dealt.append(task)
        return dealt
