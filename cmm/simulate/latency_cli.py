"""`python -m cmm.simulate latency`: flags, run, tables."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cmm.core.errors import Refusal, UsageError
from cmm.core.grid import Partition
from cmm.simulate.figures import bar_figure, check_path
from cmm.simulate.latency import MOST_WORKERS, Latency, LatencyResult, LatencyStore, all_schemes, run_row
from cmm.simulate.options import read_count, read_number, read_processes, read_seed
from cmm.simulate.profile import MachineProfile
from cmm.simulate.statistics import quantile_of
from cmm.simulate.sweep import spread
from cmm.simulate.tables import markdown, number

MODELS = ("shifted-exponential:1@worker", "pareto:1.5", "bursty:10:0.1:1+dead:0.02")


def add(p: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    p.add_argument("--workers", action="append", help="W; repeat for more (default 1000)")
    p.add_argument("--scheme", "--code", dest="scheme", action="append", metavar="NAME[/DISPATCH][:KEY=VALUE,...]",
                   help="pull or oneshot; repeat for more (default: every code with both)")  # fmt: skip
    p.add_argument("--model", action="append", help="of stragglers, see docs/latency.md; repeat for more "
                   f"(default: {', '.join(MODELS)})")  # fmt: skip
    p.add_argument("--size", default="100000x100000x100000", metavar="SxRxT", help="A is S x R, B is S x T")
    p.add_argument("--profile", default="default", help="of the machine: default, ideal, or a JSON file")
    p.add_argument("--tolerance", default="1e-9", help="of the estimated error (default 1e-9)")
    p.add_argument("--trials", default="5", help="of every case (default 5)")
    p.add_argument("--seed", default="0", help="of everything drawn (default 0)")
    p.add_argument("--csv", type=Path, help="append results here, and go on from what is there")
    p.add_argument("--figure", type=Path, help="draw times to this file")
    p.add_argument("--processes", help="default: all cores")
    p.add_argument("--progress", action=argparse.BooleanOptionalAction, default=True)
    p.set_defaults(command=main)


def main(options: argparse.Namespace) -> None:
    """Run and print."""
    check_path(options.figure)
    specs = read_specs(options)
    refused = refusals(specs)
    if options.scheme and refused:
        raise next(iter(refused.values()))
    trials = read_count("--trials", options.trials)
    processes = read_processes(options.processes)
    store = LatencyStore(options.csv)
    spread(run_row, store.missing(specs, trials), store.add, processes, options.progress)
    print(times_table(store, specs))
    print()
    print(details_table(store, specs))
    for name, why in refused.items():
        print(f"\nrefused: {name}: {why}")
    if options.figure is not None:
        latency_figure(store, specs, options.figure)


def read_specs(options: argparse.Namespace) -> list[Latency]:
    """Every W × model × scheme. Raises UsageError."""
    parts = options.size.lower().split("x")
    if len(parts) != 3:
        raise UsageError("--size", "must be SxRxT", repr(options.size), "For example 100000x100000x100000.")
    s, r, t = (int(read_number("--size", part, 1, whole=True)) for part in parts)
    profile, tolerance = MachineProfile.named(options.profile), read_number("--tolerance", options.tolerance, 1e-300)
    counts = [read_count("--workers", text, MOST_WORKERS) for text in options.workers or ["1000"]]
    seed = read_seed(options.seed)
    return [
        Latency(scheme, workers, model, (s, r, t), profile, tolerance, seed)
        for workers in counts
        for model in options.model or MODELS
        for scheme in options.scheme or all_schemes(workers)
    ]  # fmt: skip


def refusals(specs: Sequence[Latency]) -> dict[str, Refusal]:
    """Schemes that cannot be built on this problem, by name, and why."""
    found: dict[str, Refusal] = {}
    for spec in {(x.scheme, x.workers): x for x in specs}.values():
        try:
            Partition(spec.build(spec.seed).grid, *spec.size)
        except Refusal as refused:
            found[f"{spec.name}, W = {spec.workers}"] = refused
    return found


def median(results: Sequence[LatencyResult], field: str) -> float:
    """Over the trials that completed; nan when none did."""
    return quantile_of((getattr(r, field) for r in results if r.outcome == "complete"), 0.5)


def times_table(store: LatencyStore, specs: Sequence[Latency]) -> str:
    """Scheme × model: median time to C in units (worst), best first by the mean rank over models."""
    models = list(dict.fromkeys((spec.workers, spec.model) for spec in specs))
    schemes = list(dict.fromkeys(spec.name for spec in specs))
    cells: dict[str, dict[tuple[int, str], tuple[float, str]]] = {name: {} for name in schemes}
    for spec in specs:
        cells[spec.name][spec.workers, spec.model] = _cell(store.of(spec), spec.unit)
    ranks = dict.fromkeys(schemes, 0.0)
    for model in models:
        times = {name: cells[name].get(model, (math.inf, "–"))[0] for name in schemes}
        for place, name in enumerate(sorted(schemes, key=lambda n: times[n])):
            ranks[name] += place + (1e6 if math.isinf(times[name]) else 0)
    rows = [(name, *(cells[name].get(model, (math.inf, "–"))[1] for model in models))
            for name in sorted(schemes, key=lambda n: ranks[n])]  # fmt: skip
    return markdown(("scheme", *(f"W = {workers}, {model}" for workers, model in models)), rows)


def _cell(results: Sequence[LatencyResult], unit: float) -> tuple[float, str]:
    """(median, text) of the time to C in units; inf when a trial did not complete."""
    good = [r.total / unit for r in results if r.outcome == "complete"]
    if len(good) < len(results) or not good:
        bad = sorted({r.outcome for r in results if r.outcome != "complete"})
        return math.inf, ", ".join(bad) + (f" ({len(good)} of {len(results)} complete)" if good else "")
    return float(np.median(good)), f"{number(float(np.median(good)))} ({number(max(good))})"


def details_table(store: LatencyStore, specs: Sequence[Latency]) -> str:
    """Medians of what the master did and moved."""
    heading = ("scheme", "W", "model", "grid", "K", "P", "N", "repairs", "copies", "by master", "solved for",
               "time to C, s", "decode, s", "encode, s", "master load", "sent, GB", "received, GB",
               "workers' time / least")  # fmt: skip
    rows = []
    for spec in specs:
        results = store.of(spec)
        done = [r for r in results if r.outcome == "complete"]
        if not done:
            continue
        counts = [number(median(done, name), 5) for name in ("K", "P", "N", "repairs", "copies", "computed", "missing")]
        rows.append((spec.name, str(spec.workers), spec.model, done[0].grid, *counts, number(median(done, "total")),
                     number(median(done, "decode")), number(median(done, "encode")), number(median(done, "load"), 2),
                     number(median(done, "sent") / 1e9), number(median(done, "received") / 1e9),
                     number(median(done, "work") / (spec.unit * spec.workers))))  # fmt: skip
    return markdown(heading, rows)


def latency_figure(store: LatencyStore, specs: Sequence[Latency], path: Path, footer: str = "") -> None:
    """Median time to C in units by scheme, a bar for every model."""
    groups: dict[str, dict[str, float]] = {}
    for spec in specs:
        group = groups.setdefault(f"W = {spec.workers}, {spec.model}", {})
        group[spec.name] = _cell(store.of(spec), spec.unit)[0]
    finite = {g: {n: v for n, v in bars.items() if math.isfinite(v)} for g, bars in groups.items()}
    profile = specs[0].profile.name
    bar_figure(finite, path, "time to C / product on all workers undisturbed",
               f"profile {profile}; median; schemes that did not complete are left out", footer)  # fmt: skip
