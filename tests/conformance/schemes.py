"""One tiny code of every further kind, to prove that the interface carries them; and two controls.

They are deliberately small and not registered. Formulas: the papers named at each class.
"""

from __future__ import annotations

import numpy as np

from cmm.codes.base import Code, Threshold
from cmm.core.grid import Grid
from cmm.core.task import Array, Assignment, Combination
from cmm.linalg.rows import CodedRow, Targets


class Tiny(Code):
    """What the tiny codes share."""

    paper = recovery = good_for = "tests"
    threshold = 0

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        return 1

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.threshold or self.grid.K, certain=True)


class Rotation(Tiny):
    """Several rows per assignment: rotation matrix embedding (Ramamoorthy and Tang, arXiv 1910.06515).

    A in 2 k_A chunks, B in 2 k_B; task p has encoders R^(p k_B j) and R^(p j), 2 + 2 operands and all 4 products;
    any k_A k_B tasks decode.
    """

    name = "rotation"

    def _task(self, index: int) -> Assignment:
        return Assignment(index, self._operands(index * self.grid.n // 2, self.grid.m),
                          self._operands(index, self.grid.n), tuple(((x, y),) for x in (0, 1) for y in (0, 1)),
                          unknowns_b=self.grid.chunks_b)  # fmt: skip

    def _operands(self, power: int, chunks: int) -> tuple[Combination, ...]:
        angles = 2 * np.pi / self.P * power * np.arange(chunks // 2)
        cos, sin = np.cos(angles), np.sin(angles)
        rotation = np.stack([np.stack([cos, -sin]), np.stack([sin, cos])])  # (row, column, j)
        return tuple(Combination.of(range(chunks), rotation[:, x].T.ravel()) for x in (0, 1))

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.grid.K // 4, certain=True)


class Sparse(Tiny):
    """Several terms per row: a random sum of products (Wang, Liu, Shroff, ICML 2018). One output, several pairs."""

    name = "sparse"
    degree = 3

    def _task(self, index: int) -> Assignment:
        rng = self.rng("task", index)
        blocks = [index % self.grid.K, *rng.choice(self.grid.K, self.degree, replace=False).tolist()]
        blocks = sorted(set(blocks))
        weights = rng.integers(1, 20, len(blocks)).astype(float)
        a = tuple(Combination.of([u // self.grid.n], [w]) for u, w in zip(blocks, weights, strict=True))
        b = tuple(Combination.unit(u % self.grid.n) for u in blocks)
        return Assignment(index, a, b, (tuple((k, k) for k in range(len(blocks))),), unknowns_b=self.grid.chunks_b)


class MatDot(Tiny):
    """Targets that are sums, more unknowns than rank: A = [A_0; ..], C the coefficient of x^(p-1) (Dutta et al. 2018).

    Real Chebyshev nodes, or (`complex_coefficients`) the unit circle. Any 2p - 1 real results decode.
    """

    name = "matdot"

    def node(self, index: int) -> complex:
        return float(np.cos((2 * index + 1) * np.pi / (2 * self.P)))

    def _task(self, index: int) -> Assignment:
        p, x = self.grid.p, self.node(index)
        powers = np.array([x**k for k in range(p)])
        return Assignment.pair(index, Combination.of(range(p), powers), Combination.of(range(p), powers[::-1]),
                               self.grid.chunks_b)  # fmt: skip

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(2 * self.grid.p - 1, certain=True)


class CirclePolynomial(Tiny):
    """Complex nodes with real data: polynomial code (Yu et al. 2017) on the upper half of the unit circle.

    Each complex result is two real equations, so ceil(K / 2) results decode; conjugate nodes would repeat each other.
    """

    name = "circle"
    complex_coefficients = True

    def _task(self, index: int) -> Assignment:
        x = np.exp(1j * np.pi * (index + 0.5) / self.P)
        m, n = self.grid.m, self.grid.n
        a, b = x ** np.arange(m), x ** (m * np.arange(n))
        return Assignment.pair(index, Combination.of(range(m), a), Combination.of(range(n), b), self.grid.chunks_b)

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(-(-self.grid.K // 2), certain=True)


class CyclicGradient(Tiny):
    """Rows without (a, b): gradient coding with cyclic supports (Tandon et al., ICML 2017). P workers, P parts.

    The unknowns are partial gradients, the target is their sum; any P - stragglers results give it.
    """

    name = "gradient"
    stragglers = 2

    def _prepare(self) -> None:
        H = self.rng("H").standard_normal((self.stragglers, self.P))
        H[:, -1] = -H[:, :-1].sum(axis=1)
        self.B = np.zeros((self.P, self.P))
        for i in range(self.P):
            others = (i + 1 + np.arange(self.stragglers)) % self.P
            self.B[i, i] = 1
            self.B[i, others] = -np.linalg.solve(H[:, others], H[:, i])

    def _task(self, index: int) -> Assignment:
        return Assignment(index, (Combination.of(range(self.P), self.B[index]),), (), ())

    def rows(self, assignment: Assignment) -> tuple[CodedRow, ...]:
        parts = assignment.a[0]
        return (CodedRow(parts.indices, parts.values),)

    @property
    def unknowns(self) -> int:
        return self.P

    @property
    def targets(self) -> Targets:
        import scipy.sparse as sp

        return Targets(1, sp.csr_array(np.ones((1, self.P))))

    @property
    def recovery_threshold(self) -> Threshold:
        return Threshold(self.P - self.stragglers, certain=True)

    def partial(self, assignment: Assignment, gradients: Array) -> Array:
        """What a worker sends: its combination of partial gradients (parts, e) -> (1, e)."""
        parts = assignment.a[0]
        return np.atleast_2d(parts.values @ gradients[parts.indices])


class Null(Tiny):
    """Control: every task is block 0, so nothing but a single block is ever decodable."""

    name = "null"

    def _task(self, index: int) -> Assignment:
        return Assignment.pair(index, Combination.unit(0), Combination.unit(0), self.grid.chunks_b)


class Vandermonde(Tiny):
    """Control, the worst case: real equispaced nodes in [-1, 1]; the condition grows like 5^K."""

    name = "vandermonde"

    def _task(self, index: int) -> Assignment:
        x = -1 + 2 * (index + 0.5) / self.P
        m, n = self.grid.m, self.grid.n
        a, b = x ** np.arange(m), x ** (m * np.arange(n))
        return Assignment.pair(index, Combination.of(range(m), a), Combination.of(range(n), b), self.grid.chunks_b)
