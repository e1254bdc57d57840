"""Rateless LT codes for matrix-vector products: sparse combinations of A's chunks, B is not cut.

Mallick, Chaudhari, Sheth, Palanikumar, Joshi, "Rateless codes for near-perfect load balancing in distributed
matrix-vector multiplication", SIGMETRICS 2020: the rows of A^T (here m chunks of A's columns, as fine as one
column) are encoded with an LT code, degrees from the robust soliton distribution (Luby, FOCS 2002):

    rho(1) = 1/m, rho(d) = 1/(d(d-1));  tau(d) = R/(dm) for d < m/R, tau(m/R) = R ln(R/delta)/m
    R = c sqrt(m) ln(m/delta)

About m (rho + tau summed) coded chunks decode with probability 1 - delta by peeling; real coefficients and the dense or
inactivating decoder need little more than every chunk being met. A task holds `rows` coded chunks and returns as many
results, so chunks can be fine and tasks large. Only for n = 1: a sparse combination of blocks C_ij does not factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from cmm.codes.base import Code, Parameter, Threshold
from cmm.codes.coefficients import COEFFICIENTS, LAWS, integer_weights
from cmm.codes.flt import FactoredStream, covering_results
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination, IntArray
from cmm.linalg.degrees import DegreeDistribution

DEFAULT_OMEGA = "robust-soliton:0.1:0.5"
CHUNKS_PER_TASK = 8


def read_rows(text: str) -> int:
    """A whole number from 1 to 4096."""
    if not text.strip().isdigit() or not 1 <= int(text) <= 4096:
        raise ValueError("Write a whole number from 1 to 4096.")
    return int(text)


class LubyTransform(Code):
    """Rateless: tasks beyond P are more of the same stream; repairs combine outstanding chunks."""

    name = "lt"
    paper = "Mallick et al., SIGMETRICS 2020; Luby, FOCS 2002"
    recovery = "about m + O(sqrt(m) ln(m)^2) coded chunks"
    good_for = "A^T x with A cut finely: load follows speed, encoding touches few chunks"
    parameters: ClassVar = {
        "omega": Parameter(str, DEFAULT_OMEGA, "degree distribution, as for flt; by default robust-soliton:0.1:0.5"),
        "rows": Parameter(read_rows, None, "coded chunks a task; by default 8, or fewer when there are few chunks"),
        "coefficients": COEFFICIENTS,
    }

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return max(1, -(-grid.m // _rows(None, grid)))

    @classmethod
    def needs(cls, grid: Grid, params: Mapping[str, Any]) -> tuple[int, int]:
        rows, omega = _rows(params["rows"], grid), DegreeDistribution.parse(params["omega"], grid.m)
        return -(-grid.m // rows), -(-covering_results(grid.m, omega.mean) // rows)

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        return Grid(max(1, min(limit * (params["rows"] or CHUNKS_PER_TASK), r)), 1)

    def _prepare(self) -> None:
        if self.grid.n != 1 or self.grid.p != 1:
            raise UsageError("--grid", "lt does not cut B, nor the shared dimension (n and p must be 1)", self.grid,
                             f"Use {self.grid.K}x1, or --code flt or sparse.")  # fmt: skip
        self.chunks = _rows(self.params["rows"], self.grid)
        self.omega = DegreeDistribution.parse(self.params["omega"], self.grid.m).restricted(self.grid.m, 1)
        self.stream = FactoredStream(lambda page: self.rng("page", page), self.grid.m, 1, self.omega, "one-sided",
                                     self.params["coefficients"])  # fmt: skip

    def _task(self, index: int) -> Assignment:
        symbols = range(index * self.chunks, (index + 1) * self.chunks)
        return self._assignment(index, [self.stream.factors(symbol)[0] for symbol in symbols])

    def _assignment(self, index: int, a: list[Combination]) -> Assignment:
        if len(a) == 1:
            return Assignment.pair(index, a[0], Combination.unit(0), 1)
        outputs = tuple(((x, 0),) for x in range(len(a)))
        return Assignment(index, tuple(a), (Combination.unit(0),), outputs, unknowns_b=1)

    @property
    def repairs(self) -> bool:
        return self.dispatch == "pull"

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        """While many chunks are outstanding, more of the stream; then dense combinations of just those."""
        if len(outstanding) > self.grid.m // 2:
            return self._task(index)
        rng, law = self.rng("repair", index), LAWS[self.params["coefficients"]]
        count = min(self.chunks, len(outstanding))
        if count == len(outstanding):
            return self._assignment(index, [Combination.unit(int(u)) for u in outstanding])
        return self._assignment(index, [Combination(outstanding, law(rng, len(outstanding))) for _ in range(count)])

    @property
    def integer_weights(self) -> tuple[int, int] | None:
        return integer_weights(self.params["coefficients"], self.grid.m, 1)

    @property
    def recovery_threshold(self) -> Threshold:
        """Tasks at which no chunk is left uncovered with probability 0.99."""
        return Threshold(math.ceil(covering_results(self.grid.m, self.omega.mean) / self.chunks), certain=False)


def _rows(given: int | None, grid: Grid) -> int:
    """Coded chunks a task."""
    return given if given is not None else max(1, min(CHUNKS_PER_TASK, grid.m // 4))
