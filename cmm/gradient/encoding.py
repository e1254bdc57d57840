"""Encoding matrices of gradient coding: which worker takes which parts of the data, with which coefficients.

A data set is cut into k parts; worker i returns B_i g, the combination of its parts' gradients; a set I of answers
gives the full gradient when the vector of ones lies in the span of the rows B_I. Workers are numbered from 0 here.

Tandon, Lei, Dimakis, Karampatziakis, "Gradient coding", ICML 2017: fractional and cyclic repetition.
Charalambides, Mahdavifar, Hero, "Generalized fractional repetition codes for binary coded computations", arXiv
2109.10484: any n and s, unequal workers. Its algorithms 1 and 2 are one formula here (ERRATA.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cmm.core.errors import UsageError
from cmm.core.grid import cut
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.gradient.decoding import ClassDecoder, Decoder, SpanDecoder

SPAN_TOLERANCE = 1e-9  # of the residual of the ones, relative to their norm
MOST_SETS = 200_000  # straggler sets that are checked one by one


@dataclass(frozen=True, eq=False)
class Encoding:
    """An encoding matrix and how its answers are put together.

    Attributes
    ----------
    matrix : B, n x k float64; row i is worker i's
    stragglers : s; any n - s answers give the gradient
    classes : binary codes only: workers whose rows add up to the vector of ones, class by class
    coded_data : the rows combine the data themselves, not the gradients (cmm.gradient.polynomial)
    """

    name: str
    matrix: Array
    stragglers: int
    classes: tuple[tuple[int, ...], ...] = ()
    coded_data: bool = False

    @property
    def n(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def k(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def loads(self) -> tuple[int, ...]:
        """Parts of every worker."""
        return tuple(int(load) for load in np.count_nonzero(self.matrix, axis=1))

    def parts(self, worker: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The parts of a worker, increasing, and their coefficients."""
        found = np.flatnonzero(self.matrix[worker])
        return tuple(int(j) for j in found), tuple(float(x) for x in self.matrix[worker, found])

    def columns(self) -> Array:
        """n x d: the answers of all workers are combinations of these columns, element by element."""
        return self.matrix

    def decoder(self) -> Decoder:
        """A fresh decoder of one gradient."""
        if self.classes:
            return ClassDecoder(self.classes, self.n)
        return SpanDecoder(self.matrix, self.stragglers)


# ---- properties of any encoding matrix ---------------------------------------------------------------------------


def total_load(matrix: Array) -> int:
    """Nonzeros of B: parts processed by all workers together. At least k(s + 1) when any s may straggle (Lemma 5)."""
    return int(np.count_nonzero(matrix))


def max_load(matrix: Array) -> int:
    """Parts of the most loaded worker; at least ceil(k / floor(n / (s + 1))) for binary codes (Theorem 8)."""
    return int(np.count_nonzero(matrix, axis=1).max(initial=0))


def imbalance(matrix: Array, stragglers: int) -> float:
    """d_s(B) = sum over workers of | load - (k / n)(s + 1) |: how far from perfectly balanced the loads are."""
    n, k = matrix.shape
    return float(np.abs(np.count_nonzero(matrix, axis=1) - k * (stragglers + 1) / n).sum())


def decoding_vector(matrix: Array, received: Sequence[int]) -> Array | None:
    """a with support in `received` and a^T B = 1^T (n float64, least squares), or None when there is none."""
    n, k = matrix.shape
    rows = matrix[list(received)]
    found = np.linalg.lstsq(rows.T, np.ones(k), rcond=None)[0] if len(rows) else np.zeros(0)
    if np.linalg.norm(rows.T @ found - 1) > SPAN_TOLERANCE * math.sqrt(k):
        return None
    a = np.zeros(n)
    a[list(received)] = found
    return a


def spans(matrix: Array, stragglers: int, *, seed: int = 0) -> bool:
    """Whether every n - s rows span the vector of ones: all sets, or `MOST_SETS` random ones when there are more."""
    n = matrix.shape[0]
    keep = n - stragglers
    if math.comb(n, stragglers) <= MOST_SETS:
        return all(decoding_vector(matrix, rows) is not None for rows in itertools.combinations(range(n), keep))
    rng = generator(seed, "span")
    return all(
        decoding_vector(matrix, rng.choice(n, keep, replace=False).tolist()) is not None for _ in range(MOST_SETS)
    )


# ---- the codes ---------------------------------------------------------------------------------------------------


def _check(n: int, s: int, k: int) -> None:
    if n < 1:
        raise UsageError("workers", "must be at least 1", n, "Start more ranks (mpirun -n).")
    if not 0 <= s < n:
        raise UsageError("--stragglers", f"must be from 0 to {n - 1} with {n} workers", s,
                         "Choose fewer stragglers or start more ranks.")  # fmt: skip
    largest = -(-n // (s + 1))
    if k < largest:
        raise UsageError("--parts", f"must be at least {largest}, the workers of a class", k,
                         "Cut the data into more parts.")  # fmt: skip


def _from_loads(name: str, classes: Sequence[Sequence[int]], loads: Sequence[Sequence[int]], k: int) -> Encoding:
    """Deal the k parts contiguously in every class."""
    matrix = np.zeros((sum(map(len, classes)), k))
    for members, shares in zip(classes, loads, strict=True):
        bounds = list(itertools.accumulate(shares, initial=0))
        for place, worker in enumerate(members):
            matrix[worker, bounds[place] : bounds[place + 1]] = 1
    return Encoding(name, matrix, len(classes) - 1, tuple(map(tuple, classes)))


def generalized_frc(n: int, s: int, k: int | None = None) -> Encoding:
    """Generalised fractional repetition, any n > s >= 0 and k >= ceil(n / (s + 1)) (default: n).

    Class c holds the workers congruent to c modulo s + 1; inside a class of g workers the first (k mod g) take one part
    more than the others. Total load k(s + 1), maximum ceil(k / floor(n / (s + 1))), and for k = n an imbalance of
    2r(s + 1 - r) with r = n mod (s + 1).
    """
    k = n if k is None else k
    _check(n, s, k)
    classes = [list(range(c, n, s + 1)) for c in range(s + 1)]
    loads = [[b - a for a, b in itertools.pairwise(cut(k, len(members)))] for members in classes]
    return _from_loads("generalized-frc", classes, loads, k)


def tandon_frc(n: int, s: int, k: int | None = None) -> Encoding:
    """Fractional repetition of Tandon et al.: (s + 1) | n, and every worker has exactly k(s + 1)/n parts."""
    k = n if k is None else k
    _check(n, s, k)
    if n % (s + 1):
        raise UsageError("--code frc", f"needs s + 1 = {s + 1} to divide the number of workers", n,
                         "Use generalized-frc, which needs no such thing.")  # fmt: skip
    if k % (n // (s + 1)):
        raise UsageError("--parts", f"must be a multiple of n/(s + 1) = {n // (s + 1)} with frc", k,
                         "Use generalized-frc, or another number of parts.")  # fmt: skip
    made = generalized_frc(n, s, k)
    return Encoding("frc", made.matrix, s, made.classes)


def uncoded(n: int, k: int | None = None) -> Encoding:
    """No redundancy: every worker is waited for."""
    made = generalized_frc(n, 0, k)
    return Encoding("uncoded", made.matrix, 0, made.classes)


def heterogeneous_frc(speeds: Sequence[float], s: int, k: int) -> Encoding:
    """Generalised fractional repetition for workers of unequal speed.

    Parameters
    ----------
    speeds : parts per second of every worker, or anything proportional to it; all > 0

    The fastest first, every worker joins the class with the smallest total speed; inside a class the parts go one by
    one to the worker who would finish them first, at least one each. So all classes finish after about (s + 1)k / sum
    of the speeds. More parts make it more exact.
    """
    n = len(speeds)
    _check(n, s, k)
    if not all(math.isfinite(v) and v > 0 for v in speeds):
        raise UsageError("--speeds", "must be finite numbers above 0", list(speeds), "Leave them out to measure them.")
    classes: list[list[int]] = [[] for _ in range(s + 1)]
    for worker in sorted(range(n), key=lambda i: (-speeds[i], i)):
        min(classes, key=lambda members: sum(speeds[i] for i in members)).append(worker)
    if max(map(len, classes)) > k:
        raise UsageError("--parts", f"must be at least {max(map(len, classes))}, the workers of a class", k,
                         "Cut the data into more parts.")  # fmt: skip
    loads = [_apportion([speeds[i] for i in members], k) for members in classes]
    return _from_loads("heterogeneous-frc", classes, loads, k)


def _apportion(speeds: Sequence[float], k: int) -> list[int]:
    """At least one part each, and the last worker to finish finishes as early as possible."""
    loads = [1] * len(speeds)
    for _ in range(k - len(speeds)):
        loads[min(range(len(speeds)), key=lambda i: (loads[i] + 1) / speeds[i])] += 1
    return loads


def cyclic(n: int, s: int, seed: int = 0) -> Encoding:
    """Cyclic repetition of Tandon et al. (algorithm 2), k = n: worker i takes the parts i ... i + s modulo n.

    Rows are orthogonal to a random s x n matrix H whose columns add up to zero, so that the rows of any n - s workers
    span its null space, which holds the vector of ones. Real coefficients: decoded by least squares.
    """
    _check(n, s, n)
    H = generator(seed, "cyclic").standard_normal((s, n))
    H[:, -1] = -H[:, :-1].sum(axis=1)
    matrix = np.zeros((n, n))
    for i in range(n):
        others = [(i + j) % n for j in range(1, s + 1)]
        matrix[i, i] = 1
        matrix[i, others] = -np.linalg.solve(H[:, others], H[:, i]) if s else 0
    return Encoding("cyclic", matrix, s)


@dataclass(frozen=True)
class CodeInfo:
    """A line of --list-codes."""

    name: str
    recovery: str
    good_for: str
    paper: str


CODES: dict[str, CodeInfo] = {
    info.name: info
    for info in (
        CodeInfo("generalized-frc", "any n - s workers; any complete class of about n/(s + 1)",
                 "any n and s, plain sums, bit-reproducible", "Charalambides, Mahdavifar, Hero, arXiv 2109.10484"),
        CodeInfo("heterogeneous-frc", "any n - s workers; any complete class",
                 "workers of unequal speed, given with --speeds or measured at the start",
                 "Charalambides, Mahdavifar, Hero, arXiv 2109.10484"),
        CodeInfo("frc", "any n - s workers; any complete class of n/(s + 1)", "n a multiple of s + 1, equal loads",
                 "Tandon, Lei, Dimakis, Karampatziakis, ICML 2017"),
        CodeInfo("cyclic", "any n - s workers", "any n and s with equal loads; k = n, real coefficients",
                 "Tandon, Lei, Dimakis, Karampatziakis, ICML 2017"),
        CodeInfo("polynomial", "any 2q - 1 workers of n, each with 1/q of the data",
                 "least squares only: fewer answers for the same load",
                 "Li, Kalan, Yu, Soltanolkotabi, Avestimehr, 2018"),
        CodeInfo("uncoded", "all n workers", "comparison", "-"),
    )
}  # fmt: skip
