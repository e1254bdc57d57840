"""Where time goes besides the products, and how it grows: measured slopes against formulas.

One case, in which everything has to be done: FR with full groups, oneshot, two workers of which one is frozen from the
start, so that about half of the blocks are solved for. One of s, r, t, K and P is varied at a time; the seconds of each
phase and the phase's formula are fitted by a power of it, over the same runs. A formula says how a phase grows, not how
long it takes; where it counts tasks or blocks it takes the numbers of the run (tasks sent, N, blocks solved for).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cmm.bench.points import Point, Run, grouped
from cmm.bench.statistics import Spread
from cmm.simulate.tables import markdown, number

SPARE = 2.5  # P / K: the worker that answers is dealt 1.25 K tasks
FACTORS = {"s": (1, 2, 4, 8), "r": (1, 2, 4), "t": (1, 2, 4)}
SIDES = (2, 4, 6, 8)  # m = n, when K varies; full groups up to 8 x 8
SPARES = (2.5, 4, 8)  # P / K, when P varies
SIDE = 4
VARIABLES = ("s", "r", "t", "K", "P")


@dataclass(frozen=True)
class Case:
    """A point of a series: the variable that is varied, its value there."""

    variable: str
    value: float
    point: Point


def _point(s: int, r: int, t: int, side: int = SIDE, spare: float = SPARE) -> Point:
    tasks = math.ceil(spare * side * side)
    return Point(3, s, r, t, f"fr/oneshot:grid={side}x{side},tasks={tasks},groups=full", "freeze:2")


def cases(size: int) -> list[Case]:
    """All series; s, r and t grow from `size`, K and P vary at s = r = t = size."""
    found = []
    for variable, factors in FACTORS.items():
        for factor in factors:
            sides = {name: size * (factor if name == variable else 1) for name in "srt"}
            found.append(Case(variable, size * factor, _point(**sides)))
    found += [Case("K", side * side, _point(size, size, size, side)) for side in SIDES]
    found += [Case("P", math.ceil(spare * SIDE * SIDE), _point(size, size, size, spare=spare)) for spare in SPARES]
    return found


# ---- formulas ----------------------------------------------------------------------------------------------------


def _grid(run: Run) -> tuple[int, int]:
    m, n = run.grid.split("x")[-2:]
    return int(m), int(n)


def encoding(run: Run) -> float:
    """Elements read: a systematic task copies a chunk of either side, a coded one combines all of A and of B."""
    m, n = _grid(run)
    systematic = min(run.tasks_sent, math.ceil(run.tasks_sent * run.K / run.P), run.K)
    return systematic * run.s * (run.r / m + run.t / n) + (run.tasks_sent - systematic) * run.s * (run.r + run.t)


def sending(run: Run) -> float:
    """Elements sent: a chunk of either side for every task."""
    m, n = _grid(run)
    return run.tasks_sent * run.s * (run.r / m + run.t / n)


def waiting(run: Run) -> float:
    """Multiply-adds of the worker that answers: N of K blocks."""
    return run.N / run.K * run.s * run.r * run.t


def decoding(run: Run) -> float:
    """Multiply-adds: sigma(K - sigma) to subtract and sigma^2 to solve, on blocks of rt / K."""
    return run.missing * run.K * run.r * run.t / run.K


def verifying(run: Run) -> float:
    """Multiply-adds of matrix times vector: B x_j and A^T u_j, n of them; every result; C with A, B and C."""
    n = _grid(run)[1]
    prepared = run.s * run.t + n * run.s * run.r
    return prepared + run.N * run.r * run.t / run.K + run.s * run.t + run.s * run.r + run.r * run.t


FORMULAS: Mapping[str, tuple[str, Callable[[Run], float]]] = {
    "encode": ("systematic s(r/m + t/n) + coded s(r + t)", encoding),
    "send": ("sent s(r/m + t/n)", sending),
    "wait": ("N/K srt", waiting),
    "decode": ("(sigma(K - sigma) + sigma^2) rt/K", decoding),
    "verify": ("2st + (n + 1)sr + N rt/K + rt", verifying),
}


# ---- fits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """One phase over one variable: exponents of the seconds and of the formula; seconds at the first and last point."""

    phase: str
    variable: str
    measured: float
    formula: float
    first: float
    last: float
    points: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of the least-squares fit y = c x^p; nan with fewer than two points above zero."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a > 0 and b > 0 and math.isfinite(b)]
    if len({a for a, _ in pairs}) < 2:
        return math.nan
    logs = np.log(np.array(pairs))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def fits(chosen: Sequence[Case], runs: Sequence[Run]) -> list[Fit]:
    """Every phase over every variable, from the medians of the runs that passed."""
    rows = grouped(run for run in runs if run.passed)
    found = []
    for phase, (_, formula) in FORMULAS.items():
        for variable in VARIABLES:
            series = [(case.value, rows[case.point]) for case in chosen
                      if case.variable == variable and case.point in rows]  # fmt: skip
            x = [value for value, _ in series]
            seconds = [Spread.of(getattr(run, phase) for run in own).median for _, own in series]
            counted = [Spread.of(formula(run) for run in own).median for _, own in series]
            ends = (seconds[0], seconds[-1]) if seconds else (math.nan, math.nan)
            found.append(Fit(phase, variable, slope(x, seconds), slope(x, counted), *ends, len(series)))
    return found


def overheads_table(found: Sequence[Fit]) -> str:
    """A line a phase: exponent measured (formula) for every variable."""
    heading = ("phase", "formula", *(f"{v}: measured (formula)" for v in VARIABLES), "seconds, smallest case")
    rows = []
    for phase, (text, _) in FORMULAS.items():
        own = {fit.variable: fit for fit in found if fit.phase == phase}
        cells = [f"{number(own[v].measured, 2)} ({number(own[v].formula, 2)})" for v in VARIABLES]
        rows.append((phase, text, *cells, number(own["s"].first)))
    return markdown(heading, rows)
