"""Rotation matrix embeddings: nodes on the unit circle in real arithmetic, with 2 + 2 operands and 4 products a task.

Ramamoorthy, Tang, "Numerically stable coded matrix computations via circulant and rotation matrix embeddings", arXiv
1910.06515 (IEEE Trans. Inf. Theory 2022). A is cut into m = 2 k_A chunks, B into n = 2 k_B. With theta = 2 pi / P and
R(angle) the 2 x 2 rotation matrix, task i combines chunk pairs j by the blocks

    A: R(theta i k_B j), j < k_A        B: R(theta i j), j < k_B

and computes all four products of its two and two coded chunks. R has eigenvalues e^(+-i angle), so the system splits
into complex Vandermonde systems at the P-th roots of unity with K/4 consecutive exponents each: any k_A k_B = K/4 tasks
decode, and the condition is that of the complex Vandermonde matrix (11.65 at P = 11, K/4 = 9; 404 at P = 31, K/4 =
28). It grows like P^(spare tasks + 5.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cmm.codes.base import Code, Threshold
from cmm.codes.nodes import spread
from cmm.codes.sizes import squarest
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination

FOUR = tuple(((x, y),) for x in (0, 1) for y in (0, 1))
MOST_RESULTS = 36  # planned for by default


class Rotation(Code):
    """Any K/4 tasks of four results each decode."""

    name = "rotation"
    paper = "Ramamoorthy, Tang, arXiv 1910.06515"
    recovery = "any K/4 of P tasks with four results each"
    good_for = "the most accurate structured code while few tasks are spare; real arithmetic"
    fixed_pool = True
    most_spare = 4

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return max(1, grid.K // 4)

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        half = squarest(min(limit, MOST_RESULTS), max(r, 2) // 2, max(t, 2) // 2)
        return Grid(2 * half.m, 2 * half.n)

    def _prepare(self) -> None:
        self.refuse_split()
        if self.grid.m % 2 or self.grid.n % 2:
            even = f"{self.grid.m + self.grid.m % 2}x{self.grid.n + self.grid.n % 2}"
            raise UsageError("--grid", "rotation needs an even number of chunks of A and of B", self.grid,
                             f"Use {even}.")  # fmt: skip
        self._turns = spread(self.P)

    def _task(self, index: int) -> Assignment:
        turn = int(self._turns[index])
        a = self._operands(turn * (self.grid.n // 2), self.grid.m)
        b = self._operands(turn, self.grid.n)
        return Assignment(index, a, b, FOUR, unknowns_b=self.grid.chunks_b)

    def _operands(self, turn: int, chunks: int) -> tuple[Combination, ...]:
        """The two columns of R(theta turn 0), R(theta turn 1), ... below each other."""
        angles = 2 * np.pi / self.P * (turn * np.arange(chunks // 2) % self.P)  # reduced exactly, in integers
        cos, sin = np.cos(angles), np.sin(angles)
        first, second = np.stack([cos, sin], axis=1).ravel(), np.stack([-sin, cos], axis=1).ravel()
        return Combination.of(range(chunks), first), Combination.of(range(chunks), second)

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.grid.K // 4, certain=True)
