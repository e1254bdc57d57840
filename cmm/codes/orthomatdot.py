"""OrthoMatDot codes: MatDot in an orthonormal basis, C by Gauss quadrature.

Fahim, Cadambe, arXiv 1903.08326. With q_0 = T_0 / sqrt(2), q_k = T_k, orthonormal for the weight 2 / (pi sqrt(1 -
x^2)), and Chebyshev nodes rho_i:

    Ã_i = sum_k A_k q_k(rho_i)      B̃_i = sum_k B_k q_k(rho_i)      C = sum_k A_k^T B_k = (2/p) sum_r (Ã^T B̃)(eta_r)

eta the p Chebyshev nodes of T_p. The product has degree 2p - 2: any 2p - 1 results give it everywhere, hence C. The
decoder finds the combination of results that is C without the detour over eta (ERRATA.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from cmm.codes.base import Code, Threshold
from cmm.codes.matdot import parts_within, refuse_blocks
from cmm.codes.nodes import chebyshev, spread
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination


class OrthoMatDot(Code):
    """Grid p x 1 x 1; any 2p - 1 results decode, each as large as C."""

    name = "orthomatdot"
    paper = "Fahim, Cadambe, arXiv 1903.08326"
    recovery = "any 2p - 1 of P"
    good_for = "a long shared dimension and a small C, accurately, in real arithmetic"
    fixed_pool = True
    most_spare = 4

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return 2 * grid.p - 1

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        return Grid(1, 1, parts_within(limit, s))

    def _prepare(self) -> None:
        refuse_blocks(self.name, self.grid)
        self.basis = chebvander(chebyshev(self.P)[spread(self.P)], self.grid.p - 1)
        self.basis[:, 0] /= np.sqrt(2.0)

    def _task(self, index: int) -> Assignment:
        q = Combination.of(range(self.grid.p), self.basis[index])
        return Assignment.pair(index, q, q, self.grid.chunks_b)

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(2 * self.grid.p - 1, certain=True)
