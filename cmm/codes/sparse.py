"""Sparse codes: a task is a random weighted sum of a few whole products.

Wang, Liu, Shroff, "Coded sparse matrix multiplication", ICML 2018. A task draws a degree d from the Wave
Soliton distribution over K = mn blocks,

    p_1 = tau/K,  p_2 = tau/70,  p_d = tau / (d(d-1)) for 3 <= d <= K,        tau = 35/18,

then d blocks without replacement and a weight for each, and returns sum w_ij A_i^T B_j: d pairs of plain chunks, d
products, one result. Nothing is added up before multiplying, so sparse A and B stay sparse; but a task costs d times
(O(ln K) on average: 3.6 at K = 9, 8.2 at K = 100) the work and traffic of a factored code's. Weights come from a
continuous law, the paper's from m^2 n^2 integers. Decoding: dense or inactivation, where the paper peels and "roots"
(solves for one block by a linear combination when peeling stalls).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from cmm.codes.base import Code, Threshold
from cmm.codes.coefficients import COEFFICIENTS, LARGEST_INTEGER, LAWS
from cmm.codes.flt import covering_results
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination, IntArray
from cmm.linalg.degrees import DegreeDistribution

REPAIRED = 3  # outstanding blocks in a repair: each costs a product


def wave_soliton(blocks: int) -> DegreeDistribution:
    """The paper's degree distribution over so many blocks, normalised where it is cut short."""
    table = {1: 1.0 / blocks, 2: 1.0 / 70} | {d: 1.0 / (d * (d - 1)) for d in range(3, blocks + 1)}
    return DegreeDistribution.of({d: weight for d, weight in table.items() if d <= blocks}, "wave-soliton")


class SparseCode(Code):
    """One output with several pairs."""

    name = "sparse"
    paper = "Wang, Liu, Shroff, ICML 2018"
    recovery = "about K (every block must be met); O(ln K) products a task"
    good_for = "sparse A and B, whose chunks should not be added up; dense ones pay d products a task"
    parameters: ClassVar = {"coefficients": COEFFICIENTS}

    @classmethod
    def results_for(cls, grid: Grid) -> int:
        return covering_results(grid.K, wave_soliton(grid.K).mean)

    def _prepare(self) -> None:
        self.refuse_split()
        self.omega = wave_soliton(self.grid.K)

    def _task(self, index: int) -> Assignment:
        rng = self.rng("task", index)
        degree = int(self.omega.sample(rng, 1)[0])
        return self._sum(index, np.sort(rng.choice(self.grid.K, degree, replace=False)), rng)

    def _sum(self, index: int, blocks: Iterable[int], rng: np.random.Generator) -> Assignment:
        """sum of w A_i^T B_j; the weight is on A's side, chunks of B are sent once each."""
        rows, columns = np.divmod(np.asarray(list(blocks), dtype=np.intp), self.grid.n)
        weights = LAWS[self.params["coefficients"]](rng, len(rows))
        needed, places = np.unique(columns, return_inverse=True)
        a = tuple(Combination.of([i], [w]) for i, w in zip(rows.tolist(), weights.tolist(), strict=True))
        b = tuple(Combination.unit(int(j)) for j in needed)
        return Assignment(index, a, b, (tuple(enumerate(places.tolist())),), unknowns_b=self.grid.chunks_b)

    @property
    def repairs(self) -> bool:
        return self.dispatch == "pull"

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        """Up to three outstanding blocks from a place that moves by one with every repair: |O| consecutive repairs
        are a
        cyclic band matrix with random entries, regular with probability one."""
        count = min(REPAIRED, len(outstanding))
        chosen = outstanding[(index + np.arange(count)) % len(outstanding)]
        return self._sum(index, np.sort(chosen), self.rng("repair", index))

    @property
    def integer_weights(self) -> tuple[int, int] | None:
        """A result is a sum of up to K weighted products."""
        largest = LARGEST_INTEGER.get(self.params["coefficients"])
        return None if largest is None else (largest * self.grid.K, 1)

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.grid.K, certain=False)
