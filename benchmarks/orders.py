"""The reference case of arXiv 1907.11018 with the product's own code and solver: thresholds, orders, caps.

    python -m benchmarks.orders peeling       how often peeling alone fails at N results (supports only)
    python -m benchmarks.orders orders        last in first out, first in first out, error-ordered; three laws
    python -m benchmarks.orders inactivation  failures, inactive symbols and errors of the decoder's plan
    python -m benchmarks.orders caps          the cap on the predicted error against the number of inactive symbols

(82,80) x (82,80), K = 6400, P = 10000, scalar blocks, C = AᵀB of Gaussian A and B with 100 rows, float64. Trial i is
the code of seed `--seed` + i with a random set of N of its P tasks. Errors are relative Frobenius errors of C.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from cmm.codes.fr_paper import Paper
from cmm.codes.registry import code_class
from cmm.core.errors import FailureKind
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.linalg.inactivation import best_solver
from cmm.linalg.peeling import peel
from cmm.linalg.plan import DecodingError
from cmm.linalg.schedule import SparseSystem, make_schedule
from cmm.linalg.solver import SparseSolver

LAWS = ("gaussian", "uniform", "signs")
SHARED = 100  # rows of A and B


@dataclass(frozen=True)
class Case:
    """A configuration of the published code."""

    grid: str = "80x80"
    outer: str = "82x82"
    tasks: int = 10000
    omega: str = "fr"
    pair_rule: str = "uniform"

    def construction(self, seed: int, law: str = "signs") -> Paper:
        params = {"construction": "paper", "outer": self.outer, "omega": self.omega, "pair_rule": self.pair_rule,
                  "coefficients": law}  # fmt: skip
        code = code_class("fr")(Grid.parse(self.grid), self.tasks, seed, "oneshot", params)
        construction: Paper = code.construction  # type: ignore[attr-defined]
        return construction


REFERENCE = Case()


@dataclass(frozen=True)
class Outcome:
    """One decoding: relative error (None when it failed, with the kind), inactive symbols, seconds for the plan."""

    error: float | None
    inactive: int = 0
    seconds: float = 0.0
    kind: FailureKind | None = None


def received(construction: Paper, tasks: int, results: int, seed: int) -> SparseSystem:
    """A random set of N of the P tasks, over the coded pairs."""
    chosen = generator(seed, "received").permutation(tasks)[:results]
    return SparseSystem(construction.stream.matrix(chosen), outer=construction.outer)


def peeling_fails(case: Case, results: int, seed: int) -> bool:
    """Whether peeling alternated with the outer code leaves a source block unknown."""
    construction = case.construction(seed)
    outer = construction.outer
    system = received(construction, case.tasks, results, seed)
    shape, checks = (outer.rows, outer.columns), (outer.rows - outer.m, outer.columns - outer.n)
    return bool(peel(system.matrix, shape, checks).any())


def truth(system: SparseSystem, seed: int) -> tuple[Array, Array]:
    """(coded pairs, results) of scalar blocks: one column each."""
    outer = system.outer
    if outer is None:
        raise ValueError("the reference case has an outer code")
    rng = generator(seed, "data")
    a, b = rng.standard_normal((SHARED, outer.m)), rng.standard_normal((SHARED, outer.n))
    symbols = ((outer.generator_a @ a.T) @ (b @ outer.generator_b.T)).reshape(-1, 1)
    return symbols, system.matrix @ symbols


def relative_error(solver: SparseSolver, seed: int) -> float:
    """Relative Frobenius error of C."""
    symbols, results = truth(solver.system, seed)
    source = solver.system.outer.source  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        error = np.linalg.norm(solver.decode(results)[source] - symbols[source]) / np.linalg.norm(symbols[source])
    return float(error) if np.isfinite(error) else np.inf


def ordered(case: Case, law: str, order: str, results: int, seed: int) -> Outcome:
    """Peeling only, in the given order."""
    system = received(case.construction(seed, law), case.tasks, results, seed)
    schedule = make_schedule(system, order=order, inactivate=False)
    if schedule is None or len(schedule.unsolved):
        return Outcome(None, kind=FailureKind.INCOMPLETE)
    return Outcome(relative_error(SparseSolver(schedule), seed))


def inactivated(case: Case, law: str, results: int, seed: int) -> Outcome:
    """The decoder's own plan: caps tried by probe, refinement."""
    system = received(case.construction(seed, law), case.tasks, results, seed)
    start = time.perf_counter()
    try:
        found = best_solver(system)
    except DecodingError as failure:
        return Outcome(None, kind=failure.kind)
    seconds = time.perf_counter() - start
    if found is None:
        return Outcome(None, kind=FailureKind.INCOMPLETE)
    return Outcome(relative_error(found[0], seed), len(found[0].inactive), seconds)


def capped(case: Case, law: str, cap: float, refine: bool, results: int, seed: int) -> Outcome:
    """One cap, with or without refinement."""
    system = received(case.construction(seed, law), case.tasks, results, seed)
    schedule = make_schedule(system, cap=cap)
    if schedule is None:
        return Outcome(None, kind=FailureKind.INCOMPLETE)
    solver = SparseSolver(schedule, refine=refine)
    if solver.deficiency:
        return Outcome(None, len(solver.inactive), kind=FailureKind.SINGULAR)
    return Outcome(relative_error(solver, seed), len(solver.inactive))


def gather(trial: Callable[[int], Outcome], seed: int, trials: int) -> list[Outcome]:
    return [trial(seed + k) for k in range(trials)]


def summary(outcomes: list[Outcome]) -> str:
    """median (worst) of the errors, failures when there are any."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    failed = f", {len(outcomes) - len(errors)} of {len(outcomes)} failed" if len(errors) < len(outcomes) else ""
    return (f"{np.median(errors):.1e} ({max(errors):.1e})" if errors else "none decoded") + failed


def show_peeling(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    failures = sum(peeling_fails(REFERENCE, args.results or 7060, args.seed + k) for k in range(args.trials or 2000))
    print(f"peeling at N = {args.results or 7060}: {failures} of {args.trials or 2000} failed "
          f"({time.perf_counter() - start:.0f} s)")  # fmt: skip


def show_orders(args: argparse.Namespace) -> None:
    results, trials = args.results or 7060, args.trials or 8
    print(f"relative error of C, median (worst) of {trials}, N = {results}, seed {args.seed}\n")
    print("| coefficients | last in, first out | first in, first out | smallest predicted error first |")
    print("|---|---|---|---|")
    for law in LAWS:
        cells = [summary(gather(partial(ordered, REFERENCE, law, order, results), args.seed, trials))
                 for order in ("lifo", "fifo", "error")]  # fmt: skip
        print(f"| {law} | " + " | ".join(cells) + " |", flush=True)


def show_inactivation(args: argparse.Namespace) -> None:
    trials = args.trials or 100
    print("| coefficients | N | failed | inactive symbols, mean (most) | error, median (worst) | plan, seconds |")
    print("|---|---|---|---|---|---|")
    for law in args.laws:
        for results in [args.results] if args.results else (6440, 6480, 6500, 6600, 6800, 7060):
            outcomes = gather(partial(inactivated, REFERENCE, law, results), args.seed, trials)
            good = [outcome for outcome in outcomes if outcome.error is not None]
            inactive = [outcome.inactive for outcome in good] or [0]
            seconds = [outcome.seconds for outcome in good] or [0.0]
            print(f"| {law} | {results} | {trials - len(good)} of {trials} | {np.mean(inactive):.0f} ({max(inactive)}) "
                  f"| {summary(good)} | {np.median(seconds):.2f} |", flush=True)  # fmt: skip


def show_caps(args: argparse.Namespace) -> None:
    results, trials = args.results or 6500, args.trials or 5
    print(f"N = {results}, {trials} trials, seed {args.seed}\n")
    print("| coefficients | cap | inactive symbols, mean | error, median (worst) | after one refinement |")
    print("|---|---|---|---|---|")
    for law in args.laws:
        for cap in (np.inf, 1e18, 1e15, 1e12, 1e10, 1e8, 1e5):
            plain, refined = (gather(partial(capped, REFERENCE, law, cap, refine, results), args.seed, trials)
                              for refine in (False, True))  # fmt: skip
            mean = np.mean([outcome.inactive for outcome in plain])
            print(f"| {law} | {cap:.0e} | {mean:.0f} | {summary(plain)} | {summary(refined)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orders", description=(__doc__ or "").split("\n")[0])
    shows = {"peeling": show_peeling, "orders": show_orders, "inactivation": show_inactivation, "caps": show_caps}
    parser.add_argument("what", choices=shows)
    parser.add_argument("--trials", type=int, help="default: 2000 peeling, 8 orders, 100 inactivation, 5 caps")
    parser.add_argument("--results", type=int, help="N; default: 7060 peeling and orders, several, 6500 caps")
    parser.add_argument("--laws", nargs="+", default=["signs"], choices=LAWS, help="inactivation and caps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shows[args.what](args)


if __name__ == "__main__":
    main()
