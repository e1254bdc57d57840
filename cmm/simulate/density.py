"""What can be said of a degree distribution without decoding: density evolution, inactivations, failures.

Symbols: K̃ = m̃ñ coded pairs, N results, γ = N / K̃, Ω the degree distribution, t checks a line of the outer code.

Density evolution of peeling with the outer code (reconstruction; reproduces γ* = 0.9925 of arXiv 1907.11018's set):

    L = exp(-γ Ω'(1 - v)),   q_row = P[Bin(ñ - 1, L q_col) >= t_B],  q_col likewise,   v = L q_row q_col

Inactivations of LT decoding: Lázaro, Liva, Bauch, "Inactivation decoding of LT and Raptor codes", arXiv 1706.05814:
with u symbols unresolved a row leaves the cloud for the ripple with probability p_u (Karp, Luby, Shokrollahi, ISIT
2004); whenever the ripple is empty a symbol is inactivated. The chain is sampled rather than its law computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.special import gammaln
from scipy.stats import binom

from cmm.core.task import Array
from cmm.linalg.degrees import DegreeDistribution

ERASED = {1: 1.0, 2: 3.351, 3: 5.149, 4: 6.799}  # mean erasures a line that a long product code still corrects
CHAINS = 64  # sampled for the estimate of inactivations


@dataclass(frozen=True)
class Array2D:
    """The array of coded pairs: m̃ × ñ of which m × n are sources."""

    rows: int
    columns: int
    m: int
    n: int

    @property
    def symbols(self) -> int:
        """K̃."""
        return self.rows * self.columns

    @property
    def checks(self) -> tuple[int, int]:
        """(t_A, t_B): checks of a column and of a row."""
        return self.rows - self.m, self.columns - self.n

    @property
    def left_to_outer(self) -> int:
        """Unresolved symbols that the outer code typically resolves alone."""
        t = min(self.checks)
        return int(ERASED.get(t, 0.95 * t + 2.5 if t else 0.0) * min(self.rows, self.columns))


def unresolved(omega: DegreeDistribution, array: Array2D, results: int, rounds: int = 5000) -> float:
    """Share of symbols that peeling leaves unknown for large K, by density evolution."""
    gamma, v, q_row, q_col = results / array.symbols, 1.0, 1.0, 1.0
    t_a, t_b = array.checks
    for _ in range(rounds):
        known = math.exp(-gamma * _derivative(omega, 1 - v))
        q_row, q_col = (float(binom.sf(t_b - 1, array.columns - 1, known * q_col)) if t_b else 1.0,
                        float(binom.sf(t_a - 1, array.rows - 1, known * q_row)) if t_a else 1.0)  # fmt: skip
        now = known * q_row * q_col
        if abs(now - v) < 1e-9 or now < 1e-9:
            return now
        v = now
    return v


def _derivative(omega: DegreeDistribution, x: float) -> float:
    return sum(w * d * x ** (d - 1) for d, w in zip(omega.degrees, omega.weights, strict=True))


def peeling_threshold(omega: DegreeDistribution, array: Array2D, target: float = 1e-4) -> float:
    """N at which density evolution leaves less than `target` of the symbols (asymptotic: finite codes need more)."""
    low, high = 0.5 * array.symbols, 4.0 * array.symbols
    if unresolved(omega, array, int(high)) > target:
        return math.inf
    while high - low > 1e-4 * array.symbols:
        middle = (low + high) / 2
        low, high = (low, middle) if unresolved(omega, array, int(middle)) < target else (middle, high)
    return high


def release(omega: DegreeDistribution, symbols: int) -> Array:
    """p_u for u = 0 … symbols: probability that a row of the cloud enters the ripple when u - 1 are left of u."""
    u = np.arange(symbols + 1, dtype=float)
    k = float(symbols)
    into, ripple, done = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    for d, w in zip(omega.degrees, omega.weights, strict=True):
        if d >= 2:
            into += w * d * (d - 1) / (k * (k - 1)) * (u - 1) * _share(k - u, d - 2, k - 2)
        ripple += w * u * d / k * _share(k - u, d - 1, k - 1)
        done += w * _share(k - u, d, k)
    cloud = 1 - ripple - done
    with np.errstate(invalid="ignore", divide="ignore"):
        p = np.where(cloud > 1e-12, into / cloud, 0.0)
    out: Array = np.clip(p, 0.0, 1.0)
    return out


def _share(resolved: Array, d: int, total: float) -> Array:
    """C(resolved, d) / C(total, d)."""
    out = np.zeros_like(resolved)
    enough = resolved >= d
    top = resolved[enough]
    out[enough] = np.exp(gammaln(top + 1) - gammaln(top - d + 1) - gammaln(total + 1) + gammaln(total - d + 1))
    return out


def inactivations(omega: DegreeDistribution, array: Array2D, results: int, seed: int = 0,
                  chains: int = CHAINS) -> float:  # fmt: skip
    """Expected number of inactive symbols with N results, until the outer code takes over."""
    rng = np.random.default_rng(seed)
    p = release(omega, array.symbols)
    first = omega.weights[0] if omega.degrees[0] == 1 else 0.0
    ripple = rng.binomial(results, first, chains)
    cloud = results - ripple
    inactive = np.zeros(chains)
    for u in range(array.symbols, array.left_to_outer, -1):
        inactive += ripple == 0
        ripple = np.maximum(ripple - 1, 0)
        ripple -= rng.binomial(ripple, 1.0 / u)
        moved = rng.binomial(cloud, p[u])
        ripple += moved
        cloud -= moved
    return float(inactive.mean())


def uncoverable(omega: DegreeDistribution, array: Array2D, results: int) -> float:
    """Bound on the probability that uncovered symbols alone prevent decoding, whatever the decoder.

    Over the reals a combination vanishes on a set only by missing it (Schotsch et al. 2013 for q → ∞). Without an outer
    code one uncovered symbol is fatal; with one it takes a (t_A + 1) × (t_B + 1) box of them. Union bound.
    """
    missed = math.exp(results * math.log1p(-min(omega.mean / array.symbols, 1 - 1e-12)))
    a, b = (t + 1 for t in array.checks)
    log = _log_choose(array.rows, a) + _log_choose(array.columns, b) + a * b * math.log(max(missed, 1e-300))
    return min(1.0, math.exp(min(log, 0.0)))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def optimal(array: Array2D, degrees: list[int], margin: float, price: float) -> DegreeDistribution | None:
    """The distribution of least γ (1 + price · mean degree) for which the expected ripple stays positive.

    Linear programme after Shokrollahi ("Raptor codes", 2006, section VII), in w_d = γ Ω_d: Σ d w_d x^(d-1) >=
    -ln(1 - x - margin · sqrt((1 - x) / K̃)) for the resolved shares x up to where the outer code takes over.
    """
    left = max(array.left_to_outer / array.symbols, 2 / array.symbols)
    x = 1 - np.geomspace(1.0, left, 160)
    slack = (1 - x) - margin * np.sqrt((1 - x) / array.symbols)
    x, slack = x[slack > 0], slack[slack > 0]
    d = np.array(degrees, dtype=float)
    lower = -np.log(slack)
    matrix = d * x[:, None] ** (d - 1)
    found = linprog(1 + price * d, A_ub=-matrix, b_ub=-lower, bounds=(0, None), method="highs")
    if not found.success or found.x.sum() <= 0:
        return None
    weights = found.x / found.x.sum()
    return DegreeDistribution.of({k: float(w) for k, w in zip(degrees, weights, strict=True) if w > 1e-4})
