"""Product codes of any number of dimensions: results are cells of an array whose every line is an MDS codeword.

    n_1 x n_2 x ... x n_d cells, the source blocks in the corner k_1 x ... x k_d; along axis a every line obeys
    H_a x = 0,  H_a = [G_a, -I]  (n_a - k_a checks),  and any n_a - k_a of its cells follow from the others

Iterative decoding (Lee, Suh, Ramchandran 2017; Baharav et al. 2018): solve any line with at most n_a - k_a unknown
cells until nothing is left. Which cells that reaches does not depend on the order; over the reals the accuracy does,
so the plan takes the line with the smallest predicted error first (design 4c). Where lines stall and few blocks are
missing, the general dense decoder is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import prod

import numpy as np

from cmm.core.errors import FailureKind
from cmm.core.task import Array, IntArray
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import Plan
from cmm.linalg.rows import CodedRow, Targets

DENSE_UP_TO = 256  # missing blocks up to which a stall is given to the dense decoder


@dataclass(frozen=True, eq=False)
class LineCode:
    """A systematic product code.

    Attributes
    ----------
    parities : for every axis (n_a - k_a, k_a) float64, the parity rows G_a
    """

    parities: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_1, ..., n_d)."""
        return tuple(sum(parity.shape) for parity in self.parities)

    @property
    def sides(self) -> tuple[int, ...]:
        """(k_1, ..., k_d)."""
        return tuple(parity.shape[1] for parity in self.parities)

    @cached_property
    def checks(self) -> tuple[Array, ...]:
        """H_a of every axis."""
        return tuple(np.hstack([parity, -np.eye(len(parity))]) for parity in self.parities)

    @cached_property
    def source(self) -> IntArray:
        """(K,) cell number of every source block, row-major in both."""
        cells = np.arange(prod(self.shape)).reshape(self.shape)
        return cells[tuple(slice(k) for k in self.sides)].ravel()

    @cached_property
    def members(self) -> tuple[IntArray, ...]:
        """For every axis (lines, n_a): cell numbers along each line."""
        cells = np.arange(prod(self.shape)).reshape(self.shape)
        return tuple(np.ascontiguousarray(np.moveaxis(cells, axis, -1)).reshape(-1, size)
                     for axis, size in enumerate(self.shape))  # fmt: skip

    @cached_property
    def line_of(self) -> tuple[IntArray, ...]:
        """For every axis (cells,): the line through each cell."""
        out = []
        for members in self.members:
            lines = np.empty(prod(self.shape), dtype=np.intp)
            lines[members] = np.arange(len(members))[:, None]
            out.append(lines)
        return tuple(out)

    def weights(self, axis: int, places: IntArray) -> Array | None:
        """W with x[places] = W x along a line of this axis (zero at the places); None when they are not determined."""
        check = self.checks[axis]
        unknown = check[:, places]
        if np.linalg.matrix_rank(unknown, tol=1e-9) < len(places):
            return None
        weights: Array = -np.linalg.lstsq(unknown, check, rcond=None)[0]
        weights[:, places] = 0.0
        return weights


class Peeler:
    """Which cells follow from those at hand; every cell and line is touched a bounded number of times."""

    def __init__(self, code: LineCode) -> None:
        self.code = code
        self.unknown = np.ones(prod(code.shape), dtype=bool)
        self._counts = [np.full(len(members), size) for members, size in zip(code.members, code.shape, strict=True)]
        self._source = np.zeros(prod(code.shape), dtype=bool)
        self._source[code.source] = True
        self.missing = len(code.source)

    def learn(self, cell: int) -> None:
        """A cell has arrived."""
        found = [cell]
        while found:
            cell = found.pop()
            if not self.unknown[cell]:
                continue
            self.unknown[cell] = False
            self.missing -= int(self._source[cell])
            for axis, counts in enumerate(self._counts):
                line = self.code.line_of[axis][cell]
                counts[line] -= 1
                if 0 < counts[line] <= len(self.code.parities[axis]):
                    members = self.code.members[axis][line]
                    found += members[self.unknown[members]].tolist()


@dataclass(frozen=True)
class LineStep:
    """x[members[places]] = weights @ x[members]."""

    members: IntArray
    places: IntArray
    weights: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class LinePlan(Plan):
    """Lines solved one after the other. cells: of the array; place: cell of every source; wanted: of every target."""

    method: str = "lines"
    cells: int
    place: IntArray
    wanted: IntArray
    steps: tuple[LineStep, ...]

    @property
    def workspace(self) -> int:
        """Elements of working memory per element of a block."""
        return self.cells + len(self.sources)

    def _solve(self, results: Array) -> Array:
        x = np.zeros((self.cells, results.shape[1]), dtype=results.dtype)
        x[self.place] = results
        for step in self.steps:
            x[step.members[step.places]] = step.weights @ x[step.members]
        wanted: Array = x[self.wanted]
        return wanted


def schedule(code: LineCode, received: Array) -> tuple[list[LineStep], float]:
    """Line steps that give all source cells, smallest predicted error first; and the largest predicted error
    amplification of a source cell. `received` (cells,) bool: cells at hand, each with error one."""
    error, known = np.where(received, 1.0, np.inf), received.copy()
    heap: list[tuple[float, int, int, int]] = []  # (squared error, axis, line, unknowns when it was computed)

    def offer(axis: int, line: int) -> None:
        members = code.members[axis][line]
        places = np.flatnonzero(~known[members])
        if 0 < len(places) <= len(code.parities[axis]) and (weights := code.weights(axis, places)) is not None:
            squares = np.where(known[members], error[members], 0.0)
            ready[axis, line] = places, weights, (weights**2) @ squares
            heappush(heap, (float(ready[axis, line][2].max()), axis, line, len(places)))

    ready: dict[tuple[int, int], tuple[IntArray, Array, Array]] = {}
    for axis, members in enumerate(code.members):
        for line in np.flatnonzero((~known[members]).sum(axis=1) <= len(code.parities[axis])).tolist():
            offer(axis, line)
    steps = []
    while heap and not known[code.source].all():
        _, axis, line, unknowns = heappop(heap)
        members = code.members[axis][line]
        places, weights, squared = ready[axis, line]
        if len(places) != unknowns or known[members[places]].any():
            continue  # superseded by a later offer of the same line
        known[members[places]], error[members[places]] = True, squared
        steps.append(LineStep(members, places, weights))
        for other in range(len(code.shape)):
            if other != axis:
                for cell in members[places].tolist():
                    offer(other, int(code.line_of[other][cell]))
    worst = float(error[code.source].max(initial=1.0))
    return _needed(steps, code), float(np.sqrt(worst))


def _needed(steps: list[LineStep], code: LineCode) -> list[LineStep]:
    """Without the steps that no source cell depends on."""
    wanted = np.zeros(prod(code.shape), dtype=bool)
    wanted[code.source] = True
    kept = []
    for step in reversed(steps):
        use = wanted[step.members[step.places]]
        if use.any():
            step = replace(step, places=step.places[use], weights=step.weights[use])
            wanted[step.members[(step.weights != 0).any(axis=0)]] = True
            kept.append(step)
    return kept[::-1]


class LineDecoder(Decoder):
    """A decoder with one cell a task.

    Parameters
    ----------
    code : the product code
    cell_of : task number -> its cell
    """

    def __init__(self, code: LineCode, cell_of: Callable[[int], int]) -> None:
        super().__init__(len(code.source), Targets(len(code.source)))
        self.code, self.cell_of = code, cell_of
        self.peeler = Peeler(code)

    def add(self, task: int, rows: Sequence[CodedRow]) -> None:
        """Take in an accepted result of one row; a single block, whoever computed it, is a source cell."""
        if task not in self._tasks:
            single = rows[0].singleton
            self.peeler.learn(int(self.code.source[rows[0].indices[0]]) if single else self.cell_of(task))
        super().add(task, rows)

    def _attempt(self) -> None:
        if len(self._direct) == self.unknowns or (self.peeler.missing and self.missing <= DENSE_UP_TO):
            super()._attempt()
        elif self.peeler.missing:
            message = f"lines stall with {self.peeler.missing} of {self.missing} missing blocks unsolved"
            self._refuse(FailureKind.INCOMPLETE, message, 1)
        else:
            self._accept(self._line_plan())

    def _line_plan(self) -> LinePlan:
        """The sources are what arrived other than blocks of C; those count as zero, because they are subtracted."""
        missing, place = np.flatnonzero(~self._known), np.array([self.cell_of(task) for task, _ in self._keys], np.intp)
        received = np.zeros(len(self.peeler.unknown), dtype=bool)
        received[place] = True
        received[self.code.source[self._known]] = True
        steps, amplification = schedule(self.code, received)
        plan = LinePlan(
            unknowns=self.unknowns, direct=self._direct.copy(), missing=missing, sources=tuple(self._keys),
            rows=tuple(self._rows), rank=self.unknowns, condition=max(1.0, amplification),
            reason=f"{len(steps)} lines solved, smallest predicted error first",
            cells=len(received), place=place, wanted=self.code.source[missing], steps=tuple(steps),
        )  # fmt: skip
        solving = sum(int(np.count_nonzero(step.weights)) for step in steps)
        return replace(plan, block_operations=int(plan.known_coefficients.nnz) + solving)
