"""Entangled polynomial codes: all three dimensions are split, A in p x m chunks, B in p x n.

Yu, Maddah-Ali, Avestimehr, "Straggler mitigation in distributed matrix multiplication: fundamental limits and optimal
coding", IEEE Trans. Inf. Theory 2020:

    Ã(x) = sum_ki A_ki x^(k + i p)        B̃(x) = sum_kj B_kj x^(p - 1 - k + j p m)
    C_ij = coefficient of x^(p - 1 + i p + j p m)

Any pmn + p - 1 results decode. p = 1 is the polynomial code, m = n = 1 is MatDot. On real nodes as ill-conditioned as
both: a dozen coefficients at most.
"""

from __future__ import annotations

import numpy as np

from cmm.codes.polynomial import NodeCode
from cmm.codes.sizes import squarest
from cmm.core.grid import Grid
from cmm.core.task import IntArray


class Entangled(NodeCode):
    """Grid p x m x n."""

    name = "entangled"
    paper = "Yu, Maddah-Ali, Avestimehr, IEEE Trans. Inf. Theory 66 (2020)"
    recovery = "any pmn + p - 1 of P; about half with nodes=circle and real data"
    good_for = "between polynomial and matdot: smaller operands for larger results"

    @classmethod
    def coefficients(cls, grid: Grid) -> int:
        return grid.p * grid.K + grid.p - 1

    @classmethod
    def grid_of(cls, coefficients: int, s: int, r: int, t: int) -> Grid:
        p = 2 if coefficients >= 3 and s >= 2 else 1
        sides = squarest(max(1, (coefficients - p + 1) // p), r, t)
        return Grid(sides.m, sides.n, p)

    def exponents(self) -> tuple[IntArray, IntArray]:
        p, m, n = self.grid.p, self.grid.m, self.grid.n
        k, i = (axis.ravel() for axis in np.indices((p, m)))
        part, j = (axis.ravel() for axis in np.indices((p, n)))
        return k + i * p, p - 1 - part + j * p * m
