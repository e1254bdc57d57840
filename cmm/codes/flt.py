"""Factored LT codes: every task is a random sparse combination of A's chunks times one of B's chunks.

arXiv 1907.11018, section III-A: draw a degree d from Ω, a factor pair d_A · d_B = d, d_A chunks of A and d_B chunks of
B, and a coefficient for each. Row over the blocks: a ⊗ b, supported on d_A × d_B of them.

Without an outer code a block is often met by no result until N is well beyond K: the paper warns of it and adds the
outer code of FR (fr_paper.py). A rateless code: tasks beyond P are more of the same stream.

Departures and reconstructions: ERRATA.md, items 1 (pair rule), 2 (laws), 3 (infeasible degrees).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from cmm.codes.base import Code, Parameter, Threshold
from cmm.codes.coefficients import COEFFICIENTS, LAWS, one_of
from cmm.core.grid import Grid
from cmm.core.task import Array, Assignment, Combination, IntArray
from cmm.linalg.degrees import PAIR_RULES, DegreeDistribution, sample_pairs, sample_subsets
from cmm.linalg.rows import CodedRow

PAGE = 1024  # tasks drawn at once; task i is row i mod PAGE of page i // PAGE whatever P is
KEPT_PAGES = 64

STREAM_PARAMETERS: Mapping[str, Parameter] = {
    "omega": Parameter(str, None, "degree distribution: 0.1x+0.5x^2+..., fr (default), raptorq, r10, soliton or "
                                  "robust-soliton:C:DELTA"),
    "pair_rule": Parameter(one_of(*PAIR_RULES), "uniform", "factor pair of a degree: uniform, balanced or one-sided"),
    "infeasible": Parameter(one_of("refuse", "drop"), None, "degrees without a factor pair: refuse, or drop them (the "
                                                            "default omega is dropped from, one that is given is not)"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Page:
    """PAGE consecutive tasks: CSR pieces (indptr, indices, values) of the coefficient vectors of both sides."""

    a: tuple[IntArray, IntArray, Array]
    b: tuple[IntArray, IntArray, Array]
    shape: tuple[int, int]

    def factors(self, row: int) -> tuple[Combination, Combination]:
        """The pair (a, b) of a task."""
        return _slice(self.a, row), _slice(self.b, row)

    @cached_property
    def matrix(self) -> sp.csr_array:
        """Rows a ⊗ b over the m · n symbols, (PAGE × mn)."""
        (pa, ia, va), (pb, ib, vb) = self.a, self.b
        count_a, count_b = np.diff(pa), np.diff(pb)
        repeats = np.repeat(count_b, count_a)  # every a entry meets all b entries of its row
        ends = np.cumsum(repeats)
        within = np.arange(ends[-1]) - np.repeat(ends - repeats, repeats)
        right = np.repeat(np.repeat(pb[:-1], count_a), repeats) + within
        left = np.repeat(np.arange(len(ia)), repeats)
        indptr = np.concatenate([[0], np.cumsum(count_a * count_b)])
        columns = ia[left] * self.shape[1] + ib[right]
        shape = (len(count_a), self.shape[0] * self.shape[1])
        return sp.csr_array((va[left] * vb[right], columns, indptr), shape=shape)


def _slice(csr: tuple[IntArray, IntArray, Array], row: int) -> Combination:
    indptr, indices, values = csr
    part = slice(indptr[row], indptr[row + 1])
    return Combination(indices[part], values[part])


class FactoredStream:
    """The endless sequence of factored LT symbols over an m × n array; symbol i depends on (rng, i) only.

    Parameters
    ----------
    rng : generator of a page number's stream
    m, n : chunks of A and of B to combine (coded ones for FR)
    omega, rule, law : degree distribution (feasible), pair rule, law of the coefficients
    """

    def __init__(self, rng: Callable[[int], np.random.Generator], m: int, n: int, omega: DegreeDistribution,
                 rule: str, law: str) -> None:  # fmt: skip
        omega.check(m, n, rule)
        self.rng, self.m, self.n, self.omega, self.rule, self.law = rng, m, n, omega, rule, law
        self._pages: OrderedDict[int, Page] = OrderedDict()

    def page(self, number: int) -> Page:
        if number not in self._pages:
            self._pages[number] = self._draw(self.rng(number))
            if len(self._pages) > KEPT_PAGES:
                self._pages.popitem(last=False)
        return self._pages[number]

    def _draw(self, rng: np.random.Generator) -> Page:
        d_a, d_b = sample_pairs(self.omega, self.m, self.n, self.rule, rng, PAGE)
        sides = []
        for sizes, population in ((d_a, self.m), (d_b, self.n)):
            indptr, indices = sample_subsets(sizes, population, rng)
            sides.append((indptr, indices, LAWS[self.law](rng, len(indices))))
        return Page(sides[0], sides[1], (self.m, self.n))

    def factors(self, index: int) -> tuple[Combination, Combination]:
        """Coefficient vectors (a, b) of symbol `index`."""
        return self.page(index // PAGE).factors(index % PAGE)

    def row(self, index: int) -> CodedRow:
        """Symbol `index` over the m · n array."""
        matrix, row = self.page(index // PAGE).matrix, index % PAGE
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        return CodedRow(matrix.indices[part].astype(np.intp), matrix.data[part], self.factors(index))

    def matrix(self, indices: IntArray) -> sp.csr_array:
        """Several symbols at once, in the order given: CSR (len(indices) × mn)."""
        numbers = indices // PAGE
        order = np.argsort(numbers, kind="stable")
        parts = [self.page(int(k)).matrix[indices[numbers == k] % PAGE] for k in np.unique(numbers)]
        stacked = sp.csr_array(sp.vstack(parts)) if parts else sp.csr_array((0, self.m * self.n))
        return sp.csr_array(stacked[np.argsort(order)])


def read_omega(params: Mapping[str, Any], m: int, n: int) -> DegreeDistribution:
    """The degree distribution of the parameters, feasible on an m × n array.

    Raises UsageError for one that cannot be read, or that has infeasible degrees which are not to be dropped.
    """
    omega = DegreeDistribution.parse(params["omega"] or "fr", m * n)
    drop = params["omega"] is None if params["infeasible"] is None else params["infeasible"] == "drop"
    if drop:
        return omega.restricted(m, n, params["pair_rule"])
    omega.check(m, n, params["pair_rule"])
    return omega


class FactoredLT(Code):
    """FLT code on the chunks, without an outer code."""

    name = "flt"
    paper = "Factored LT and Factored Raptor codes, arXiv 1907.11018, section III-A"
    recovery = "about K ln(100 K) / mean degree (until every block is met); 11500 in the median at K = 6400"
    good_for = "studying fr: what the outer code is for; sparse encoding with no precode"
    parameters: ClassVar = {**STREAM_PARAMETERS, "coefficients": COEFFICIENTS}

    def _prepare(self) -> None:
        self.refuse_split()
        omega = read_omega(self.params, self.grid.m, self.grid.n)
        self.stream = FactoredStream(lambda page: self.rng("page", page), self.grid.m, self.grid.n, omega,
                                     self.params["pair_rule"], self.params["coefficients"])  # fmt: skip

    @classmethod
    def results_for(cls, grid: Grid) -> int:
        omega = DegreeDistribution.parse("fr", grid.K).restricted(grid.m, grid.n)
        return covering_results(grid.K, omega.mean)

    def _task(self, index: int) -> Assignment:
        a, b = self.stream.factors(index)
        return Assignment.pair(index, a, b, self.grid.chunks_b)

    @property
    def repairs(self) -> bool:
        return self.dispatch == "pull"

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        """Of a row over a few outstanding blocks all coefficients help; while many are out, more of the stream does."""
        if len(outstanding) > self.grid.K // 2:
            return self._task(index)
        return targeted(self, outstanding, index)

    @property
    def recovery_threshold(self) -> Threshold:
        """N at which no block is left uncovered with probability 0.99."""
        return Threshold(covering_results(self.grid.K, self.stream.omega.mean), certain=False)


def targeted(code: Code, outstanding: IntArray, index: int) -> Assignment:
    """A repair task with a on the rows and b on the columns of the outstanding blocks (design 4b)."""
    rows, columns = np.divmod(outstanding, code.grid.n)
    rng, law = code.rng("repair", index), LAWS[code.params["coefficients"]]
    a, b = np.unique(rows), np.unique(columns)
    return Assignment.pair(
        index, Combination(a, law(rng, len(a))), Combination(b, law(rng, len(b))), code.grid.chunks_b
    )


def covering_results(blocks: int, mean: float) -> int:
    """N with blocks · exp(−N · mean / blocks) = 0.01: every block is met by a result in 99 of 100 sets."""
    return max(blocks, math.ceil(blocks * math.log(100 * blocks) / mean))
