"""OrthoPoly codes: polynomial codes in the basis of Chebyshev polynomials, at Chebyshev nodes.

Fahim, Cadambe, "Numerically stable polynomially coded computing", arXiv 1903.08326 (IEEE Trans. Inf. Theory 2021).
Nodes rho_i = cos((2i + 1) pi / 2P):

    Ã_i = sum_j A_j q_j(rho_i)        B̃_i = sum_l B_l q_lm(rho_i)        q_0 = T_0 / sqrt(2), q_d = T_d

T_j T_lm = (T_(lm+j) + T_|lm-j|) / 2, so the K products q_j q_lm span the polynomials of degree below K: any K results
decode. The paper solves for the Chebyshev coefficients and recombines; here the rows q_j(rho) q_lm(rho) are solved as
they are, to the same accuracy (ERRATA.md). The condition grows like P^(2 spare tasks): in the worst case 267 at P = 11,
K = 9 and 5e5 at P = 31, K = 28, so keep few tasks spare. (A basis T_1, T_2, ... as in one public implementation is
singular at some sizes.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from cmm.codes.base import Code, Threshold
from cmm.codes.nodes import chebyshev, spread
from cmm.codes.sizes import squarest
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination

MOST_RESULTS = 36  # planned for by default


class OrthoPoly(Code):
    """Any K of P results decode, accurately while P - K is small."""

    name = "orthopoly"
    paper = "Fahim, Cadambe, arXiv 1903.08326"
    recovery = "any K of P"
    good_for = "K up to about a hundred with few spare tasks, in real arithmetic"
    fixed_pool = True
    most_spare = 4

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        return squarest(min(limit, MOST_RESULTS), r, t)

    def _prepare(self) -> None:
        self.refuse_split("orthomatdot")
        self.basis = chebvander(chebyshev(self.P)[spread(self.P)], self.grid.K - 1)  # (P, K): T_d(rho_i)
        self.basis[:, 0] /= np.sqrt(2.0)

    def _task(self, index: int) -> Assignment:
        values, m, n = self.basis[index], self.grid.m, self.grid.n
        a = Combination.of(range(m), values[:m])
        return Assignment.pair(index, a, Combination.of(range(n), values[::m][:n]), self.grid.chunks_b)

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.grid.K, certain=True)
