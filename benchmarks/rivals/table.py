"""The table: a block for every scenario, a line for every system."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.rivals.harness import Result
from benchmarks.rivals.scenarios import SCENARIOS
from benchmarks.rivals.systems import SYSTEMS
from cmm.bench.statistics import Spread
from cmm.simulate.tables import markdown


def rivals_table(rows: Sequence[Result]) -> str:
    """Medians of the runs, each with its quartiles; a run that never had a C, or never ended, is counted and named."""
    found: dict[str, dict[tuple[str, int], list[Result]]] = {}
    for row in rows:
        found.setdefault(row.scenario, {}).setdefault((row.system, row.K), []).append(row)
    parts = []
    for name in (scenario for scenario in SCENARIOS if scenario in found):
        lines = [line(*key, own) for key, own in sorted(found[name].items(), key=lambda item: order(*item[0]))]
        heading = ("system", "K", "time to C (s)", "time to exit (s)", "right", "knows or holds")
        parts.append(f"**{SCENARIOS[name].text}**\n\n{markdown(heading, lines)}")
    return "\n\n".join(parts)


def order(system: str, blocks: int) -> tuple[int, int]:
    """As in the list of systems."""
    return list(SYSTEMS).index(system), blocks


def line(system: str, blocks: int, own: Sequence[Result]) -> tuple[str, ...]:
    """Cells of one system under one scenario."""
    right = sum(row.right == "yes" for row in own)
    verdict = "yes" if right == len(own) else f"{right} of {len(own)}: {next(r.right for r in own if r.right != 'yes')}"
    return (system, str(blocks) if blocks else "–", seconds([row.to_c for row in own], "no C"),
            seconds([row.to_exit for row in own], "no end"), verdict, SYSTEMS[system].needs)  # fmt: skip


def seconds(values: Sequence[float], missing: str) -> str:
    """Median [quartiles]; how often there was none."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return missing
    spread = Spread.of(known)
    text = f"{spread.median:.2f} [{spread.low:.2f} … {spread.high:.2f}]"
    return text + (f", {len(values) - len(known)} × {missing}" if len(known) < len(values) else "")
