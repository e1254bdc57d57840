"""Factored Raptor codes: sparse combinations on both sides of the product.

Source: "Factored LT and Factored Raptor Codes for Large-Scale Distributed Matrix Multiplication", arXiv 1907.11018.
Every task is a factored LT symbol, a row a (kron) b with sparse a and b. Two constructions:

systematic (default)  The first K tasks are the source blocks, so results of live workers are blocks of C and only the
    missing ones are solved for. *Oneshot*: the other tasks come in rounds. A round permutes the chunks of A and cuts
    them into groups, likewise B, draws one coefficient vector per group, and its tasks are all (A-group, B-group)
    pairs: each round covers every block exactly once, and its coded chunks are shared by its tasks. *Pull*: repairs
    are targeted, a supported on the rows and b on the columns of the outstanding blocks.
paper  As published: an outer product code and independent draws from a degree distribution (fr_paper.py).
"""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module
from typing import ClassVar

import numpy as np

from cmm.codes.base import Code, Parameter, Threshold
from cmm.codes.coefficients import COEFFICIENTS, CONTINUOUS, combination, integer_weights, one_of
from cmm.codes.flt import STREAM_PARAMETERS
from cmm.codes.groups import group_counts, read_groups, read_loss
from cmm.codes.uncoded import product_task
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination, IntArray
from cmm.linalg.decoder import Decoder

Round = tuple[tuple[Combination, ...], tuple[Combination, ...]]


class Construction:
    """What distinguishes the constructions; `FactoredRaptor` forwards to one of them.

    A construction reads `code.grid`, `code.P`, `code.dispatch`, `code.params` and draws from `code.rng(...)`.
    """

    systematic = 0
    repairs = False
    shared_chunks = (0, 0)
    integer_weights: tuple[int, int] | None = None

    def __init__(self, code: FactoredRaptor) -> None:
        self.code, self.grid, self.law = code, code.grid, str(code.params["coefficients"])

    def task(self, index: int) -> Assignment:
        raise NotImplementedError

    def repair(self, outstanding: IntArray, index: int) -> Assignment:
        raise NotImplementedError

    def threshold(self) -> Threshold:
        raise NotImplementedError

    def decoder(self, real_data: bool) -> Decoder | None:
        """A decoder of its own, or None for the default one."""
        return None


class Systematic(Construction):
    """Source blocks first, then rounds (oneshot) or targeted repairs (pull)."""

    kept_rounds = 16  # rounds are made again when older ones are asked for

    def __init__(self, code: FactoredRaptor) -> None:
        super().__init__(code)
        self.systematic = self.grid.K
        self.repairs = code.dispatch == "pull"
        self.integer_weights = integer_weights(self.law, self.grid.m, self.grid.n)
        self.groups = group_counts(self.grid, code.P, code.params["groups"], code.params["loss"])
        self.shared_chunks = (0, 0) if self.repairs else self.groups
        self._rounds: OrderedDict[int, Round] = OrderedDict()

    @property
    def full(self) -> bool:
        return self.groups == (1, 1)

    def task(self, index: int) -> Assignment:
        if index < self.systematic:
            return product_task(self.grid, index, index)
        number, place = divmod(index - self.systematic, self.groups[0] * self.groups[1])
        a_groups, b_groups = self.round(number)
        i, j = divmod(place, self.groups[1])
        return Assignment.pair(index, a_groups[i], b_groups[j], self.grid.chunks_b)

    def round(self, number: int) -> Round:
        """The coded chunks of a round: the same objects for every task of it, so that they are encoded once."""
        if number not in self._rounds:
            rng = self.code.rng("round", number)
            self._rounds[number] = (self._cut(rng, self.grid.m, self.groups[0]),
                                    self._cut(rng, self.grid.n, self.groups[1]))  # fmt: skip
            if len(self._rounds) > self.kept_rounds:
                self._rounds.popitem(last=False)
        return self._rounds[number]

    def _cut(self, rng: np.random.Generator, chunks: int, groups: int) -> tuple[Combination, ...]:
        parts = np.array_split(rng.permutation(chunks), groups)
        return tuple(combination(self.law, rng, part) for part in parts)

    def repair(self, outstanding: IntArray, index: int) -> Assignment:
        if len(outstanding) == 1:  # nothing to combine: a plain copy needs no encoding and is exact
            return product_task(self.grid, index, int(outstanding[0]))
        rows, columns = np.divmod(outstanding, self.grid.n)
        rng = self.code.rng("repair", index)
        a = combination(self.law, rng, np.unique(rows))
        b = combination(self.law, rng, np.unique(columns))
        return Assignment.pair(index, a, b, self.grid.chunks_b)

    def threshold(self) -> Threshold:
        """Targeted repairs and full groups: any K (probability one). Rounds: K + 6 in 24 of 24 trials at K = 6400."""
        exact = self.full or self.repairs
        return Threshold(self.grid.K + (0 if exact else 6), certain=exact and self.law in CONTINUOUS)


class FactoredRaptor(Code):
    """FR code. Parameters: construction, groups (chunks per group of A x B), loss, coefficients."""

    name = "fr"
    paper = "Factored LT and Factored Raptor codes, arXiv 1907.11018 (systematic form: docs/codes.md)"
    recovery = "about K + 6 (systematic; any K with full groups); 7060 of 10000 at K = 6400 as published"
    good_for = "the default: results of live workers are blocks of C, repairs are cheap to encode and to decode"
    parameters: ClassVar = {
        "construction": Parameter(one_of("systematic", "paper"), "systematic", "systematic, or paper as published"),
        "groups": Parameter(read_groups, None, "chunks per group, AxB as in 27x5, or full, or sparse (by rule)"),
        "loss": Parameter(read_loss, None, "expected share of systematic results lost, which the groups are made for"),
        "coefficients": COEFFICIENTS,
        "outer": Parameter(str, None, "construction=paper: coded chunks MxN; two parities a side by default"),
        **STREAM_PARAMETERS,
    }
    excess = 10  # results beyond K that rounds are planned with

    @classmethod
    def results_for(cls, grid: Grid) -> int:
        return grid.K if group_counts(grid, grid.K, None, None) == (1, 1) else grid.K + cls.excess

    def _prepare(self) -> None:
        self.refuse_split()
        if self.params["construction"] == "paper":
            self.construction: Construction = import_module("cmm.codes.fr_paper").Paper(self)
            return
        for name in ("outer", "omega", "infeasible"):
            if self.params[name] is not None:
                raise UsageError(f"--param {name}", "belongs to construction=paper", repr(self.params[name]),
                                 f"Add --param construction=paper, or leave {name} out.")  # fmt: skip
        self.construction = Systematic(self)

    def _task(self, index: int) -> Assignment:
        return self.construction.task(index)

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        return self.construction.repair(outstanding, index)

    @property
    def systematic(self) -> int:
        return self.construction.systematic

    @property
    def repairs(self) -> bool:
        return self.construction.repairs

    @property
    def integer_weights(self) -> tuple[int, int] | None:
        return self.construction.integer_weights

    @property
    def shared_chunks(self) -> tuple[int, int]:
        return self.construction.shared_chunks

    @property
    def recovery_threshold(self) -> Threshold:
        return self.construction.threshold()

    def decoder(self, *, real_data: bool = True) -> Decoder:
        return self.construction.decoder(real_data) or super().decoder(real_data=real_data)
