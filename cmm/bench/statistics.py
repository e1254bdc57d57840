"""Medians and quartiles of the runs of a point, and the table of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmm.bench.points import PHASES, Run, grouped
from cmm.simulate.tables import markdown, number


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of the finite ones among `values`; nan where there is none."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return cls(math.nan, math.nan, math.nan)
        low, median, high = np.percentile(finite, [25, 50, 75])
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return f"{number(self.median)} [{number(self.low)} … {number(self.high)}]"


def failures(runs: Sequence[Run]) -> list[Run]:
    """Those that did not end with a verified C."""
    return [run for run in runs if not run.passed]


def good(runs: Sequence[Run]) -> list[Run]:
    """Those that did: what medians are made of."""
    return [run for run in runs if run.passed]


def verdict(runs: Sequence[Run]) -> str:
    """PASSED when all did."""
    wrong = failures(runs)
    return "PASSED" if not wrong else f"{wrong[0].check} ({len(wrong)} of {len(runs)}: {wrong[0].outcome})"


def largest_residual(runs: Sequence[Run]) -> float:
    """Of the runs that have one; nan where none has."""
    return max((run.residual for run in runs if math.isfinite(run.residual)), default=math.nan)


def sweep_table(runs: Iterable[Run]) -> str:
    """One line a point: what it was; of the runs that passed median and quartiles of time, medians of phases;
    of all residual and verdict."""
    heading = ("size", "ranks", "grid", "K", "code", "dispatch", "inject", "runs", "time (s) [quartiles]", "Gflop/s",
               "encode", "send", "wait", "decode", "verify", "residual", "check")  # fmt: skip
    rows = []
    for point, own in grouped(runs).items():
        size = str(point.s) if point.s == point.r == point.t else f"{point.s}x{point.r}x{point.t}"
        passed, (first, *_) = good(own), [*good(own), *own]
        phases = [number(Spread.of(getattr(run, name) for run in passed).median)
                  for name in ("encode", "send", "wait", "decode", "verify")]  # fmt: skip
        name, _, rest = point.scheme.partition("/")
        rows.append((size, str(point.ranks), first.grid or "–", str(first.K or "–"), first.code or name,
                     first.dispatch or rest.partition(":")[0], point.inject, str(len(own)),
                     str(Spread.of(run.time for run in passed)), number(Spread.of(run.gflops for run in passed).median),
                     *phases, number(largest_residual(own), 2), verdict(own)))  # fmt: skip
    return markdown(heading, rows)


def summary(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The same for JSON: a mapping a point; None for what is not known."""
    lines = []
    for point, every in grouped(runs).items():
        own, (first, *_) = good(every), [*good(every), *every]
        time, command = Spread.of(run.time for run in own), Spread.of(run.command for run in own)
        line: dict[str, Any] = {
            "size": [point.s, point.r, point.t], "ranks": point.ranks, "scheme": point.scheme, "inject": point.inject,
            "scaling": point.scaling, "grid": first.grid, "K": first.K, "runs": len(every), "passed": len(own),
            "time": {"median": time.median, "quartiles": [time.low, time.high]},
            "command": {"median": command.median, "quartiles": [command.low, command.high]},
            "gflops": Spread.of(run.gflops for run in own).median,
            "seconds": {name: Spread.of(getattr(run, name) for run in own).median for name in PHASES},
            "load": Spread.of(run.load for run in own).median,
            "residual": largest_residual(every),
        }  # fmt: skip
        lines.append(finite(line))
    return lines


def finite(value: Any) -> Any:
    """For strict JSON: None in place of nan and infinity."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
