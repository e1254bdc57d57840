"""One-dimensional MDS codes: A's chunks are encoded, B's are not.

Lee, Lam, Pedarsani, Papailiopoulos, Ramchandran, "Speeding up distributed machine learning using codes", IEEE Trans.
Inf. Theory 2018. Grid m x 1: the results are the m products A_i^T B and P - m combinations of them, any
m decode.

With B cut too (n > 1) every chunk of B has an MDS code of its own: a task combines chunks of A and takes one chunk of
B. P / n tasks for each; decoding can fail as long as one column of C lacks results, so P - P/n + m results are needed
in the worst case (comparison in Yu, Maddah-Ali, Avestimehr, NIPS 2017).

The code is systematic with random parity rows, as in RKRP (a generic matrix is MDS with probability one and stays well
conditioned; a Vandermonde matrix, as in some of the literature, does not).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cmm.codes.base import Code, Threshold
from cmm.codes.coefficients import COEFFICIENTS, CONTINUOUS, combination, integer_weights
from cmm.codes.uncoded import product_task
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination, IntArray


class OneDimensionalMDS(Code):
    """Tasks 0 ... K - 1 are the blocks; task K + q combines A's chunks for column q mod n of C."""

    name = "mds"
    paper = "Lee et al., IEEE Trans. Inf. Theory 64 (2018)"
    recovery = "any m of P (n = 1); P - P/n + m in the worst case with B cut in n"
    good_for = "a narrow B (a vector, say) that every worker can hold; encodes one side only"
    parameters: ClassVar = {"coefficients": COEFFICIENTS}

    def _prepare(self) -> None:
        self.refuse_split()

    @classmethod
    def results_for(cls, grid: Grid) -> int:
        return grid.K

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        return Grid(max(1, min(limit, r)), 1)

    def _task(self, index: int) -> Assignment:
        if index < self.grid.K:
            return product_task(self.grid, index, index)
        return self._parity(index, range(self.grid.m), (index - self.grid.K) % self.grid.n)

    def _parity(self, index: int, rows: IntArray | range, column: int) -> Assignment:
        a = combination(self.params["coefficients"], self.rng("row", index), rows)
        return Assignment.pair(index, a, Combination.unit(column), self.grid.chunks_b)

    @property
    def systematic(self) -> int:
        return self.grid.K

    @property
    def repairs(self) -> bool:
        return self.dispatch == "pull"

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        """For one column of C: columns take turns, each as often as it has outstanding blocks."""
        column = int(outstanding[index % len(outstanding)]) % self.grid.n
        rows = outstanding[outstanding % self.grid.n == column] // self.grid.n
        if len(rows) == 1:
            return product_task(self.grid, index, int(rows[0]) * self.grid.n + column)
        return self._parity(index, np.unique(rows), column)

    @property
    def integer_weights(self) -> tuple[int, int] | None:
        return integer_weights(self.params["coefficients"], self.grid.m, 1)

    @property
    def recovery_threshold(self) -> Threshold:
        """All columns but the one with the fewest tasks are complete, and that one lacks one result until the last."""
        fewest = self.grid.m + (self.P - self.grid.K) // self.grid.n
        certain = self.params["coefficients"] in CONTINUOUS
        return Threshold(self.P - fewest + self.grid.m, certain=certain)
