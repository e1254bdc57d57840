"""Polynomial codes, and the base of all codes that evaluate polynomials at nodes.

Yu, Maddah-Ali, Avestimehr, "Polynomial codes: an optimal design for high-dimensional coded matrix multiplication", NIPS
2017:

    Ã_i = sum_j A_j x_i^j        B̃_i = sum_l B_l x_i^(l m)        Ã_i^T B̃_i = sum_jl C_jl x_i^(j + l m)

a polynomial with the blocks of C as its mn coefficients; any mn results give them, which is the least possible. Over a
finite field. Over the reals the Vandermonde system's condition explodes: 1.4e7 in the worst case at n = 18, K = 15 with
equispaced nodes, and no digit is left at K = 36. Every plan carries its condition, and hopeless ones are refused.
Nodes on the unit circle (nodes=circle) are well conditioned while few tasks are spare, at the price of complex
arithmetic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cmm.codes.base import Code, Threshold
from cmm.codes.nodes import KINDS, NODE_PARAMETERS, halves, node_set
from cmm.codes.sizes import squarest
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Assignment, Combination, IntArray
from cmm.linalg.decoder import Decoder

MOST_REAL = 12  # coefficients chosen by default with real nodes: an estimated error of about 1e-10 for K = 12
MOST_CIRCLE = 64
LARGEST_POWER = 1e100


class NodeCode(Code):
    """Evaluations of Ã(x) = sum_i A_i x^(e_i) and B̃(x) = sum_j B_j x^(f_j): one pair a task, real or complex nodes."""

    parameters: ClassVar = dict(NODE_PARAMETERS)
    fixed_pool = True
    most_spare = 4

    @classmethod
    @abstractmethod
    def coefficients(cls, grid: Grid) -> int:
        """Coefficients of the product polynomial, its degree plus one."""

    @abstractmethod
    def exponents(self) -> tuple[IntArray, IntArray]:
        """e by chunk of A, f by chunk of B."""

    @classmethod
    @abstractmethod
    def grid_of(cls, coefficients: int, s: int, r: int, t: int) -> Grid:
        """The grid for a product polynomial of at most so many coefficients."""

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return cls.coefficients(grid)

    @classmethod
    def needs(cls, grid: Grid, params: Mapping[str, Any]) -> tuple[int, int]:
        least = cls.coefficients(grid)
        least = -(-least // 2) if halves(params) else least
        return least, least

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        circle = params["nodes"] == "circle"
        most = limit * (2 if halves(params) else 1)
        return cls.grid_of(min(most, MOST_CIRCLE if circle else MOST_REAL), s, r, t)

    @classmethod
    def default_tasks(cls, grid: Grid, params: Mapping[str, Any], workers: int, late: int) -> int | None:
        """One task for every node that was listed; otherwise by the general rule."""
        return None if params["nodes"] in KINDS else len(params["nodes"].split(","))

    def _prepare(self) -> None:
        self.refuse_grid()
        self.nodes = node_set(self.P, self.params)
        self.complex_coefficients = self.params["nodes"] == "circle"
        self._e, self._f = self.exponents()
        self._refuse_overflow()

    def _refuse_overflow(self) -> None:
        """Results must stay far from overflow, and coefficients from nothing at all."""
        with np.errstate(over="ignore"):
            largest = float((np.abs(self.nodes).max() or 1.0) ** (self._e.max() + self._f.max()))
        if not largest < LARGEST_POWER:
            raise UsageError("--param nodes", f"powers of the nodes must stay below {LARGEST_POWER:.0e}",
                             f"{np.abs(self.nodes).max():g}^{self._e.max() + self._f.max()}",
                             "Use nodes between -1 and 1.")  # fmt: skip

    def refuse_grid(self) -> None:
        """Raise UsageError for a grid that the code has no use for."""

    def _task(self, index: int) -> Assignment:
        x, grid = self.nodes[index], self.grid
        a = Combination.of(range(grid.chunks_a), x**self._e)
        return Assignment.pair(index, a, Combination.of(range(grid.chunks_b), x**self._f), grid.chunks_b)

    def decoder(self, *, real_data: bool = True) -> Decoder:
        """Results count twice with the nodes for real data only: 1 and -1 are among those for complex data, and the
        imaginary part of their results is rounding."""
        return super().decoder(real_data=real_data and halves(self.params))

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.needs(self.grid, self.params)[0], certain=True)


class Polynomial(NodeCode):
    """Any K results decode (with nodes=circle and real data any K / 2); accurate for small K only on real nodes."""

    name = "polynomial"
    paper = "Yu, Maddah-Ali, Avestimehr, NIPS 2017"
    recovery = "any K of P; any K/2 with nodes=circle and real data"
    good_for = "comparisons; K up to a dozen on real nodes, up to about a hundred on the circle with few spare tasks"

    @classmethod
    def coefficients(cls, grid: Grid) -> int:
        return grid.K

    @classmethod
    def grid_of(cls, coefficients: int, s: int, r: int, t: int) -> Grid:
        return squarest(coefficients, r, t)

    def _refuse_overflow(self) -> None:
        """Results must stay far from overflow, and coefficients from nothing at all."""
        with np.errstate(over="ignore"):
            largest = float((np.abs(self.nodes).max() or 1.0) ** (self._e.max() + self._f.max()))
        if not largest < LARGEST_POWER:
            raise UsageError("--param nodes", f"powers of the nodes must stay below {LARGEST_POWER:.0e}",
                             f"{np.abs(self.nodes).max():g}^{self._e.max() + self._f.max()}",
                             "Use nodes between -1 and 1.")  # fmt: skip

    def refuse_grid(self) -> None:
        self.refuse_split("entangled")

    def exponents(self) -> tuple[IntArray, IntArray]:
        m, n = self.grid.m, self.grid.n
        return np.arange(m), m * np.arange(n)
