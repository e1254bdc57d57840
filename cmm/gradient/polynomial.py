"""Polynomially coded regression: the data are encoded, not the gradients. Least squares only.

Li, Kalan, Yu, Soltanolkotabi, Avestimehr, "Polynomially coded regression: optimal straggler mitigation via data
encoding", 2018. The rows of (X, y) are cut into q groups; worker i keeps X~_i = sum_j u_j(psi_i) X_j and y~_i
likewise. Its loss |X~theta - y~|^2 / 2 and its gradient X~^T (X~ theta - y~) are values at psi_i of functions in the
span of the products u_j u_l, of dimension 2q - 1: any 2q - 1 answers give the sums over the groups. A worker holds 1/q
of the data, q = ceil(n / r) for a load of r of n batches. (Encoding y too gives X^T y and the loss for nothing; the
paper codes X^T X w only.)

Basis and points (the paper leaves both open, and takes polynomials on the line): homogeneous polynomials of degree
q - 1 in cos(psi / 2) and sin(psi / 2), which are the same code with the point at infinity included and every worker's
part scaled by (1 + x^2)^((1 - q) / 2), x = tan(psi / 2). On the circle there is no end of an interval: n equidistant
psi are all alike, every worker's part has the same size, u_j are the q equidistant translates of Dirichlet's kernel,
which are orthogonal, and the sum over the groups is q times the mean of the answers' function. What is lost are arcs:
the coefficients of an unlucky set of answers, whose missing workers are neighbours, grow with (n - (2q - 1)), but to
about the square root of what they are for Chebyshev's points on the line (ERRATA.md).

`amplification` says how much rounding a set of answers lets through. The code promises to bear as many stragglers as
keep it below MOST_AMPLIFICATION for every set; the decoder waits for another answer where a set exceeds it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np

from cmm.core.errors import UsageError
from cmm.core.task import Array
from cmm.gradient.decoding import Combination, Decoder
from cmm.gradient.encoding import Encoding

MOST_AMPLIFICATION = 1e5  # of one answer's rounding: some 1e-11 of the sum of the groups' gradients
RESIDUAL = 1e-10  # of the conditions on the coefficients, relative to their sum; more: they do not determine the sum


def kernel(groups: int, angles: Array) -> Array:
    """sum over k of exp(i k angle) / q for k = -(q - 1)/2 ... (q - 1)/2: Dirichlet's kernel, 1 at 0."""
    frequencies = np.arange(groups) - (groups - 1) / 2
    return np.asarray(np.cos(angles[..., None] * frequencies).mean(axis=-1))


class PolynomialEncoding(Encoding):
    """The matrix holds u_j(psi_i): n x q, every row of norm 1."""

    def columns(self) -> Array:
        """The products of two of the u_j: trigonometric polynomials of degree q - 1."""
        return _waves(self.n, self.k, np.arange(self.n)).T

    def decoder(self) -> Decoder:
        return InterpolationDecoder(self.n, self.k, self.stragglers)


def polynomial(n: int, groups: int) -> PolynomialEncoding:
    """The code of n workers with q = `groups`; any n - s answers decode, most often any 2q - 1 do.

    s is n - (2q - 1), or fewer where 2q - 1 neighbours would let through too much rounding (from n = 27 on). Raises
    UsageError when 2q - 1 > n.
    """
    if groups < 1 or 2 * groups - 1 > n:
        raise UsageError("--parts", f"must be from 1 to {(n + 1) // 2} with code polynomial and {n} workers", groups,
                         "2q - 1 answers are needed: choose fewer groups q or start more ranks.")  # fmt: skip
    points = 2 * np.pi * np.arange(n) / n
    nodes = 2 * np.pi * (np.arange(groups) + 0.5) / groups
    needed = 2 * groups - 1
    least, most = needed, n  # all n equidistant points are orthogonal: amplification 1
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if _bears(n, groups, middle) else (middle + 1, most)
    return PolynomialEncoding("polynomial", kernel(groups, points[:, None] - nodes), n - least, coded_data=True)


def groups_for(n: int, stragglers: int) -> int:
    """The largest q whose code bears so many stragglers; at least 1."""
    groups = max(1, (n - stragglers + 1) // 2)
    while groups > 1 and not _bears(n, groups, n - stragglers):
        groups -= 1
    return groups


def _bears(n: int, groups: int, answers: int) -> bool:
    """Whether every set of so many answers decodes. Neighbours are the worst of them (tests try all sets)."""
    return amplification(n, groups, range(answers)) <= MOST_AMPLIFICATION


class InterpolationDecoder(Decoder):
    """Done at 2q - 1 answers, or as many more as it takes to keep the amplification low."""

    def __init__(self, n: int, groups: int, stragglers: int) -> None:
        self.n, self.groups, self.stragglers = n, groups, stragglers
        self.needed = 2 * groups - 1
        self._received: set[int] = set()

    def add(self, worker: int) -> bool:
        if worker not in self._received and self.combination is None:
            self._received.add(worker)
            workers = tuple(sorted(self._received))
            if self._good(workers):
                coefficients = interpolation(self.n, self.groups, workers)[0]
                label = f"{len(workers)} answers by interpolation"
                self.combination = Combination(workers, coefficients, label)
        return self.combination is not None

    def _good(self, workers: tuple[int, ...]) -> bool:
        if len(workers) < self.needed:
            return False
        return interpolation(self.n, self.groups, workers)[1] <= MOST_AMPLIFICATION

    def possible(self, lost: Collection[int]) -> bool:
        left = tuple(worker for worker in range(self.n) if worker not in lost)
        return len(left) >= self.n - self.stragglers or self._good(left)


@lru_cache(maxsize=64)
def interpolation(n: int, groups: int, workers: tuple[int, ...]) -> tuple[Array, float]:
    """Coefficients (one for each of the workers, read-only) that turn their answers into the sum over the groups, the
    smallest in norm; and their amplification, infinite where the answers do not determine the sum.

    Conditions: the mean of every trigonometric polynomial of degree q - 1, times q.
    """
    waves = _waves(n, groups, np.asarray(workers))
    wanted = np.zeros(2 * groups - 1)
    wanted[0] = groups
    found = np.linalg.lstsq(waves, wanted, rcond=None)[0]
    found.flags.writeable = False
    good = len(workers) >= len(wanted) and np.abs(waves @ found - wanted).max() <= RESIDUAL * groups
    return found, float(np.abs(found).sum()) / groups if good else np.inf


def _waves(n: int, groups: int, workers: Array) -> Array:
    """(2q - 1) x workers: an orthonormal basis of the trigonometric polynomials of degree q - 1 at their points."""
    angles = (2 * np.pi / n) * np.arange(1, groups)[:, None] * workers[None, :]
    return np.vstack([np.ones((1, len(workers))), np.sqrt(2) * np.cos(angles), np.sqrt(2) * np.sin(angles)])


def amplification(n: int, groups: int, workers: Collection[int]) -> float:
    """How much larger than the answers' rounding that of the decoded sum may be: the sum of the coefficients' sizes
    relative to their sum, q. At least 1."""
    return interpolation(n, groups, tuple(sorted(workers)))[1]
