"""From answers to the gradient, as they arrive: when are there enough, and which combination of them is it?

A decoder belongs to one gradient. Its answers are workers, numbered from 0; what they sent is combined by `combine`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cmm.core.task import Array


@dataclass(frozen=True, eq=False)
class Combination:
    """Which answers give the gradient, in the order of their summation.

    coefficients : None for a plain sum, which involves no multiplication
    label : what was decoded, for the report
    """

    workers: tuple[int, ...]
    coefficients: Array | None
    label: str

    def apply(self, answers: Mapping[int, Array]) -> Array:
        """The combination of the answers (arrays of one shape), added in the order of `workers`: the same bits for the
        same workers, in whatever order they have answered."""
        total = np.zeros_like(answers[self.workers[0]])
        for place, worker in enumerate(self.workers):
            if self.coefficients is None:
                total += answers[worker]
            else:
                total += self.coefficients[place] * answers[worker]
        return total


class Decoder(ABC):
    """Hears of answers one by one."""

    combination: Combination | None = None

    @abstractmethod
    def add(self, worker: int) -> bool:
        """An answer of this worker is there; True when the gradient is decodable. Idempotent."""

    @abstractmethod
    def possible(self, lost: Collection[int]) -> bool:
        """Whether the gradient can still be decoded without the lost workers."""


class ClassDecoder(Decoder):
    """Binary codes: a counter for each class, done at the first that reaches zero. O(1) per answer.

    It needs a complete class, however many other workers are missing: often that is so with more than s stragglers.
    """

    def __init__(self, classes: Sequence[Sequence[int]], workers: int) -> None:
        self.classes = classes
        self._missing = [len(members) for members in classes]
        self._class = [-1] * workers
        for number, members in enumerate(classes):
            for worker in members:
                self._class[worker] = number

    def add(self, worker: int) -> bool:
        number, self._class[worker] = self._class[worker], -1
        if number >= 0:
            self._missing[number] -= 1
            if self._missing[number] == 0 and self.combination is None:
                self.combination = Combination(tuple(self.classes[number]), None, f"class {number}")
        return self.combination is not None

    def possible(self, lost: Collection[int]) -> bool:
        return any(not set(members) & set(lost) for members in self.classes)


class SpanDecoder(Decoder):
    """Any encoding matrix: least squares for the vector of ones once n - s answers are there."""

    def __init__(self, matrix: Array, stragglers: int) -> None:
        self.matrix, self.needed = matrix, matrix.shape[0] - stragglers
        self._received: list[int] = []

    def add(self, worker: int) -> bool:
        if worker not in self._received:
            self._received.append(worker)
            if self.combination is None and len(self._received) >= self.needed:
                self._attempt()
        return self.combination is not None

    def _attempt(self) -> None:
        workers = sorted(self._received)
        rows = self.matrix[workers]
        found = np.linalg.lstsq(rows.T, np.ones(rows.shape[1]), rcond=None)[0]
        if np.linalg.norm(rows.T @ found - 1) <= 1e-9 * math.sqrt(rows.shape[1]):
            self.combination = Combination(tuple(workers), found, f"{len(workers)} answers by least squares")

    def possible(self, lost: Collection[int]) -> bool:
        return self.matrix.shape[0] - len(set(lost)) >= self.needed
