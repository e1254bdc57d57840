"""Tables as text (Markdown) and what stands in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cmm.simulate.experiment import Experiment
from cmm.simulate.statistics import Stats, Store


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, columns padded so that it reads as plain text too."""
    cells = [list(heading), *(list(row) for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(heading))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
             for row in cells]  # fmt: skip
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def number(value: float, digits: int = 3) -> str:
    """A number to so many digits; – for nan, ∞ for inf."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.{digits}g}"


def failure(stats: Stats) -> str:
    """Failures of trials and the likelihood interval."""
    low, high = stats.interval()
    return f"{stats.failures} of {stats.trials} ({low:.2g} … {high:.2g})"


def recovery_table(store: Store, experiments: Sequence[Experiment], trials: int | None = None) -> str:
    """One line an experiment of kind recovery."""
    heading = ("code", "grid", "P", "arrival", "decoder", "N", "α", "failed (likelihood interval)", "kinds",
               "error, median", "max", "inactive, mean (most)", "block operations")  # fmt: skip
    rows = []
    for x in experiments:
        s = store.total(x, trials)
        kinds = ", ".join(f"{name} {count}" for name, count in s.kinds.items())
        inactive = f"{number(s.inactivations_mean)} ({s.inactivations_max})" if s.inactivations_max else "–"
        rows.append((x.code.label, x.code.grid, str(x.code.tasks), x.arrival.label, x.decoder, str(x.results),
                     f"{x.alpha:.4g}", failure(s), kinds or "–", number(s.error_median, 2),
                     number(s.error_max if s.errors else math.nan, 2), inactive,
                     number(s.operations_mean if s.operations else math.nan)))  # fmt: skip
    return markdown(heading, rows)


def threshold_table(store: Store, experiments: Sequence[Experiment], trials: int | None = None) -> str:
    """One line an experiment of kind threshold: quantiles of the smallest decodable N."""
    heading = ("code", "grid", "P", "arrival", "decoder", "trials", "never", "N median", "90 %", "99 %", "99.9 %",
               "most", "median / K", "error, median", "max")  # fmt: skip
    rows = []
    for x in experiments:
        s = store.total(x, trials)
        blocks = x.code.blocks
        quantiles = [s.threshold_quantile(q) if s.trials * (1 - q) >= 1 else math.nan for q in (0.5, 0.9, 0.99, 0.999)]
        rows.append((x.code.label, x.code.grid, str(x.code.tasks), x.arrival.label, x.decoder, str(s.trials),
                     str(s.failures), *(number(q, 6) for q in quantiles),
                     number(float(max(s.thresholds, default=0)), 6), number(quantiles[0] / blocks, 4),
                     number(s.error_median, 2), number(s.error_max if s.errors else math.nan, 2)))  # fmt: skip
    return markdown(heading, rows)
