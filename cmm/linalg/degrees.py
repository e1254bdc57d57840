"""Degree distributions Ω(x) = Σ Ω_d x^d of fountain codes, and factor pairs d = d_A · d_B for factored ones.

A factored code (arXiv 1907.11018, section III-A) can only produce an output of degree d as a product of d_A chunks of
A and d_B chunks of B, so every degree in use needs a factor pair with d_A ≤ m and d_B ≤ n. How the pair is chosen among
the feasible ones is not stated in the text at hand: ERRATA.md, item 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isqrt

import numpy as np

from cmm.core.errors import UsageError
from cmm.core.task import IntArray

PAIR_RULES = ("uniform", "balanced", "one-sided")

# arXiv 1907.11018, section IV: the (10000, 6400) experiment.
FR_TABLE = {1: 0.013, 2: 0.5, 3: 0.1661, 4: 0.0726, 5: 0.0826, 8: 0.0581, 9: 0.0340, 18: 0.0576, 66: 0.0160}
# RFC 5053, section 5.4.4.2, and RFC 6330, section 5.3.5.2: cumulative, in units of 2^-20.
R10_CDF = {1: 10241, 2: 491582, 3: 712794, 4: 831695, 10: 948446, 11: 1032189, 40: 1048576}
_RAPTORQ = """5243 529531 704294 791675 844104 879057 904023 922747 937311 948962 958494 966438 973160 978921 983914
988283 992138 995565 998631 1001391 1003887 1006157 1008229 1010129 1011876 1013490 1014983 1016370 1017662 1048576"""
RAPTORQ_CDF = {degree: int(share) for degree, share in enumerate(_RAPTORQ.split(), start=1)}
NAMES = ("fr", "raptorq", "r10", "soliton", "robust-soliton:C:DELTA")


@dataclass(frozen=True)
class DegreeDistribution:
    """Probabilities of degrees; frozen, hashable, exact repr.

    Attributes
    ----------
    degrees : degrees with positive probability, strictly increasing, all ≥ 1
    weights : their probabilities; sum to 1

    Raises
    ------
    UsageError : empty, not increasing, or negative weights, or a sum that is not positive and finite
    """

    degrees: tuple[int, ...]
    weights: tuple[float, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        increasing = all(a < b for a, b in zip(self.degrees, self.degrees[1:], strict=False))
        if not self.degrees or self.degrees[0] < 1 or not increasing or len(self.degrees) != len(self.weights):
            raise UsageError("--param omega", "needs increasing degrees of at least 1, one weight each", self.degrees,
                             "Write for example 0.1x+0.5x^2+0.4x^3.")  # fmt: skip
        total = float(sum(self.weights))
        if min(self.weights) <= 0 or not np.isfinite(total):
            raise UsageError("--param omega", "needs positive, finite weights", self.weights,
                             "Leave out degrees of weight 0.")  # fmt: skip
        object.__setattr__(self, "weights", tuple(float(w) / total for w in self.weights))

    @classmethod
    def of(cls, table: Mapping[int, float], name: str = "") -> DegreeDistribution:
        """From {degree: weight}; zero weights are dropped, the sum is normalised to 1."""
        kept = {int(d): float(w) for d, w in sorted(table.items()) if w != 0}
        return cls(tuple(kept), tuple(kept.values()), name)

    @classmethod
    def parse(cls, text: str, symbols: int) -> DegreeDistribution:
        """Read a polynomial such as `0.013x+0.5x^2+...` or a name: fr, raptorq, r10, soliton, robust-soliton:C:DELTA.

        symbols : number of input symbols, which the solitons depend on
        """
        key = text.strip().lower()
        if key in ("fr", "raptorq", "r10", "soliton") or key.startswith("robust-soliton"):
            return cls._named(key, symbols)
        return cls.of(_polynomial(text), key)

    @classmethod
    def _named(cls, key: str, symbols: int) -> DegreeDistribution:
        if key == "fr":
            return cls.of(FR_TABLE, key)
        if key in ("raptorq", "r10"):
            return cls.of(_differences(RAPTORQ_CDF if key == "raptorq" else R10_CDF), key)
        if key == "soliton":
            return cls.of(_soliton(symbols), key)
        try:
            c, delta = (float(part) for part in key.split(":")[1:])
        except ValueError:
            c, delta = -1.0, -1.0
        if not (0 < c < np.inf and 0 < delta < 1):
            raise UsageError("--param omega", "robust-soliton needs :C:DELTA with C > 0 and 0 < DELTA < 1", repr(key),
                             "Write for example robust-soliton:0.03:0.5.")  # fmt: skip
        return cls.of(_robust_soliton(symbols, c, delta), key)

    @cached_property
    def mean(self) -> float:
        """Mean degree Σ d Ω_d."""
        return float(np.dot(self.degrees, self.weights))

    @property
    def largest(self) -> int:
        return self.degrees[-1]

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """`count` degrees drawn independently from the Generator passed."""
        which = np.searchsorted(np.cumsum(self.weights), rng.random(count), side="right")
        return np.asarray(self.degrees, dtype=np.intp)[np.minimum(which, len(self.degrees) - 1)]

    def infeasible(self, m: int, n: int, rule: str = "uniform") -> tuple[int, ...]:
        """Degrees without a factor pair d_A · d_B = d, d_A ≤ m, d_B ≤ n that the rule would use."""
        return tuple(d for d in self.degrees if not factor_pairs(d, m, n, rule))

    def restricted(self, m: int, n: int, rule: str = "uniform") -> DegreeDistribution:
        """Without the infeasible degrees, renormalised. Raises UsageError when none is left."""
        kept = {d: w for d, w in zip(self.degrees, self.weights, strict=True) if factor_pairs(d, m, n, rule)}
        if not kept:
            raise UsageError("--param omega", f"needs a degree with a factor pair on a {m}x{n} array", self.degrees,
                             "Use another distribution or a larger grid.")  # fmt: skip
        return DegreeDistribution.of(kept, self.name)

    def check(self, m: int, n: int, rule: str = "uniform") -> None:
        """Raise UsageError naming the degrees that have no factor pair on an m × n array."""
        bad = self.infeasible(m, n, rule)
        if bad:
            raise UsageError("--param omega", f"every degree needs factors d_A ≤ {m} and d_B ≤ {n} (pair rule {rule})",
                             f"degrees {', '.join(map(str, bad))}",
                             "Set infeasible=drop to leave them out, or change omega or the grid.")  # fmt: skip

    def __str__(self) -> str:
        terms = (f"{w:.6g}x" + (f"^{d}" if d > 1 else "") for d, w in zip(self.degrees, self.weights, strict=True))
        return self.name or "+".join(terms)


@lru_cache(1 << 16)  # a soliton has as many degrees as there are symbols, and every page asks for all of them
def factor_pairs(degree: int, m: int, n: int, rule: str = "uniform") -> tuple[tuple[int, int], ...]:
    """The ordered pairs (d_A, d_B), d_A · d_B = degree, d_A ≤ m, d_B ≤ n, that `rule` chooses from uniformly.

    uniform : all of them; balanced : those with the smallest |d_A − d_B|; one-sided : (d, 1) and (1, d) only
    """
    if rule not in PAIR_RULES:
        raise UsageError("--param pair_rule", f"must be one of {', '.join(PAIR_RULES)}", repr(rule),
                         "Choose one of them.")  # fmt: skip
    small = [a for a in range(1, isqrt(degree) + 1) if degree % a == 0]
    divisors = small + [degree // a for a in reversed(small) if a * a != degree]
    pairs = [(a, degree // a) for a in divisors if a <= m and degree // a <= n]
    if rule == "balanced" and pairs:
        least = min(abs(a - b) for a, b in pairs)
        pairs = [(a, b) for a, b in pairs if abs(a - b) == least]
    if rule == "one-sided":
        pairs = [(a, b) for a, b in pairs if 1 in (a, b)]
    return tuple(pairs)


def sample_pairs(omega: DegreeDistribution, m: int, n: int, rule: str, rng: np.random.Generator,
                 count: int) -> tuple[IntArray, IntArray]:  # fmt: skip
    """`count` pairs (d_A, d_B): a degree from Ω, then a feasible pair uniformly. Returns two (count,) arrays.

    Raises UsageError for a degree without a feasible pair.
    """
    omega.check(m, n, rule)
    degrees, draws = omega.sample(rng, count), rng.random(count)
    d_a, d_b = np.empty(count, np.intp), np.empty(count, np.intp)
    for d in omega.degrees:
        chosen = degrees == d
        pairs = np.array(factor_pairs(d, m, n, rule), dtype=np.intp)
        which = (draws[chosen] * len(pairs)).astype(np.intp)
        d_a[chosen], d_b[chosen] = pairs[which].T
    return d_a, d_b


def sample_subsets(sizes: IntArray, population: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Uniform subsets without replacement of range(population), one for each of `sizes`.

    Returns (indptr, indices) in CSR fashion, each subset increasing.
    """
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    indices = np.empty(indptr[-1], np.intp)
    for size in np.unique(sizes):
        where = np.flatnonzero(sizes == size)
        slots = indptr[where][:, None] + np.arange(size)
        indices[slots] = _equal_subsets(len(where), int(size), population, rng)
    return indptr, indices


def _equal_subsets(count: int, size: int, population: int, rng: np.random.Generator) -> IntArray:
    """(count, size) sorted subsets: small ones by drawing again what has a repetition, large ones by sorting keys."""
    if size == 1:
        return rng.integers(population, size=(count, 1))
    if size * size > population:
        keys = rng.random((count, population))
        return np.sort(np.argpartition(keys, size - 1, axis=1)[:, :size], axis=1)
    drawn = np.sort(rng.integers(population, size=(count, size)), axis=1)
    while len(again := np.flatnonzero((np.diff(drawn, axis=1) == 0).any(axis=1))):
        drawn[again] = np.sort(rng.integers(population, size=(len(again), size)), axis=1)
    return drawn


def _polynomial(text: str) -> dict[int, float]:
    table: dict[int, float] = {}
    for term in text.replace(" ", "").lower().replace("**", "^").split("+"):
        match = re.fullmatch(r"(\d+(?:\.\d*)?(?:e-?\d+)?|\.\d+|)\*?x(?:\^?(\d{1,7}))?", term)
        if not match:
            raise UsageError("--param omega", "must be a polynomial like 0.013x+0.5x^2 or one of " + ", ".join(NAMES),
                             repr(text), f"The term {term!r} cannot be read.")  # fmt: skip
        degree = int(match[2] or 1)
        table[degree] = table.get(degree, 0.0) + float(match[1] or 1)
    if abs(sum(table.values()) - 1) > 1e-3:
        raise UsageError("--param omega", "weights must sum to 1 within 0.001", f"{sum(table.values()):.6g}",
                         "Rescale them.")  # fmt: skip
    return table


def _differences(cdf: Mapping[int, int]) -> dict[int, float]:
    values = [0, *cdf.values()]
    return {d: (b - a) / values[-1] for d, a, b in zip(cdf, values, values[1:], strict=False)}


def _soliton(k: int) -> dict[int, float]:
    """Ideal soliton: 1/K at 1, 1/(d(d−1)) up to K (Luby 2002)."""
    return {1: 1.0 / k} | {d: 1.0 / (d * (d - 1)) for d in range(2, k + 1)}


def _robust_soliton(k: int, c: float, delta: float) -> dict[int, float]:
    """Robust soliton (Luby 2002): R = c ln(K/δ) √K; τ_d = R/(dK) below K/R, R ln(R/δ)/K at K/R."""
    table: dict[int, float] = _soliton(k)
    ripple = c * np.log(k / delta) * np.sqrt(k)
    spike = min(max(round(k / ripple), 1), k)
    for d in range(1, spike):
        table[d] += ripple / (d * k)
    table[spike] += max(ripple * float(np.log(ripple / delta)) / k, 0.0)
    return table
