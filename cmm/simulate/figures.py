"""Figures of sweeps. Each names code, arrival model and decoder of every curve, and carries its command and seed."""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cmm.core.errors import OutputError, UsageError
from cmm.simulate.experiment import Experiment
from cmm.simulate.statistics import Stats, Store

FORMATS = (".png", ".pdf", ".svg")
MARKERS = "osv^DPX*<>"
BAND_FROM = 50  # trials a point from which its interval is drawn (the table has it in any case)
BELOW = 1e-4  # where a failure rate of 0 is drawn


def recovery_figure(store: Store, experiments: Sequence[Experiment], path: Path, title: str = "", footer: str = "",
                    labels: Mapping[str, str] | None = None, trials: int | None = None,
                    panels: Sequence[str] = ("failure", "error")) -> None:  # fmt: skip
    """Failure probability (with likelihood intervals) and relative error against α.

    labels : experiment key -> name of its curve; default: code, arrival, decoder
    panels : "failure", "error" or both; errors are left out when there are none
    """
    chosen = [panel for panel in panels if panel == "failure" or any(store.total(x).errors for x in experiments)]
    figure, axes = new_figure(path, len(chosen))
    for panel, ax in zip(chosen, axes, strict=True):
        for (name, curve), marker in zip(curves(experiments, labels).items(), itertools.cycle(MARKERS)):
            (_draw_failures if panel == "failure" else _draw_errors)(ax, store, name, curve, marker, trials)
        ax.set_xlabel("straggler fraction α = (P − N) / P")
        ax.set_yscale("log")
        ax.grid(True, alpha=0.3)
        ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    save(figure, path, title, footer)


def curves(experiments: Sequence[Experiment], labels: Mapping[str, str] | None) -> dict[str, list[Experiment]]:
    """Experiments by curve, each sorted by α."""
    found: defaultdict[str, list[Experiment]] = defaultdict(list)
    for x in experiments:
        default = f"{x.code.label}, {x.decoder}; {x.arrival.label}"
        found[(labels or {}).get(x.key, default)].append(x)
    return {name: sorted(curve, key=lambda x: x.alpha or 0.0) for name, curve in found.items()}


def _draw_failures(ax: Any, store: Store, name: str, curve: Sequence[Experiment], marker: str,
                   trials: int | None) -> None:  # fmt: skip
    """Of recovery points, or of one threshold experiment: the share of its trials that need more than N."""
    if curve[0].kind == "threshold":
        alphas, totals = threshold_points(store.total(curve[0], trials), curve[0].code.tasks)
        marker = ""
    else:
        alphas, totals = [x.alpha or 0.0 for x in curve], [store.total(x, trials) for x in curve]
    edges = np.array([s.interval() for s in totals]).T
    line = ax.plot(alphas, [max(s.failure_rate, BELOW) for s in totals], marker=marker, ms=4, lw=1.2, label=name)
    if min(s.trials for s in totals) >= BAND_FROM:
        ax.fill_between(alphas, np.maximum(edges[0], BELOW), np.maximum(edges[1], BELOW), color=line[0].get_color(),
                        alpha=0.15, lw=0)  # fmt: skip
    ax.set_ylim(BELOW * 0.8, 1.3)
    ax.set_ylabel(f"failure probability ({BELOW:g}: none seen; bands: likelihood)")


def threshold_points(stats: Stats, tasks: int) -> tuple[list[float], list[Stats]]:
    """(α, failures among the trials if N = P − αP results came), from a distribution of smallest decodable N."""
    if not stats.thresholds:
        return [0.0], [Stats(stats.trials, stats.trials)]
    needed = np.repeat(list(stats.thresholds), list(stats.thresholds.values()))
    low, high = int(needed.min()) - 20, min(int(needed.max()) + 20, tasks)
    points = np.unique(np.linspace(low, high, 60).astype(int))
    return ([1 - n / tasks for n in points.tolist()],
            [Stats(stats.trials, stats.failures + int(np.sum(needed > n))) for n in points.tolist()])  # fmt: skip


def _draw_errors(ax: Any, store: Store, name: str, curve: Sequence[Experiment], marker: str,
                 trials: int | None) -> None:  # fmt: skip
    pairs = [(x.alpha or 0.0, store.total(x, trials)) for x in curve]
    seen = [(alpha, s) for alpha, s in pairs if s.errors]
    if not seen:
        return
    alphas = [alpha for alpha, _ in seen]
    line = ax.plot(alphas, [s.error_median for _, s in seen], marker=marker, ms=4, lw=1.2, label=f"{name}: median")
    worst = [s.error_max if math.isfinite(s.error_max) else math.nan for _, s in seen]
    ax.plot(alphas, worst, ls=":", lw=1, color=line[0].get_color())
    ax.set_ylabel("relative error ‖C − Ĉ‖ / ‖C‖ (dotted: largest)")


def threshold_figure(store: Store, experiments: Sequence[Experiment], path: Path, title: str = "", footer: str = "",
                     labels: Mapping[str, str] | None = None, trials: int | None = None) -> None:  # fmt: skip
    """Share of trials that do not decode from N results, against N."""
    figure, (ax,) = new_figure(path, 1)
    for x in experiments:
        s = store.total(x, trials)
        if not s.thresholds:
            continue
        results = np.array(list(s.thresholds), dtype=float)
        share = 1 - np.cumsum(list(s.thresholds.values())) / s.trials
        name = (labels or {}).get(x.key, f"{x.code.label}, {x.decoder}; {x.arrival.label}")
        ax.step(np.append(results[0], results), np.append(1.0, share), where="post", label=name)
    ax.set_xlabel("results N")
    ax.set_ylabel("share of trials that need more than N")
    ax.set_yscale("log")
    ax.grid(True, alpha=0.3)
    ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    save(figure, path, title, footer)


def bar_figure(groups: Mapping[str, Mapping[str, float]], path: Path, label: str, title: str = "",
               footer: str = "") -> None:  # fmt: skip
    """Horizontal bars: group -> bar -> length (missing: left out), logarithmic, shortest mean on top."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))

    def mean(name: str) -> float:
        found = [math.log(bars[name]) for bars in groups.values() if name in bars]
        return sum(found) / len(found) + 100.0 * (len(groups) - len(found))

    names.sort(key=mean, reverse=True)
    figure, (ax,) = new_figure(path, 1, height=1.5 + 0.06 * len(names) * (len(groups) + 1))
    width = 0.8 / max(len(groups), 1)
    for k, (group, bars) in enumerate(groups.items()):
        lengths = [bars.get(name, math.nan) for name in names]
        ax.barh(np.arange(len(names)) + 0.4 - width * (k + 0.5), lengths, width, label=group)
    ax.set_yticks(np.arange(len(names)), names, fontsize=7)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.set_xscale("log")
    ax.set_xlabel(label)
    ax.grid(True, axis="x", which="both", alpha=0.3)
    ax.legend(fontsize=7)
    save(figure, path, title, footer)


def check_path(path: Path | None, flag: str = "--figure") -> None:
    """To be called before a long run. Raises UsageError for a format that is not known or without Matplotlib,
    OutputError for a file that cannot be written."""
    if path is None:
        return
    if path.suffix.lower() not in FORMATS:
        raise UsageError(flag, f"must end in {', '.join(FORMATS)}", str(path), "Use for example figure.png.")
    if find_spec("matplotlib") is None:
        raise UsageError(flag, "needs Matplotlib", str(path), "Install it: pip install 'cmm[plot]'.")
    if not path.parent.is_dir():
        raise OutputError(flag, "must be in a folder that exists", str(path), f"Make {path.parent} first.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(flag, "must be a file that can be written", str(path), "Choose another name.")


def new_figure(path: Path, panels: int, height: float = 5.4, columns: int | None = None) -> tuple[Any, list[Any]]:
    """(figure, axes) without a display, `columns` panels (default: all) in a row of `height` inches.

    Raises UsageError for a format that is not known, or without Matplotlib.
    """
    check_path(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--figure", "needs Matplotlib", str(path), "Install it: pip install 'cmm[plot]'.") from None
    across = min(panels, columns or panels)
    down = -(-panels // across)
    figure = Figure(figsize=(7.2 * across, height * down), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(down, across, k + 1) for k in range(panels)]


def save(figure: Any, path: Path, title: str, footer: str) -> None:
    """Write the figure; `footer` (command and seed) goes below it. Raises OutputError."""
    if title:
        figure.suptitle(title, fontsize=10)
    if footer:
        figure.supxlabel(footer, fontsize=6, color="0.35")
    metadata = {"Software": None} if path.suffix.lower() == ".png" else None  # equal data, equal file
    try:
        figure.savefig(path, dpi=130, metadata=metadata)
    except OSError as error:
        raise OutputError("--figure", "cannot be written", str(path), str(error)) from error
