"""Polynomially coded regression: the data are encoded, not the gradients. Least squares only.

Li, Kalan, Yu, Soltanolkotabi, Avestimehr, "Polynomially coded regression: optimal straggler mitigation via data
encoding", 2018. The rows of (X, y) are cut into q groups; worker i keeps X~_i = sum_j L_j(alpha_i) X_j and y~_i
likewise, L_j the Lagrange polynomials of the points beta_1 ... beta_q. Its loss |X~theta - y~|^2 / 2 and its gradient
X~^T (X~ theta - y~) are values at alpha_i of polynomials of degree 2(q - 1), whose values at beta_j are those of group
j: any 2q - 1 answers give both sums by interpolation. A worker holds 1/q of the data, q = ceil(n / r) for a load of r
of n batches. (Encoding y too gives X^T y and the loss for nothing; the paper codes X^T X w only.)

Points: Chebyshev's, for both. The coefficients of an unlucky set of answers grow with n - (2q - 1) stragglers that are
neighbours; `amplification` says how much rounding they let through.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from cmm.core.errors import UsageError
from cmm.core.task import Array
from cmm.gradient.decoding import Combination, Decoder
from cmm.gradient.encoding import Encoding


def chebyshev(count: int) -> Array:
    """cos((2i + 1) pi / (2 count)), decreasing in (-1, 1)."""
    return np.cos((2 * np.arange(count) + 1) * np.pi / (2 * count))


def lagrange(nodes: Array, points: Array) -> Array:
    """L[i, j]: the Lagrange polynomial of node j at point i. Product form, exact where a point is a node."""
    values = np.ones((len(points), len(nodes)))
    for j, node in enumerate(nodes):
        for other in np.delete(nodes, j):
            values[:, j] *= (points - other) / (node - other)
    return values


@dataclass(frozen=True, eq=False)
class PolynomialEncoding(Encoding):
    """The matrix holds L_j(alpha_i): n x q."""

    @property
    def alpha(self) -> Array:
        return chebyshev(self.n)

    @property
    def beta(self) -> Array:
        return chebyshev(self.k)

    def decoder(self) -> Decoder:
        return InterpolationDecoder(self.alpha, self.beta)


def polynomial(n: int, groups: int) -> PolynomialEncoding:
    """The code of n workers with q = `groups`; any 2q - 1 answers decode. Raises UsageError when 2q - 1 > n."""
    if groups < 1 or 2 * groups - 1 > n:
        raise UsageError("--parts", f"must be from 1 to {(n + 1) // 2} with code polynomial and {n} workers", groups,
                         "2q - 1 answers are needed: choose fewer groups q or start more ranks.")  # fmt: skip
    matrix = lagrange(chebyshev(groups), chebyshev(n))
    return PolynomialEncoding("polynomial", matrix, n - (2 * groups - 1), coded_data=True)


def groups_for(n: int, stragglers: int) -> int:
    """The largest q that leaves room for so many stragglers."""
    return max(1, (n - stragglers + 1) // 2)


class InterpolationDecoder(Decoder):
    """Done at 2q - 1 answers: coefficient i is the sum over j of the Lagrange polynomials of the answers' points at
    beta_j."""

    def __init__(self, alpha: Array, beta: Array) -> None:
        self.alpha, self.beta = alpha, beta
        self.needed = 2 * len(beta) - 1
        self._received: list[int] = []

    def add(self, worker: int) -> bool:
        if worker not in self._received and self.combination is None:
            self._received.append(worker)
            if len(self._received) == self.needed:
                workers = sorted(self._received)
                found = interpolation(self.alpha, self.beta, workers)
                self.combination = Combination(tuple(workers), found, f"{self.needed} answers by interpolation")
        return self.combination is not None

    def possible(self, lost: Collection[int]) -> bool:
        return len(self.alpha) - len(set(lost)) >= self.needed


def interpolation(alpha: Array, beta: Array, workers: Sequence[int]) -> Array:
    """Coefficients that turn the workers' values into the sum of the values at beta."""
    return np.asarray(lagrange(alpha[list(workers)], beta).sum(axis=0))


def amplification(encoding: PolynomialEncoding, workers: Sequence[int]) -> float:
    """How much larger than one answer's rounding the decoded one may be: the sum of the coefficients' sizes."""
    return float(np.abs(interpolation(encoding.alpha, encoding.beta, workers)).sum())
