"""Group sizes (systematic FR) or a degree distribution (FR as published) of least predicted decoding work.

Candidates are ranked by predicted work and then tried, best first, on the code itself until one keeps the failure
bound; what was predicted and what was seen is the evidence returned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import structural_rank

from cmm.codes.fr import FactoredRaptor
from cmm.codes.groups import residual_degree, sparse_counts
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.linalg.degrees import DegreeDistribution, factor_pairs
from cmm.linalg.subtract import FLOPS_PER_AXPY
from cmm.simulate import density
from cmm.simulate.arrivals import Arrival
from cmm.simulate.experiment import CodeSpec, Experiment
from cmm.simulate.recovery import run
from cmm.simulate.statistics import Stats

EXCESS = 6  # results beyond K that systematic FR is to decode with
TRIED = 8  # candidates tried on the code before giving up
LARGEST_DEGREE = 120
MARGINS, PRICES = (0.0, 0.5, 1.0, 2.0, 4.0), (0.0, 0.01, 0.05, 0.2)


# ---- systematic FR: groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """Groups of about d_a × d_b chunks (counts: groups a side) and what is predicted of them.

    Attributes
    ----------
    rho : missing blocks per repair row, and what the rule asks for
    work : block operations of decoding, in units of a BLAS-3 one: subtract + solve
    passes : rounds to encode, each a pass over A and B
    trials, failures : tried on the code at N = K + EXCESS (None: not tried)
    """

    counts: tuple[int, int]
    d_a: float
    d_b: float
    rho: float
    rule: float
    subtract: float
    solve: float
    passes: float
    trials: int = 0
    failures: int = 0
    note: str = ""

    @property
    def work(self) -> float:
        return self.subtract + self.solve

    @property
    def parameter(self) -> str:
        """For --param groups=."""
        if self.counts == (1, 1):
            return "full"
        return f"{round(self.d_a)}x{round(self.d_b)}"


def predict_groups(grid: Grid, alpha: float, counts: tuple[int, int], note: str = "") -> Groups:
    """Work for K α missing blocks. Subtraction is the cheaper of axpys and of a GEMM over the distinct a's."""
    d_a, d_b = grid.m / counts[0], grid.n / counts[1]
    missing = max(1.0, alpha * grid.K)
    rows = missing + EXCESS
    rounds = rows / (counts[0] * counts[1])
    axpys = rows * (1 - alpha) * d_a * d_b * FLOPS_PER_AXPY
    gemm = math.ceil(rounds) * counts[0] * d_a * grid.n + rows * d_b * FLOPS_PER_AXPY
    return Groups(counts, d_a, d_b, alpha * d_a * d_b, residual_degree(missing, alpha), min(axpys, gemm), missing**2,
                  rounds, note=note)  # fmt: skip


def candidate_groups(grid: Grid, alpha: float) -> list[Groups]:
    """All group counts that can be written as a parameter and have at least half of the residual degree asked for."""
    found: dict[tuple[int, int], Groups] = {}
    for d_a in range(1, grid.m + 1):
        for d_b in range(1, grid.n + 1):
            counts = max(1, round(grid.m / d_a)), max(1, round(grid.n / d_b))
            if counts not in found:
                found[counts] = predict_groups(grid, alpha, counts)
    return [g for g in found.values() if g.rho >= 0.5 * g.rule or g.counts == (1, 1)]


def try_groups(grid: Grid, tasks: int, alpha: float, groups: Groups, trials: int, seed: int) -> Groups:
    """Structural rank of the missing blocks' equations at N = K + EXCESS, systematic results lost independently."""
    spare = tasks - grid.K
    failures = 0
    for trial in range(trials):
        rng = generator(seed, "design", trial)
        code = FactoredRaptor(grid, tasks, int(rng.integers(2**62)), "oneshot", {"groups": groups.parameter})
        lost = np.flatnonzero(rng.random(grid.K) < alpha)
        if len(lost) + EXCESS > spare:
            failures += 1
            continue
        failures += _rank(code, lost, len(lost) + EXCESS) < len(lost)
    return replace(groups, trials=trials, failures=failures)


def _rank(code: FactoredRaptor, lost: Array, rows: int) -> int:
    column = np.full(code.grid.K, -1)
    column[lost] = np.arange(len(lost))
    indptr, indices = [0], []
    for index in range(code.grid.K, code.grid.K + rows):
        met = column[code.rows(code.task(index))[0].indices]
        met = met[met >= 0]
        indices.append(met)
        indptr.append(indptr[-1] + len(met))
    columns = np.concatenate(indices) if indices else np.empty(0, np.intp)
    matrix = sp.csr_array((np.ones(len(columns)), columns, indptr), shape=(rows, len(lost)))
    return int(structural_rank(matrix)) if len(columns) else 0


def design_groups(grid: Grid, tasks: int, alpha: float, bound: float = 0.01, trials: int = 40, seed: int = 0,
                  tried: int = TRIED) -> tuple[Groups, list[Groups]]:  # fmt: skip
    """(the choice, all that was tried, best predicted first; the rule of codes/groups.py among them).

    bound : failures at most, as a share of the trials

    Raises UsageError when P leaves too few repair tasks for a loss of α.
    """
    check_alpha(alpha, bound)
    if tasks - grid.K < alpha * grid.K + EXCESS:
        raise UsageError("--tasks", f"must leave {math.ceil(alpha * grid.K) + EXCESS} repair tasks beyond K = {grid.K}",
                         tasks, "Raise --tasks or lower --alpha.")  # fmt: skip
    ranked = sorted(candidate_groups(grid, alpha), key=lambda g: (g.work, g.passes))
    rule = predict_groups(grid, alpha, sparse_counts(grid, alpha), note="the rule of docs/codes.md")
    evidence = [try_groups(grid, tasks, alpha, rule, trials, seed)]
    for candidate in _thinned([g for g in ranked if g.rho >= g.rule and g.counts != rule.counts], tried):
        seen = try_groups(grid, tasks, alpha, candidate, trials, seed)
        evidence.append(seen)
        if seen.failures <= bound * trials:
            break
    good = [g for g in evidence if g.failures <= bound * trials]
    if not good:
        evidence.append(try_groups(grid, tasks, alpha, predict_groups(grid, alpha, (1, 1)), trials, seed))
        good = evidence[-1:]
    return min(good, key=lambda g: g.work), sorted(evidence, key=lambda g: g.work)


def _thinned(ranked: Sequence[Groups], most: int) -> Iterable[Groups]:
    """The best first, then ever denser ones: neighbours in the ranking hardly differ."""
    last = 0.0
    for candidate in ranked:
        if candidate.subtract >= 1.1 * last and most > 0:
            last, most = candidate.subtract, most - 1
            yield candidate


# ---- FR as published: a degree distribution ------------------------------------------------------------------------


@dataclass(frozen=True)
class Omega:
    """A degree distribution and what is known of it at N results.

    Attributes
    ----------
    peeling : N* of density evolution (asymptotic threshold of peeling with the outer code)
    inactive : predicted number of inactive symbols at N
    uncovered : bound on the probability that uncovered symbols prevent decoding
    work : predicted block operations: two sparse passes and the dense stage
    seen : what decoding it showed (None: not tried)
    """

    omega: DegreeDistribution
    mean: float
    peeling: float
    inactive: float
    uncovered: float
    work: float
    seen: Stats | None = None
    note: str = ""

    @property
    def operations(self) -> float:
        """Block operations of the plans that were made; the prediction where none was."""
        return self.work if self.seen is None or not self.seen.decoded else self.seen.operations_mean

    @property
    def polynomial(self) -> str:
        """For --param omega=."""
        terms = zip(self.omega.degrees, self.omega.weights, strict=True)
        return "+".join(f"{w:.5f}x" + (f"^{d}" if d > 1 else "") for d, w in terms)


def predict_omega(omega: DegreeDistribution, array: density.Array2D, results: int, note: str = "") -> Omega:
    """Density evolution, inactivations, coverage and work at N results."""
    inactive = density.inactivations(omega, array, results)
    work = 2 * (results * omega.mean + sum(array.checks) * array.symbols) + inactive**2
    return Omega(omega, omega.mean, math.nan, inactive,
                 density.uncoverable(omega, array, results), work, note=note)  # fmt: skip


def design_omega(grid: Grid, tasks: int, alpha: float, outer: tuple[int, int] | None = None, bound: float = 0.01,
                 trials: int = 5, seed: int = 0, tried: int = 3) -> tuple[Omega, list[Omega]]:  # fmt: skip
    """(the choice, the published set and the best candidates) for N = P − αP results under inactivation.

    Candidates are ranked by predicted work; of those tried, the block operations of the decoder's plans decide: its cap
    on predicted errors inactivates more symbols than the chain knows of.

    Raises UsageError when N is below K.
    """
    check_alpha(alpha, bound)
    rows, columns = outer or (grid.m + 2, grid.n + 2)
    array, results = density.Array2D(rows, columns, grid.m, grid.n), tasks - round(alpha * tasks)
    if results < grid.K:
        raise UsageError("--alpha", f"must leave N = P - alpha P of at least K = {grid.K}", alpha, "Lower it.")
    degrees = [d for d in range(1, LARGEST_DEGREE + 1) if factor_pairs(d, rows, columns)]
    found = [density.optimal(array, degrees, margin, price) for margin in MARGINS for price in PRICES]
    published = DegreeDistribution.parse("fr", grid.K).restricted(rows, columns)
    predicted = [predict_omega(omega, array, results) for omega in dict.fromkeys(o for o in found if o is not None)]
    allowed = sorted((p for p in predicted if p.uncovered <= bound), key=lambda p: p.work)
    evidence = []
    for candidate in [predict_omega(published, array, results, "arXiv 1907.11018"), *allowed[:tried]]:
        stats = _decode_with(candidate, grid, tasks, results, (rows, columns), trials, seed)
        peeling = density.peeling_threshold(candidate.omega, array)
        evidence.append(replace(candidate, seen=stats, peeling=peeling))
    good = [p for p in evidence if p.seen is not None and p.seen.failures <= bound * p.seen.trials]
    return min(good or evidence, key=lambda p: p.operations), sorted(evidence, key=lambda p: p.operations)


def _decode_with(candidate: Omega, grid: Grid, tasks: int, results: int, outer: tuple[int, int], trials: int,
                 seed: int) -> Stats:  # fmt: skip
    params = (("construction", "paper"), ("outer", f"{outer[0]}x{outer[1]}"), ("omega", candidate.polynomial),
              ("coefficients", "signs"))  # fmt: skip
    code = CodeSpec("fr", str(grid), tasks, params)
    return run(Experiment("recovery", code, Arrival("uniform"), "auto", results, seed, errors=True), trials)


def check_alpha(alpha: float, bound: float) -> None:
    """Raise UsageError for values that mean nothing."""
    for flag, value in (("--alpha", alpha), ("--bound", bound)):
        if not 0 < value < 1:
            raise UsageError(flag, "must be between 0 and 1", value, "For example 0.1.")
