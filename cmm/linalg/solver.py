"""Applying a schedule to numbers: two passes around a small dense system, then one refinement (design 4c).

        symbols                         inactive
      ┌──────────────────────┬──────┐
      │ 1                    │ ×    │
      │ × 1     steps, in    │ ×  × │   pass 1: inactive = 0, every step in order   → x⁰
      │   × 1   dependency   │   ×  │
      │ ×   × 1 order        │ × ×  │
      ├──────────────────────┼──────┤
      │ leftover rows, spare │  S   │   S = leftover · D, D = what the inactive symbols do to all others
      │ parity checks        │      │   S x_inactive = leftover results − leftover · x⁰
      └──────────────────────┴──────┘   pass 2: inactive filled in, every step in order → x

Running the steps twice is cheaper than multiplying by D, which is dense. Steps of one dependency level do not use each
other, so a level is one sparse product over whole element slices; there is no Python loop over blocks or elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from cmm.core.errors import InternalError
from cmm.core.task import Array, IntArray
from cmm.linalg.schedule import LineStep, Schedule

RANK_TOLERANCE = 1e-11  # pivots of the dense system, its columns' terms scaled to size one, that count as zero
CANCELLED = 32 * float(np.finfo(np.float64).eps)  # share of its terms' sizes below which a sum counts as zero
DOUBTFUL = (1e-14, 1e-8)  # relative pivots in between may be small or zero


@dataclass(frozen=True, eq=False)
class Level:
    """The steps of one dependency level.

    rows, symbols : result rows solved and for which symbols
    inverse_pivots : 1 / pivot of each
    others : CSR (steps × symbols), the rest of every row divided by its pivot
    lines : line steps of the level
    """

    rows: IntArray
    symbols: IntArray
    inverse_pivots: Array
    others: sp.csr_array
    lines: tuple[LineStep, ...]


class Passes:
    """A schedule's steps, prepared for numbers."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.system = schedule, schedule.system
        self.levels = tuple(_levels(schedule))

    def run(self, x: Array, results: Array) -> None:
        """All steps in order. x (symbols, e) holds known and inactive symbols and zeros elsewhere, and is filled in;
        results (N, e)."""
        outer = self.system.outer
        cube = None if outer is None else x.reshape(outer.rows, outer.columns, -1)
        for level in self.levels:
            if len(level.rows):
                values = results[level.rows]
                values *= level.inverse_pivots[:, None]
                values -= level.others @ x
                x[level.symbols] = values
            for step in level.lines:
                line = _line_view(cube, step.line)
                line[step.places] = step.weights @ line

    def depend(self, x: Array) -> None:
        """All steps in order for results of zero: what inactive symbols (set in x, zeros elsewhere) add to the others.
        Sums that are nothing but rounding become zero, so that no rank is made of them."""
        for level in self.levels:
            x[level.symbols] = -_clean_product(level.others, x)
            for step in level.lines:
                x[step.unknowns] = _clean_product(step.weights, x[self._members(step.line)])

    def _members(self, line: int) -> IntArray:
        outer = self.system.outer
        if outer is None:
            raise InternalError("line step without an outer code")
        return outer.members(line)

    def reset(self, x: Array) -> None:
        """Zero every symbol that a step solves, as `run` requires of line steps."""
        for level in self.levels:
            x[level.symbols] = 0
            for step in level.lines:
                x[step.unknowns] = 0

    @cached_property
    def operations(self) -> int:
        """Multiply-adds of blocks in one pass."""
        rows = sum(int(level.others.nnz) + len(level.rows) for level in self.levels)
        return rows + sum(int(np.count_nonzero(step.weights)) for level in self.levels for step in level.lines)


def _clean_product(matrix: sp.csr_array | Array, x: Array) -> Array:
    """matrix @ x with zeros where everything cancels."""
    product: Array = matrix @ x
    product[np.abs(product) <= CANCELLED * (abs(matrix) @ np.abs(x))] = 0
    return product


def _line_view(cube: Array | None, line: int) -> Array:
    """(length, e) view of a line's symbols in the (m̃, ñ, e) array."""
    if cube is None:
        raise InternalError("line step without an outer code")
    rows = cube.shape[0]
    return cube[line] if line < rows else cube[:, line - rows]


def _levels(schedule: Schedule) -> list[Level]:
    depth = max(int(schedule.step_levels.max(initial=0)), max((step.level for step in schedule.lines), default=0))
    order = np.argsort(schedule.step_levels, kind="stable")
    rows, symbols = schedule.step_rows[order], schedule.step_symbols[order]
    inverse, others = _divided(schedule.system.matrix, rows, symbols)
    bounds = np.searchsorted(schedule.step_levels[order], np.arange(1, depth + 2))
    by_level: list[list[LineStep]] = [[] for _ in range(depth)]
    for step in schedule.lines:
        by_level[step.level - 1].append(step)
    return [Level(rows[a:b], symbols[a:b], inverse[a:b], _cut(others, a, b), tuple(lines))
            for a, b, lines in zip(bounds[:-1], bounds[1:], by_level, strict=True)]  # fmt: skip


def _divided(matrix: sp.csr_array, rows: IntArray, symbols: IntArray) -> tuple[Array, sp.csr_array]:
    """(1 / pivot, the rest of each row divided by its pivot) for rows solved for symbols."""
    chosen = sp.csr_array(matrix[rows])
    owner = np.repeat(np.arange(len(rows)), np.diff(chosen.indptr))
    pivot = chosen.indices == symbols[owner]
    inverse = 1.0 / chosen.data[pivot]
    rest = ~pivot
    indptr = np.concatenate([[0], np.cumsum(np.bincount(owner[rest], minlength=len(rows)))])
    data = (chosen.data * inverse[owner])[rest]
    return inverse, sp.csr_array((data, chosen.indices[rest], indptr), shape=chosen.shape)


def _cut(matrix: sp.csr_array, a: int, b: int) -> sp.csr_array:
    """Rows a … b, sharing memory."""
    part = slice(matrix.indptr[a], matrix.indptr[b])
    indptr = matrix.indptr[a : b + 1] - matrix.indptr[a]
    return sp.csr_array((matrix.data[part], matrix.indices[part], indptr), shape=(b - a, matrix.shape[1]))


@dataclass(frozen=True, eq=False)
class Dense:
    """The dense stage: S x = right side, S (equations × inactive), by QR with column pivoting.

    scale : (equations,) what every equation is multiplied by; column_scale : (inactive,) likewise for the unknowns
    rank : numerical rank; condition : estimated 1-norm condition of R (infinite when rank is deficient)
    certain : whether the pivots leave no doubt about the rank
    """

    q: Array
    r: Array
    pivots: IntArray
    scale: Array
    column_scale: Array
    rank: int
    condition: float
    certain: bool

    @property
    def operations(self) -> int:
        """Multiply-adds of blocks in `solve`."""
        return int(self.q.size + self.r.size // 2)

    @classmethod
    def factor(cls, s: Array, sizes: Array, errors: Array) -> Dense:
        """Factor S. `sizes`, like S: sum of the sizes of the terms that every entry is the sum of; columns are scaled
        by them, so that one in which everything cancels stays as small as its rounding and is no pivot. `errors`
        (equations,): predicted squared errors of the right sides, which weight them."""
        scale = 1.0 / np.sqrt(np.maximum(errors, np.finfo(float).tiny))
        weighted = s * scale[:, None]
        norms = np.linalg.norm(sizes * scale[:, None], axis=0)
        column_scale = 1.0 / np.where(norms > 0, norms, 1.0)
        q, r, pivots = scipy.linalg.qr(weighted * column_scale, mode="economic", pivoting=True, check_finite=False)
        diagonal = np.abs(np.diagonal(r))  # relative to columns of size one
        rank = int(np.count_nonzero(diagonal > RANK_TOLERANCE))
        certain = not bool(((diagonal > DOUBTFUL[0]) & (diagonal < DOUBTFUL[1])).any())
        condition = _condition(r) if rank == s.shape[1] else np.inf
        return cls(q, r, pivots, scale, column_scale, rank, condition, certain)

    def solve(self, right: Array) -> Array:
        """Least-squares solution (inactive, e) of right sides (equations, e), which are overwritten."""
        right *= self.scale[:, None]
        y = scipy.linalg.solve_triangular(self.r, self.q.conj().T @ right, check_finite=False)
        x: Array = np.empty_like(y)
        x[self.pivots] = y
        x *= self.column_scale[:, None]
        return x


def _condition(r: Array) -> float:
    """1-norm condition of an upper triangular matrix, estimated by LAPACK trcon."""
    if not len(r):
        return 1.0
    trcon = scipy.linalg.get_lapack_funcs("trcon", (r,))
    reciprocal, _ = trcon(r)
    return float(1.0 / reciprocal) if reciprocal > 0 else np.inf


@dataclass(frozen=True, eq=False)
class Equations:
    """The equations of the dense stage: leftover result rows, then spare parity checks (whose results are zero)."""

    matrix: sp.csr_array
    rows: IntArray
    errors: Array

    def residual(self, x: Array, results: Array) -> Array:
        """What is left of the results, (equations, e)."""
        right: Array = -(self.matrix @ x)
        right[: len(self.rows)] += results[self.rows]
        return right


def dense_equations(schedule: Schedule) -> Equations:
    """Everything that solved nothing: rows, whole lines, and the spare checks of lines that were used."""
    system, rows = schedule.system, schedule.leftover_rows
    parts, errors = [sp.csr_array(system.matrix[rows])], [schedule.row_error[rows]]
    for checks, members in _spare_checks(schedule):
        count, length = checks.shape
        columns = np.broadcast_to(members, checks.shape).ravel()
        parts.append(sp.csr_array((checks.ravel(), columns, np.arange(count + 1) * length),
                                  shape=(count, system.symbols)))  # fmt: skip
        errors.append(np.abs(checks) ** 2 @ schedule.error[members])
    return Equations(sp.csr_array(sp.vstack(parts)), rows, np.concatenate(errors))


def _spare_checks(schedule: Schedule) -> list[tuple[Array, IntArray]]:
    outer = schedule.system.outer
    if outer is None:
        return []
    used = {step.line: step for step in schedule.lines}
    spare = [(used[line].spare if line in used else outer.check(line), outer.members(line))
             for line in range(outer.lines)]  # fmt: skip
    return [(checks, members) for checks, members in spare if len(checks)]


class SparseSolver:
    """The numeric side of a schedule: values of every symbol from the results.

    Attributes
    ----------
    passes, equations, dense : the three parts of the picture above (`dense` is None without inactive symbols)
    rank, deficiency : of the whole system; condition : of the dense stage (1 without)
    """

    def __init__(self, schedule: Schedule, *, refine: bool = False) -> None:
        self.schedule, self.system = schedule, schedule.system
        self.refine = refine
        self.passes = Passes(schedule)
        self.inactive = schedule.inactive
        self.equations: Equations | None = None
        self.dense: Dense | None = None
        if len(self.inactive):
            self.equations = dense_equations(schedule)
            dependence, matrix = self.dependence(), self.equations.matrix
            sizes = abs(matrix) @ np.abs(dependence)
            self.dense = Dense.factor(matrix @ dependence, sizes, self.equations.errors)

    def dependence(self) -> Array:
        """D (symbols × inactive): what a unit of each inactive symbol adds to every symbol."""
        count = len(self.inactive)
        x = np.zeros((self.system.symbols, count), dtype=self.system.matrix.dtype)
        x[self.inactive, np.arange(count)] = 1.0
        self.passes.depend(x)
        return x

    @property
    def deficiency(self) -> int:
        """How many independent equations are missing."""
        return len(self.schedule.unsolved) + (len(self.inactive) - self.dense.rank if self.dense else 0)

    @property
    def certain(self) -> bool:
        """Whether the rank is beyond doubt (structurally short, or a clear gap between the pivots)."""
        return self.dense is None or self.dense.certain

    @property
    def rank(self) -> int:
        return self.system.symbols - self.deficiency

    @property
    def condition(self) -> float:
        return self.dense.condition if self.dense else 1.0

    def decode(self, results: Array) -> Array:
        """All symbols, (symbols, e), from results (N, e) with the known symbols subtracted (those come out as 0)."""
        shape = (self.system.symbols, results.shape[1])
        x = np.zeros(shape, np.result_type(results, self.system.matrix.dtype))
        self._once(x, results)
        if self.refine:
            self._correct(x, results)
        return x

    def _once(self, x: Array, results: Array) -> None:
        self.passes.run(x, results)
        if self.dense is None or self.equations is None:
            return
        x_inactive = self.dense.solve(self.equations.residual(x, results))
        self.passes.reset(x)
        x[self.inactive] = x_inactive
        self.passes.run(x, results)

    def _correct(self, x: Array, results: Array) -> None:
        """One refinement: what re-encoding misses of the results is decoded with the same schedule and added."""
        if self.system.outer is not None:
            self.system.outer.encode(x)
        missed = results - self.system.matrix @ x
        correction = np.zeros_like(x)
        self._once(correction, missed)
        x += correction

    @property
    def workspace(self) -> int:
        """Elements that `decode` holds at a time per element of a block, results included."""
        arrays = self.system.symbols + self.system.results
        return arrays * (2 if self.refine else 1) + (0 if self.equations is None else self.equations.matrix.shape[0])

    @property
    def operations(self) -> int:
        """Multiply-adds of blocks in `decode`."""
        total = self.passes.operations
        if self.dense is not None and self.equations is not None:
            total = 2 * total + self.equations.matrix.nnz + self.dense.operations
        outer = self.system.outer
        encode = 0 if outer is None else outer.parity_a.size * outer.columns + outer.parity_b.size * outer.m
        return total * 2 + self.system.matrix.nnz + encode if self.refine else total
