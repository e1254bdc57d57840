"""Random Khatri-Rao product codes: dense random combinations on both sides.

Subramaniam, Heidarzadeh, Narayanan, "Random Khatri-Rao-product codes for numerically-stable distributed matrix
multiplication", arXiv 1907.05965. Row of task p over the blocks: a_p (kron) b_p with i.i.d. coefficients; any K rows
are regular with probability one. Systematic variant: the first K tasks are the blocks themselves.

Coefficients are a random sign times U[0.5, 1.5] unless asked otherwise (the paper draws Gaussians): within a factor 3
of Gaussian errors in the median, and never near zero.
"""

from __future__ import annotations

from typing import ClassVar

from cmm.codes.base import Code, Parameter, Threshold
from cmm.codes.coefficients import COEFFICIENTS, CONTINUOUS, combination, integer_weights, yes_or_no
from cmm.codes.uncoded import product_task
from cmm.core.task import Assignment, IntArray


class RandomKhatriRao(Code):
    """Dense random code: N = K exactly, decoding solves for the missing blocks with a dense system."""

    name = "rkrp"
    paper = "Subramaniam, Heidarzadeh, Narayanan, arXiv 1907.05965"
    recovery = "any K of P (probability one)"
    good_for = "K up to a few hundred; the accurate dense baseline that needs exactly K results"
    parameters: ClassVar = {
        "systematic": Parameter(yes_or_no, True, "yes: the first K tasks are the blocks themselves; no: all are dense"),
        "coefficients": COEFFICIENTS,
    }

    def _prepare(self) -> None:
        self.refuse_split()

    def _task(self, index: int) -> Assignment:
        return product_task(self.grid, index, index) if index < self.systematic else self._parity(index)

    def _parity(self, index: int) -> Assignment:
        law, rng = self.params["coefficients"], self.rng("row", index)
        a = combination(law, rng, range(self.grid.m))
        b = combination(law, rng, range(self.grid.n))
        return Assignment.pair(index, a, b, self.grid.chunks_b)

    @property
    def integer_weights(self) -> tuple[int, int] | None:
        return integer_weights(self.params["coefficients"], self.grid.m, self.grid.n)

    @property
    def systematic(self) -> int:
        return self.grid.K if self.params["systematic"] else 0

    @property
    def repairs(self) -> bool:
        return self.dispatch == "pull"

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        return self._parity(index)

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.grid.K, certain=self.params["coefficients"] in CONTINUOUS)
