"""No coding at all: every product once. The baseline that waits for the slowest worker.

With p > 1 the tasks are the p * mn products A_ki^T B_kj of matching parts of the shared dimension; block C_ij is their
sum over k. Cross products (k != l) are never computed.
"""

from __future__ import annotations

from cmm.codes.base import Code, Threshold
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination


def product(grid: Grid, number: int) -> tuple[int, int]:
    """(chunk of A, chunk of B) of wanted product `number` in 0 .. p*m*n - 1; the order is k, then i, then j."""
    k, block = divmod(number, grid.K)
    i, j = divmod(block, grid.n)
    return k * grid.m + i, k * grid.n + j


def product_task(grid: Grid, task: int, number: int) -> Assignment:
    """Task that computes wanted product `number` from plain chunks."""
    ia, jb = product(grid, number)
    return Assignment.pair(task, Combination.unit(ia), Combination.unit(jb), grid.chunks_b)


class Uncoded(Code):
    """Task i is product i. P = pmn exactly; every result is needed; decoding is copying (p = 1) or adding (p > 1)."""

    name = "uncoded"
    paper = "none (baseline)"
    recovery = "all P = K"
    good_for = "clusters without stragglers; the baseline of every comparison"

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return grid.p * grid.K

    def _prepare(self) -> None:
        least = self.minimum_tasks()
        if least != self.P:
            raise UsageError("--tasks", f"must be {least} for uncoded on a {self.grid} grid", self.P,
                             "Leave --tasks out, or use --code replication for backup copies.")  # fmt: skip

    def _task(self, index: int) -> Assignment:
        return product_task(self.grid, index, index)

    @property
    def integer_weights(self) -> tuple[int, int]:
        return 1, 1

    @property
    def systematic(self) -> int:
        return self.P if self.grid.p == 1 else 0

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.P, certain=True)
