"""Fractional repetition as coded multiplication: products are repeated in classes, nothing is encoded.

Charalambides, Mahdavifar, Hero, "Generalized fractional repetition codes for binary coded computations", arXiv
2109.10484. n tasks, s stragglers, k parts of the work. Class c = 0 ... s has the tasks congruent to c modulo s + 1, n
// (s + 1) of them or one more; inside a class the parts are dealt out contiguously, the first (k mod size) tasks one
part more (one formula for the paper's algorithms 1 and 2, ERRATA.md). Any complete class holds every part once, and s
stragglers cannot hit all s + 1 classes.

CMM-1 (grid p x m x n with p > 1)  The parts are the p pieces of the shared dimension; a task returns the *sum* of its
    pieces' products, and C is the sum of a class. Decoding adds up.
CMM-2 (grid m x n)  The parts are the mn blocks of C; a task returns its blocks one by one. Decoding copies: bit for bit
    the uncoded block products. Any results that hold every block between them decode, a complete class or not.

A task is (s + 1) / n of the whole product, where MDS-type codes ask for 1 / (n - s): the price of no arithmetic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from cmm.codes.base import Code, Parameter, Threshold
from cmm.core.errors import UsageError
from cmm.core.grid import Grid, cut
from cmm.core.task import Assignment, Combination
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import CombinationPlan, SourceKey
from cmm.linalg.rows import CodedRow, Targets

Run = tuple[int, SourceKey, CodedRow]  # (piece after the last one, result, its row)


def read_stragglers(text: str) -> int:
    """A whole number from 0 on."""
    if not text.strip().isdigit():
        raise ValueError("Write a whole number from 0 on.")
    return int(text)


def default_stragglers(tasks: int) -> int:
    """A tenth of the tasks, at least one, none of a single task."""
    return 0 if tasks == 1 else max(1, math.ceil(tasks / 10))


def largest_class(tasks: int, stragglers: int) -> int:
    """Tasks in class 0."""
    return -(-tasks // (stragglers + 1))


def parts_of(task: int, tasks: int, stragglers: int, parts: int) -> range:
    """The parts of a task: its share of a contiguous cut among its class."""
    place, klass = divmod(task, stragglers + 1)
    size = len(range(klass, tasks, stragglers + 1))
    bounds = cut(parts, size)
    return range(bounds[place], bounds[place + 1])


class FractionalRepetition(Code):
    """Generalised fractional repetition; the grid decides between CMM-1 (p > 1) and CMM-2 (p = 1)."""

    name = "fractional-repetition"
    paper = "Charalambides, Mahdavifar, Hero, arXiv 2109.10484, CMM-1 and CMM-2"
    recovery = "any P - stragglers; any complete class of about P / (stragglers + 1)"
    good_for = "no arithmetic in encoding or decoding: bit-identical blocks (p = 1), plain sums (p > 1)"
    parameters: ClassVar = {
        "stragglers": Parameter(read_stragglers, None, "tasks that may stay away; by default a tenth, at least one"),
    }

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return 1

    @classmethod
    def default_tasks(cls, grid: Grid, params: Mapping[str, Any], workers: int, late: int) -> int:
        """One task a worker, more for the stragglers asked for, fewer where the grid has too few parts."""
        given, parts = params["stragglers"], grid.p if grid.p > 1 else grid.K
        tasks = max(workers, (given or 0) + 1)
        while largest_class(tasks, default_stragglers(tasks) if given is None else given) > parts:
            tasks -= 1
        return tasks

    def _prepare(self) -> None:
        given = self.params["stragglers"]
        self.stragglers = default_stragglers(self.P) if given is None else given
        if self.stragglers >= self.P:
            raise UsageError("--param stragglers", f"must be below the number of tasks, {self.P}", self.stragglers,
                             f"Use at most {self.P - 1}, or --tasks {self.stragglers + 1} or more.")  # fmt: skip
        self.parts = self.grid.p if self.grid.p > 1 else self.grid.K
        least = largest_class(self.P, self.stragglers)
        if self.parts < least:
            enough = -(-self.P // self.parts) - 1
            raise UsageError("--grid", f"must cut the work into at least {least} parts: {self.P} tasks with "
                             f"{self.stragglers} stragglers make classes of {least}", self.grid,
                             f"Use a finer grid, stragglers={enough}, or fewer --tasks.")  # fmt: skip

    def _task(self, index: int) -> Assignment:
        parts = parts_of(index, self.P, self.stragglers, self.parts)
        return self._sums(index, parts) if self.grid.p > 1 else self._blocks(index, parts)

    def _sums(self, index: int, parts: range) -> Assignment:
        """CMM-1: output (i, j) is the sum over the parts k of A_ki^T B_kj."""
        m, n = self.grid.m, self.grid.n
        a = tuple(Combination.unit(k * m + i) for k in parts for i in range(m))
        b = tuple(Combination.unit(k * n + j) for k in parts for j in range(n))
        outputs = tuple(tuple((q * m + i, q * n + j) for q in range(len(parts))) for i in range(m) for j in range(n))
        return Assignment(index, a, b, outputs, unknowns_b=self.grid.chunks_b)

    def _blocks(self, index: int, parts: range) -> Assignment:
        """CMM-2: one output a block."""
        cells = [divmod(block, self.grid.n) for block in parts]
        rows, columns = sorted({i for i, _ in cells}), sorted({j for _, j in cells})
        a, b = tuple(map(Combination.unit, rows)), tuple(map(Combination.unit, columns))
        outputs = tuple(((rows.index(i), columns.index(j)),) for i, j in cells)
        return Assignment(index, a, b, outputs, unknowns_b=self.grid.chunks_b)

    @property
    def integer_weights(self) -> tuple[int, int]:
        return 1, 1

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.P - self.stragglers, certain=True)

    def decoder(self, *, real_data: bool = True) -> Decoder:
        if self.grid.p == 1:
            return super().decoder(real_data=real_data)
        return SumDecoder(self.grid)


class SumDecoder(Decoder):
    """CMM-1: every result is the sum over a run of pieces, so C follows as a plain sum as soon as some runs lie end to
    end from the first piece to the last. A complete class is one such chain; runs of several classes, and products that
    the master computed, may form others. Without a chain the general decoder is asked."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.unknowns, Targets.blocks(grid))
        self.grid = grid
        self._runs: list[dict[int, list[Run]]] = [{} for _ in range(grid.K)]  # block -> first piece -> runs from there

    def add(self, task: int, rows: Sequence[CodedRow]) -> None:
        """Take in an accepted result."""
        if task not in self._tasks:
            for output, row in enumerate(rows):
                self._enter((task, output), row)
        super().add(task, rows)

    def _enter(self, key: SourceKey, row: CodedRow) -> None:
        ia, jb = np.divmod(row.indices, self.grid.chunks_b)
        (pieces, i), (others, j) = np.divmod(ia, self.grid.m), np.divmod(jb, self.grid.n)
        block = int(i[0]) * self.grid.n + int(j[0])
        whole = (pieces == others).all() and (pieces == pieces[0] + np.arange(len(pieces))).all()
        if whole and (row.values == 1).all() and (i * self.grid.n + j == block).all():
            self._runs[block].setdefault(int(pieces[0]), []).append((int(pieces[-1]) + 1, key, row))

    def _chain(self, block: int) -> list[Run] | None:
        """The fewest runs end to end, or None (breadth first)."""
        back: dict[int, tuple[int, Run] | None] = {0: None}
        queue = deque([0])
        while queue and self.grid.p not in back:
            place = queue.popleft()
            for run in sorted(self._runs[block].get(place, ()), key=lambda run: run[1]):  # whatever the arrival
                if run[0] not in back:
                    back[run[0]] = place, run
                    queue.append(run[0])
        if self.grid.p not in back:
            return None
        chain, step = [], back[self.grid.p]
        while step is not None:
            chain.append(step[1])
            step = back[step[0]]
        return chain[::-1]

    def _attempt(self) -> None:
        chains = [chain for block in range(self.grid.K) if (chain := self._chain(block)) is not None]
        if len(chains) < self.grid.K:
            super()._attempt()
            return
        runs = [run for chain in chains for run in chain]
        owner = np.repeat(np.arange(self.grid.K), [len(chain) for chain in chains])
        assert self.targets.matrix is not None, "p > 1"
        self._accept(CombinationPlan(
            method="combination", unknowns=self.unknowns, direct={}, missing=np.arange(self.grid.K),
            sources=tuple(key for _, key, _ in runs), rows=tuple(row for _, _, row in runs), rank=len(runs),
            block_operations=len(runs), reason="sums of pieces that lie end to end",
            combination=(owner == np.arange(self.grid.K)[:, None]).astype(np.float64), take=np.arange(len(runs)),
            targets=self.targets.matrix,
        ))  # fmt: skip
