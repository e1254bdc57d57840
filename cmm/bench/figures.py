"""Figures of sweeps: strong and weak scaling, time to C against stragglers, the master's share; and what the simulator
makes of the same machine with more workers. Every curve says whether it was measured or simulated.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cmm.bench.points import PHASES, Point, Run, grouped, weak_size
from cmm.bench.statistics import Spread
from cmm.core.errors import DataError
from cmm.simulate.figures import MARKERS, new_figure, save
from cmm.simulate.latency import Latency, run_latency
from cmm.simulate.profile import MachineProfile

Curve = list[tuple[Point, list[Run]]]
Size = tuple[int, int, int]


def draw(runs: Sequence[Run], path: Path, profile: MachineProfile | None, most: int) -> None:
    """One panel for everything that the runs have something to say about.

    Parameters
    ----------
    profile : of this machine; simulated curves of both scalings up to `most` workers are added, one core a worker

    Raises
    ------
    DataError : nothing to draw
    UsageError : no Matplotlib, or a format that is not known
    """
    good = [run for run in runs if run.passed]
    panels = [panel for panel in (_strong, _weak, _stragglers, _shares) if panel(None, good, profile, most)]
    if not panels:
        raise DataError("FILE.csv", "must hold runs that passed, of two ranks or more", f"{len(good)} that passed, of "
                        "one rank" if good else "none", "Run a sweep of more ranks first.")  # fmt: skip
    figure, axes = new_figure(path, len(panels), columns=2)
    for panel, ax in zip(panels, axes, strict=True):
        panel(ax, good, profile, most)
    cores = len(os.sched_getaffinity(0))
    footer = f"measured: whole jobs (cmm.run), medians and quartiles; drawn on a machine of {cores} cores"
    if profile is not None:
        footer += f"; simulated: cmm.simulate with profile {profile.name}, a core for each worker and for the master"
    save(figure, path, "", footer)


# Each panel: with ax None, whether there is anything to draw; otherwise draws it.
Panel = Callable[[Any, Sequence[Run], MachineProfile | None, int], bool]


def _strong(ax: Any, runs: Sequence[Run], profile: MachineProfile | None, most: int) -> bool:
    found = [run for run in runs if run.scaling == "strong" and run.inject == "none"]
    return _scaling(ax, found, profile, most, "strong scaling: the same product by more workers", lambda base, w: base)


def _weak(ax: Any, runs: Sequence[Run], profile: MachineProfile | None, most: int) -> bool:
    found = [run for run in runs if run.scaling.startswith("weak") and run.inject == "none"]
    return _scaling(ax, found, profile, most, "weak scaling: as many products for each worker", weak_size)


def _scaling(ax: Any, runs: Sequence[Run], profile: MachineProfile | None, most: int, title: str,
             size_of: Callable[[Size, int], Size]) -> bool:  # fmt: skip
    curves = _curves(runs)
    if ax is None or not curves:
        return any(len({point.workers for point, _ in curve}) > 1 for curve in curves.values())
    ideals: set[Size] = set()
    for ((base, scheme), curve), marker in zip(curves.items(), itertools.cycle(MARKERS)):
        spreads = [Spread.of(run.time for run in own) for _, own in curve]
        name = f"{scheme}, {'x'.join(map(str, base)) if len(set(base)) > 1 else base[0]}"
        line = _errorbars(ax, [point.workers for point, _ in curve], spreads, marker, f"{name}: measured")
        if profile is None:
            continue
        counts = worker_counts(most)
        times = [simulated(scheme, w, size_of(base, w), profile) for w in counts]
        ax.plot(counts, times, ls="--", lw=1.2, color=line.get_color(), label=f"{name}: simulated")
        if base not in ideals:
            ideals.add(base)
            ideal = [2.0 * math.prod(size_of(base, w)) / (w * profile.gemm) for w in counts]
            ax.plot(counts, ideal, ls=":", lw=1, color="0.5", label=f"{base[0]}: products alone, a core a worker")
    _axes(ax, title, "workers W", "time to C (s)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    return True


def _curves(runs: Sequence[Run]) -> dict[tuple[Size, str], Curve]:
    """(size of one worker or of all, scheme) -> points by rising number of workers; a single rank is left out, since
    its master works itself."""
    found: dict[tuple[Size, str], Curve] = {}
    for point, own in grouped(runs).items():
        base = (point.s, point.r, point.t)
        if point.scaling.startswith("weak:"):
            s, r, t = (int(side) for side in point.scaling.removeprefix("weak:").split("x"))
            base = (s, r, t)
        if point.ranks > 1:
            found.setdefault((base, point.scheme), []).append((point, own))
    return {name: sorted(curve, key=lambda pair: pair[0].workers) for name, curve in found.items()}


def worker_counts(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]


def simulated(scheme: str, workers: int, size: Size, profile: MachineProfile) -> float:
    """Seconds to C without stragglers; nan where the scheme cannot be had so."""
    found = run_latency(Latency(scheme, workers, "none", size, profile))
    return found.total if found.outcome == "complete" else math.nan


def _errorbars(ax: Any, x: Sequence[float], spreads: Sequence[Spread], marker: str, label: str) -> Any:
    middles = np.array([spread.median for spread in spreads])
    bars = np.array([[spread.median - spread.low, spread.high - spread.median] for spread in spreads]).T
    return ax.errorbar(x, middles, yerr=bars, marker=marker, ms=5, lw=1.5, capsize=2, label=label)[0]


def _stragglers(ax: Any, runs: Sequence[Run], profile: MachineProfile | None, most: int) -> bool:
    """Bars: what is injected × scheme, for the largest number of ranks and size that has injections."""
    hurt = [run for run in runs if run.inject != "none"]
    if ax is None or not hurt:
        return bool(hurt)
    ranks, size = max((run.ranks, (run.s, run.r, run.t)) for run in hurt)
    found = grouped(run for run in runs if (run.ranks, (run.s, run.r, run.t)) == (ranks, size))
    injections = list(dict.fromkeys(point.inject for point in found))
    schemes = list(dict.fromkeys(point.scheme for point in found))
    width = 0.8 / len(schemes)
    for k, scheme in enumerate(schemes):
        own = {point.inject: Spread.of(run.time for run in rows) for point, rows in found.items()
               if point.scheme == scheme}  # fmt: skip
        heights = [own[name].median if name in own else math.nan for name in injections]
        ax.bar(np.arange(len(injections)) - 0.4 + width * (k + 0.5), heights, width, label=f"{scheme}: measured")
    ax.set_xticks(np.arange(len(injections)), injections, fontsize=8)
    _axes(ax, f"stragglers, {ranks} ranks, {'x'.join(map(str, size))}", "injected", "time to C (s)")
    return True


def _shares(ax: Any, runs: Sequence[Run], profile: MachineProfile | None, most: int) -> bool:
    """Where the master's time goes, stacked, one bar a point; the master's load above it."""
    found = list(grouped(run for run in runs if run.ranks > 1).items())[-12:]
    if ax is None or not found:
        return bool(found)
    bottom = np.zeros(len(found))
    for phase in PHASES:
        shares = np.array([Spread.of(getattr(run, phase) / run.time for run in own).median for _, own in found])
        ax.bar(np.arange(len(found)), shares, 0.7, bottom=bottom, label=phase)
        bottom += shares
    load = [Spread.of(run.load for run in own).median for _, own in found]
    ax.plot(np.arange(len(found)), load, ls="", marker="_", ms=14, color="black", label="load of the master")
    names = [f"{point.scheme}\n{point.workers} workers\n{point.s}\n{point.inject}" for point, _ in found]
    ax.set_xticks(np.arange(len(found)), names, fontsize=5)
    _axes(ax, "the master's time (measured)", "", "share of the time to C")
    return True


def _axes(ax: Any, title: str, x: str, y: str) -> None:
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(fontsize=6)
