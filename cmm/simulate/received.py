"""The first N results of a trial: peeled on supports, or handed to a decoder and decoded on scalar blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmm.codes.base import Code
from cmm.core.errors import UsageError
from cmm.core.task import Array, Assignment, Combination, IntArray
from cmm.linalg.decoder import Decoder
from cmm.linalg.lines import LineCode
from cmm.linalg.lines import Peeler as Lines
from cmm.linalg.peeling import peel
from cmm.linalg.plan import CombinationPlan, Plan
from cmm.linalg.rows import CodedRow, stack

SHARED_ROWS = 100  # of A and of B: every chunk is one column of so many Gaussian numbers


class Peeler:
    """Does peeling decode the first N of an order? Supports only.

    Parameters
    ----------
    code : the code
    order : task numbers by arrival
    outer : whether lines of an outer (or product) code are solved, too

    Raises
    ------
    UsageError : `outer` for a code without one
    """

    def __init__(self, code: Code, order: IntArray, outer: bool) -> None:
        stream, inner = _stream(code)
        shape: tuple[int, int] | None = None
        checks = (0, 0)
        if outer:
            if inner is None:
                raise UsageError("--decoder", f"{code.name} as given has no outer code", "peeling+outer",
                                 "Use peeling, or fr:construction=paper.")  # fmt: skip
            shape, checks = (inner.rows, inner.columns), (inner.rows - inner.m, inner.columns - inner.n)
        self._shape, self._checks = shape, checks
        if stream is not None:
            self._matrix, self._arrived = stream.matrix(order), np.arange(len(order))
            self._wanted: Any = slice(None) if inner is None else inner.source
        else:
            self._matrix, self._arrived = _rows(code, order)
            targets = code.targets.matrix
            self._wanted = slice(None) if targets is None else np.unique(targets.indices)

    def decodes(self, results: int) -> bool:
        """Whether all wanted symbols follow from the first so many results."""
        matrix = self._matrix[: int(np.searchsorted(self._arrived, results))]
        return not peel(matrix, self._shape, self._checks)[self._wanted].any()

    def threshold(self) -> int | None:
        """The smallest N that decodes; None when all do not. Result by result, each entry of the rows touched twice."""
        growing = _Growing(self._matrix.shape[1], self._wanted, self._shape, self._checks)
        starts, columns = self._matrix.indptr.tolist(), self._matrix.indices.tolist()
        for row, arrived in enumerate(self._arrived.tolist()):
            if not growing.learn(row, columns[starts[row] : starts[row + 1]]):
                return int(arrived) + 1
        return None


class _Growing:
    """Peeling that goes on as rows arrive. Plain lists: single elements are read and written 10⁵ times."""

    def __init__(self, symbols: int, wanted: Any, shape: tuple[int, int] | None, checks: tuple[int, int]) -> None:
        self.unknown = bytearray(b"\1" * symbols)
        source = np.zeros(symbols, dtype=np.uint8)
        source[wanted] = 1
        self.source = source.tobytes()
        self.missing = int(source.sum())
        self.touching: list[list[int]] = [[] for _ in range(symbols)]
        self.open: dict[int, list[int]] = {}  # row -> [unknowns left, sum of their numbers]
        self.columns, self.checks = (shape or (0, 0))[1], checks
        self.in_row, self.in_column = [self.columns] * (shape or (0, 0))[0], [(shape or (0, 0))[0]] * self.columns

    def learn(self, row: int, symbols: list[int]) -> int:
        """A row arrives; returns how many wanted symbols are unknown still."""
        unknown = [symbol for symbol in symbols if self.unknown[symbol]]
        if len(unknown) == 1:
            self._solve(unknown)
        elif unknown:
            self.open[row] = [len(unknown), sum(unknown)]
            for symbol in unknown:
                self.touching[symbol].append(row)
        return self.missing

    def _solve(self, found: list[int]) -> None:
        while found:
            symbol = found.pop()
            if not self.unknown[symbol]:
                continue
            self.unknown[symbol] = 0
            self.missing -= self.source[symbol]
            for row in self.touching[symbol]:
                state = self.open[row]
                state[0] -= 1
                state[1] -= symbol
                if state[0] == 1:
                    found.append(state[1])
            if self.columns:
                self._lines(symbol, found)

    def _lines(self, symbol: int, found: list[int]) -> None:
        i, j = divmod(symbol, self.columns)
        self.in_row[i] -= 1
        self.in_column[j] -= 1
        if 0 < self.in_row[i] <= self.checks[1]:
            start = i * self.columns
            found += [s for s in range(start, start + self.columns) if self.unknown[s]]
        if 0 < self.in_column[j] <= self.checks[0]:
            found += [s for s in range(j, len(self.unknown), self.columns) if self.unknown[s]]


class LinesPeeler:
    """The same for product codes: lines of the array, cell by cell as they arrive."""

    def __init__(self, code: Code, order: IntArray) -> None:
        self._lines: LineCode = code.lines  # type: ignore[attr-defined]
        self._cells = [code.cell(task) for task in order.tolist()]  # type: ignore[attr-defined]

    def decodes(self, results: int) -> bool:
        """Whether all source blocks follow from the first so many results."""
        found = self.threshold(results)
        return found is not None

    def threshold(self, most: int | None = None) -> int | None:
        """The smallest N (up to `most`) that decodes; None when none does."""
        peeler = Lines(self._lines)
        for count, cell in enumerate(self._cells[:most], start=1):
            peeler.learn(cell)
            if not peeler.missing:
                return count
        return None


def make_peeler(code: Code, order: IntArray, decoder: str) -> Peeler | LinesPeeler:
    """For decoder "peeling" or "peeling+outer". Raises UsageError."""
    if decoder == "peeling+outer" and hasattr(code, "lines"):
        return LinesPeeler(code, order)
    return Peeler(code, order, decoder == "peeling+outer")


def _stream(code: Code) -> tuple[Any, Any]:
    """(FactoredStream, outer code) of codes that have a sparse form over coded pairs; (None, None) of others."""
    inner = getattr(code, "construction", code)
    return getattr(inner, "stream", None), getattr(inner, "outer", None)


def _rows(code: Code, order: IntArray) -> tuple[sp.csr_array, IntArray]:
    """(rows over the unknowns by arrival, position in the order of the task behind every row)."""
    rows: list[CodedRow] = []
    arrived: list[int] = []
    for position, task in enumerate(order.tolist()):
        own = code.rows(code.task(task))
        rows += own
        arrived += [position] * len(own)
    return stack(rows, code.unknowns), np.array(arrived, dtype=np.intp)


def make_decoder(code: Code, name: str) -> Decoder:
    """A fresh decoder of the kind asked for: the code's own for "auto"."""
    if name == "auto":
        return code.decoder(real_data=True)
    if name == "inactivation" and _stream(code)[1] is not None:
        return code.decoder(real_data=True)  # it inactivates over the coded pairs
    method = {"inactivation": "inactivation", "dense": "lu"}[name]
    return Decoder(code.unknowns, code.targets, realify=code.complex_coefficients, method=method)


class ScalarProblem:
    """C = AᵀB with one column a chunk: what workers would return, and how well a plan recovers C.

    Parameters
    ----------
    code : gives the tasks
    rng : draws A and B, Gaussian
    rows : s
    """

    def __init__(self, code: Code, rng: np.random.Generator, rows: int = SHARED_ROWS) -> None:
        self.code = code
        self.A = rng.standard_normal((rows, code.grid.chunks_a))
        self.B = rng.standard_normal((rows, code.grid.chunks_b))

    @cached_property
    def unknowns(self) -> Array:
        """(unknowns, 1): A_iaᵀB_jb."""
        products: Array = (self.A.T @ self.B).reshape(-1, 1)
        return products

    def results(self, tasks: Sequence[int]) -> dict[tuple[int, int], complex]:
        """(task, output) -> what a worker returns, encoded and multiplied in working precision."""
        assignments = [self.code.task(task) for task in tasks]
        simple = [x for x in assignments if len(x.a) == len(x.b) == 1 and x.outputs == (((0, 0),),)]
        found: dict[tuple[int, int], complex] = {}
        if simple:
            a = self._coded(self.A, [x.a[0] for x in simple])
            b = self._coded(self.B, [x.b[0] for x in simple])
            values = np.einsum("ip,ip->p", a, b).tolist()
            found.update({(x.task, 0): value for x, value in zip(simple, values, strict=True)})
        others = {x.task for x in assignments} - {x.task for x in simple}
        for assignment in assignments:
            if assignment.task in others:
                found.update(self._outputs(assignment))
        return found

    def _outputs(self, assignment: Assignment) -> dict[tuple[int, int], complex]:
        a, b = self._coded(self.A, assignment.a), self._coded(self.B, assignment.b)
        return {(assignment.task, q): sum(complex_or_float(a[:, x] @ b[:, y]) for x, y in pairs)
                for q, pairs in enumerate(assignment.outputs)}  # fmt: skip

    @staticmethod
    def _coded(chunks: Array, combinations: Sequence[Combination]) -> Array:
        """(rows, len(combinations)) coded chunks."""
        indptr = np.concatenate([[0], np.cumsum([c.degree for c in combinations])])
        indices = np.concatenate([c.indices for c in combinations])
        values = np.concatenate([c.values for c in combinations])
        weights = sp.csr_array((values, indices, indptr), shape=(len(combinations), chunks.shape[1]))
        coded: Array = (weights @ chunks.T).T
        return coded

    def relative_error(self, plan: Plan) -> float:
        """‖C − Ĉ‖_F / ‖C‖_F over all targets; inf when it overflows."""
        direct = {} if isinstance(plan, CombinationPlan) else plan.direct
        sources = {key for key, _ in direct.values()} | set(plan.sources)
        results = self.results(sorted({task for task, _ in sources}))
        x = self.unknowns
        known = np.zeros_like(x)
        for unknown, (key, coefficient) in direct.items():
            known[unknown] = (results[key] / coefficient).real
        error = float(np.sum((known - x)[list(direct)] ** 2)) if direct else 0.0
        size = float(np.sum(x[list(direct)] ** 2)) if direct else 0.0
        if len(plan.missing):
            arrived = np.array([[results[key]] for key in plan.sources])
            truth = plan.answer(x)
            with np.errstate(all="ignore"):
                solved = plan.solve(known if direct else None, arrived)
                error += float(np.sum(np.abs(solved - truth) ** 2))
            size += float(np.sum(np.abs(truth) ** 2))
        return float(np.sqrt(error / size)) if np.isfinite(error) else float("inf")


def complex_or_float(value: Any) -> complex:
    """A NumPy scalar as a Python number."""
    number: complex = value.item()
    return number
