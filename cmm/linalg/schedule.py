"""The order in which symbols are solved for, found from the coefficients alone (design 4c; schemes A.3).

Over the reals a peeled symbol inherits the error of everything it was peeled from, divided by its pivot, so the *order*
decides the accuracy. The scheduler carries a predicted squared error for every symbol (unit: that of a result of unit
coefficients) and always takes the ready item that promises the least:

    a row with one unknown u       (Σ c² + Σ_{v known} c_v² err_v) / c_u²
    a line of the outer code       max over its unknowns u of Σ_v W_uv² err_v,   W = −H_u⁺ H_known

When nothing is ready, or when even the best item would exceed the cap, a symbol is *inactivated*: carried as a variable
and solved for in the dense stage. `order` "fifo" and "lifo" exist for the experiment of docs/orders.md only.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from cmm.core.errors import InternalError
from cmm.core.task import Array, IntArray
from cmm.linalg.outer import ProductCode

ORDERS = ("error", "fifo", "lifo")
SINGULAR_LINE = 1e-9  # a line whose unknowns' checks are this close to dependent is not used


@dataclass(frozen=True, eq=False)
class SparseSystem:
    """Sparse equations over symbols.

    Attributes
    ----------
    matrix : CSR (N × symbols), one row per result; no stored zeros
    known : symbols whose value is at hand already (direct results), increasing
    known_error : their predicted squared errors, same length
    noise : (N,) squared errors of the results themselves; None: Σ c² of every row, what unit blocks give
    outer : the product code the symbols obey, or None
    """

    matrix: sp.csr_array
    known: IntArray = field(default_factory=lambda: np.empty(0, np.intp))
    known_error: Array = field(default_factory=lambda: np.empty(0))
    outer: ProductCode | None = None
    noise: Array | None = None

    @property
    def symbols(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def results(self) -> int:
        return int(self.matrix.shape[0])

    def random_columns(self, count: int) -> tuple[Array, Array]:
        """(symbols, results) of `count` columns of N(0, 1) blocks, known ones zero; seeded by the number of results."""
        truth = np.random.default_rng(self.results).standard_normal((self.symbols, count))
        truth[self.known] = 0.0
        if self.outer is not None:
            self.outer.encode(truth)
        return truth, self.matrix @ truth


@dataclass(frozen=True, eq=False)
class LineStep:
    """Solve `unknowns` of a line: x[unknowns] = weights @ x[line]; `weights` is zero at the unknowns themselves.

    unknowns, places : symbol numbers, and where they stand in the line
    spare : equations of the line left over when it has more checks than unknowns (rows over the line's members)
    """

    line: int
    unknowns: IntArray
    places: IntArray
    weights: Array
    spare: Array
    level: int = 0


@dataclass(frozen=True, eq=False)
class Schedule:
    """What is solved from what, in order.

    Attributes
    ----------
    system : the equations scheduled
    step_rows, step_symbols, step_levels : (steps,) result row solved for symbol, at dependency level (≥ 1)
    lines : the line steps, in order
    inactive : inactivated symbols, in order
    unsolved : symbols left at a stall when inactivation was not allowed
    error : (symbols,) predicted squared error; 0 at inactive symbols
    """

    system: SparseSystem
    step_rows: IntArray
    step_symbols: IntArray
    step_levels: IntArray
    lines: tuple[LineStep, ...]
    inactive: IntArray
    unsolved: IntArray
    error: Array
    row_error: Array  # (N,) predicted squared error of every row's residual once all symbols are known

    @property
    def leftover_rows(self) -> IntArray:
        """Rows that solved nothing: the equations of the dense stage."""
        return np.setdiff1d(np.arange(self.system.results), self.step_rows)

    @property
    def worst_error(self) -> float:
        """Largest predicted squared error of a symbol."""
        return float(self.error.max(initial=0.0))


def make_schedule(system: SparseSystem, *, order: str = "error", cap: float = np.inf,
                  inactivate: bool = True, largest: int | None = None) -> Schedule | None:  # fmt: skip
    """Schedule the system's symbols.

    Parameters
    ----------
    order : "error" (smallest predicted error first), or "fifo" / "lifo" for comparison
    cap : predicted squared error above which a symbol is inactivated rather than peeled
    inactivate : False stops at the first stall instead (plain peeling); `unsolved` then tells what is left
    largest : give up (return None) as soon as more than so many symbols are inactive
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is none of {', '.join(ORDERS)}")
    return _Scheduler(system, order, cap).run(inactivate, system.symbols if largest is None else largest)


class _Scheduler:
    """The mutable state behind `make_schedule`. Plain lists: single elements are read and written 10⁵ times."""

    def __init__(self, system: SparseSystem, order: str, cap: float) -> None:
        self.system, self.order, self.cap = system, order, cap
        matrix = system.matrix
        squares = np.abs(matrix.data) ** 2
        self.columns = matrix.indices.tolist()
        self.squares = squares.tolist()
        self.starts = matrix.indptr.tolist()
        self.touching = _by_column(matrix, squares)
        self.residual = array("l", np.diff(matrix.indptr).tolist())
        self.last = _index_sums(matrix).tolist()
        noise = np.bincount(_row_ids(matrix), squares, system.results) if system.noise is None else system.noise
        self.row_error: list[float] = noise.tolist()
        self.row_level = [0] * system.results
        self.error = [0.0] * system.symbols
        self.level = [0] * system.symbols
        self.solved = bytearray(system.symbols)
        self.remaining = system.symbols
        self.heap: list[tuple[float, int, int, int]] = []  # (key, tie, row or ~line, unknowns of the line)
        self.ties = 0
        self.steps: list[tuple[int, int, int]] = []
        self.lines: list[LineStep] = []
        self.inactive: list[int] = []
        self.line_unknown: list[set[int]] = []
        self.ready_lines: dict[int, tuple[LineStep, Array]] = {}
        self.know = self._know_in_row if system.outer is None else self._know_in_row_and_lines

    # ---- the main loop ---------------------------------------------------------------------------------------

    def run(self, inactivate: bool, largest: int) -> Schedule | None:
        self._start()
        while self.remaining:
            item = self._next()
            if item is None:
                if not inactivate:
                    break
                self._inactivate(self._most_wanted())
                if len(self.inactive) > largest:
                    return None
            elif item[0] > self.cap and inactivate:
                heappush(self.heap, item)
                self._inactivate(self._most_wanted())
                if len(self.inactive) > largest:
                    return None
            elif item[2] >= 0:
                self._take_row(item[2], item[0])
            else:
                self._take_line(~item[2])
        return self._finished()

    def _start(self) -> None:
        outer = self.system.outer
        if outer is not None:
            self.line_unknown = [set(outer.members(line).tolist()) for line in range(outer.lines)]
        for row, count in enumerate(self.residual):
            if count == 1:
                self._push_row(row)
        for symbol, error in zip(self.system.known.tolist(), self.system.known_error.tolist(), strict=True):
            self.know(symbol, error, 0)

    def _next(self) -> tuple[float, int, int, int] | None:
        """The best ready item that still solves something."""
        while self.heap:
            item = heappop(self.heap)
            source = item[2]
            if source >= 0:
                if self.residual[source] == 1:
                    return item
            elif len(self.line_unknown[~source]) == item[3]:
                return item
        return None

    def _take_row(self, row: int, key: float) -> None:
        symbol = self.last[row]
        error = key if self.order == "error" else self._row_key(row, symbol)
        level = self.row_level[row] + 1
        self.steps.append((row, symbol, level))
        self.know(symbol, error, level)

    def _take_line(self, line: int) -> None:
        step, errors = self.ready_lines.pop(line)
        members = self.line_members(line).tolist()
        level = 1 + max(self.level[v] for v in members if self.solved[v])
        self.lines.append(replace(step, level=level))
        for symbol, error in zip(step.unknowns.tolist(), errors.tolist(), strict=True):
            self.know(symbol, error, level)

    def line_members(self, line: int) -> IntArray:
        outer = self.system.outer
        if outer is None:
            raise InternalError("a system without an outer code has no lines")
        return outer.members(line)

    # ---- bookkeeping -----------------------------------------------------------------------------------------

    def _know_in_row(self, symbol: int, error: float, level: int) -> None:
        """Mark a symbol known and tell every row that contains it."""
        self.solved[symbol] = 1
        self.remaining -= 1
        self.error[symbol], self.level[symbol] = error, level
        residual, last, row_error, row_level = self.residual, self.last, self.row_error, self.row_level
        rows, squares = self.touching[symbol]
        for row, square in zip(rows, squares, strict=True):
            residual[row] -= 1
            last[row] -= symbol
            row_error[row] += square * error
            if level > row_level[row]:
                row_level[row] = level
            if residual[row] == 1:
                self._push_row(row)

    def _know_in_row_and_lines(self, symbol: int, error: float, level: int) -> None:
        self._know_in_row(symbol, error, level)
        outer = self.system.outer
        for line in outer.lines_of(symbol):  # type: ignore[union-attr]
            unknown = self.line_unknown[line]
            unknown.discard(symbol)
            if 0 < len(unknown) <= len(outer.check(line)):  # type: ignore[union-attr]
                self._push_line(line, unknown)

    def _push_row(self, row: int) -> None:
        key = self._row_key(row, self.last[row]) if self.order == "error" else self._tie_key()
        self.ties += 1
        heappush(self.heap, (key, self.ties, row, 1))

    def _push_line(self, line: int, unknown: set[int]) -> None:
        found = self._line_step(line, np.array(sorted(unknown), dtype=np.intp))
        if found is None:
            return
        self.ready_lines[line] = found
        key = float(found[1].max()) if self.order == "error" else self._tie_key()
        self.ties += 1
        heappush(self.heap, (key, self.ties, ~line, len(unknown)))

    def _tie_key(self) -> float:
        return float(self.ties if self.order == "fifo" else -self.ties)

    def _row_key(self, row: int, symbol: int) -> float:
        position = self.columns.index(symbol, self.starts[row], self.starts[row + 1])
        square: float = self.squares[position]
        return self.row_error[row] / square

    def _line_step(self, line: int, unknowns: IntArray) -> tuple[LineStep, Array] | None:
        """How a line's unknowns follow from the rest of it, and their predicted squared errors."""
        outer = self.system.outer
        members, checks = self.line_members(line), outer.check(line)  # type: ignore[union-attr]
        where = np.searchsorted(members, unknowns)
        q, r = scipy.linalg.qr(checks[:, where], check_finite=False)
        count = len(unknowns)
        pivots = np.abs(np.diagonal(r))
        if pivots.min() < SINGULAR_LINE * pivots.max():
            return None
        known = checks.copy()
        known[:, where] = 0.0
        weights = -scipy.linalg.solve_triangular(r[:count], q[:, :count].T @ known, check_finite=False)
        errors = np.array([self.error[v] for v in members.tolist()])
        spare = q[:, count:].T @ known
        return LineStep(line, unknowns, where, weights, spare), (weights**2) @ errors

    # ---- inactivation ----------------------------------------------------------------------------------------

    def _inactivate(self, symbol: int) -> None:
        self.inactive.append(symbol)
        self.know(symbol, 0.0, 0)

    def _most_wanted(self) -> int:
        """The unknown that occurs most often among the rows of least residual degree (≥ 2), the lowest of equals;
        where no such row is left, an unknown of the line with the fewest; else the first one (ERRATA.md, item 7)."""
        matrix = self.system.matrix
        residual = np.frombuffer(self.residual, dtype=np.dtype("l"))
        unknown = np.frombuffer(self.solved, dtype=np.uint8) == 0
        candidates = residual[residual >= 2]
        if len(candidates):
            rows = np.flatnonzero(residual == candidates.min())
            members = _members(matrix, rows)
            counts = np.bincount(members[unknown[members]], minlength=self.system.symbols)
            return int(np.argmax(counts))
        lines = sorted((len(members), min(members)) for members in self.line_unknown if members)
        return lines[0][1] if lines else int(np.argmax(unknown))

    # ---- the result ------------------------------------------------------------------------------------------

    def _finished(self) -> Schedule:
        steps = np.array(self.steps, dtype=np.intp).reshape(-1, 3)
        unsolved = np.flatnonzero(np.frombuffer(self.solved, dtype=np.uint8) == 0)
        return Schedule(self.system, steps[:, 0], steps[:, 1], steps[:, 2], tuple(self.lines),
                        np.array(self.inactive, dtype=np.intp), unsolved, np.array(self.error),
                        np.array(self.row_error))  # fmt: skip


def _row_ids(matrix: sp.csr_array) -> IntArray:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _index_sums(matrix: sp.csr_array) -> IntArray:
    """Sum of every row's indices: taking known ones off leaves the number of the last unknown."""
    return np.bincount(_row_ids(matrix), matrix.indices, matrix.shape[0]).astype(np.intp)


def _members(matrix: sp.csr_array, rows: IntArray) -> IntArray:
    """Column indices of the given rows, concatenated."""
    lengths = np.diff(matrix.indptr)[rows]
    starts = np.repeat(matrix.indptr[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return np.asarray(matrix.indices[starts + np.arange(lengths.sum())], dtype=np.intp)


def _by_column(matrix: sp.csr_array, squares: Array) -> list[tuple[list[int], list[float]]]:
    """For every symbol the rows that contain it and its squared coefficients there."""
    order = np.argsort(matrix.indices, kind="stable")
    rows, values = _row_ids(matrix)[order].tolist(), squares[order].tolist()
    ends = np.cumsum(np.bincount(matrix.indices, minlength=matrix.shape[1])).tolist()
    starts = [0, *ends[:-1]]
    return [(rows[a:b], values[a:b]) for a, b in zip(starts, ends, strict=True)]
