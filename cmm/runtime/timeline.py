"""The timeline of a job: who did what when, one row per rank, drawn from the events of its report.

`python -m cmm.runtime.timeline REPORT PICTURE` draws it again later. Needs matplotlib (the extra `plot`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from cmm.core.errors import CmmError, ExitCode, UsageError
from cmm.matrices.files import write_atomic
from cmm.runtime.report import Event, Record, load

TASKS = {"fixed": "#4477aa", "systematic": "#4477aa", "coded": "#66ccee", "repair": "#ee6677", "copy": "#ccbb44",
         "local": "#228833", "unanswered": "#bbbbbb"}  # fmt: skip
LABELS = {"fixed": "task of the code", "systematic": "source block", "coded": "coded task",
          "local": "by the master", "unanswered": "never answered"}  # fmt: skip
MARKS = {"rejected": ("x", "black"), "discarded": (".", "grey"), "straggler": ("v", "#aa3377"), "lost": ("X", "red"),
         "retired": ("s", "black")}  # fmt: skip
PHASES = {"read": "#dddddd", "scale": "#eeeebb", "encode": "#ccddaa", "send": "#cceeff", "compute": "#aaddcc",
          "wait": "#f5f5f5", "decode": "#bbccee", "verify": "#ffcccc", "write": "#ddccee",
          "checkpoint": "#e8d5c4"}  # fmt: skip
MOST_ROWS = 60  # ranks drawn at full height; more of them get thinner rows


def check_plotting() -> None:
    """Raise UsageError when matplotlib is not installed: asked before the job runs, not after."""
    if find_spec("matplotlib") is None:
        raise UsageError("--timeline", "needs matplotlib, which is not installed", "no matplotlib",
                         "Install it (pip install 'cmm[plot]') or leave --timeline out.")  # fmt: skip


def bars(events: Iterable[Event]) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """What lasted, by (kind, rank): its (start, duration) in seconds."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for at, rank, what, _, lasted in events:
        if lasted is not None and what not in MARKS:
            found.setdefault((what, rank), []).append((at - lasted, lasted))
    return found


def draw(record: Record, path: str | os.PathLike[str]) -> None:
    """Draw the timeline of a job into `path` (.png, .pdf or .svg).

    Raises
    ------
    UsageError : matplotlib is not installed
    OutputError : the picture cannot be written
    """
    check_plotting()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranks = sorted({entry.rank for entry in record.workers} | {event[1] for event in record.events} | {0})
    figure = Figure(figsize=(11, 1.8 + 0.3 * min(len(ranks), MOST_ROWS)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = {rank: row for row, rank in enumerate(ranks)}
    _draw_bars(axes, record.events, rows)
    _draw_marks(axes, record.events, rows)
    _label(axes, record, ranks)
    picture = BytesIO()
    figure.savefig(picture, format=os.path.splitext(path)[1][1:].lower(), dpi=150)
    write_atomic(path, picture.getvalue(), argument="--timeline")


def _draw_bars(axes: Any, events: Iterable[Event], rows: dict[int, int]) -> None:
    found = bars(events)
    for kind, colour in (PHASES | TASKS).items():
        mine = {rank: spans for (what, rank), spans in found.items() if what == kind}
        height = 0.6 if kind in TASKS else 0.9
        for rank, spans in mine.items():
            axes.broken_barh(spans, (rows[rank] - height / 2, height), facecolors=colour, edgecolor="white",
                             linewidth=0.3, zorder=2 if kind in TASKS else 1)  # fmt: skip
        if mine:
            axes.plot([], [], color=colour, linewidth=6, label=LABELS.get(kind, kind))


def _draw_marks(axes: Any, events: Iterable[Event], rows: dict[int, int]) -> None:
    found = list(events)
    for what, (marker, colour) in MARKS.items():
        points = [(at, rows[rank]) for at, rank, kind, *_ in found if kind == what]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, linestyle="none", marker=marker, color=colour, label=what, zorder=3)


def _label(axes: Any, record: Record, ranks: Sequence[int]) -> None:
    status = {entry.rank: f" ({entry.status.value})" for entry in record.workers if entry.status.value != "ok"}
    step = -(-len(ranks) // MOST_ROWS)
    axes.set_yticks(range(0, len(ranks), step), [f"rank {rank}{status.get(rank, '')}" if rank else "master"
                                                 for rank in ranks[::step]])  # fmt: skip
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the start")
    axes.set_title(f"{record.code.name} {record.code.grid}, N = {record.decoding.results_used} results for "
                   f"K = {record.code.K} blocks, {record.outcome.value}")  # fmt: skip
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower center", ncols=6, fontsize="small")


def main(argv: Sequence[str]) -> int:
    """Draw the timeline of a report: REPORT PICTURE."""
    try:
        if len(argv) != 2 or os.path.splitext(argv[1])[1].lower() not in (".png", ".pdf", ".svg"):
            raise UsageError("command line", "must be REPORT PICTURE.png", " ".join(argv) or "nothing", "Give both.")
        draw(load(argv[0]), argv[1])
    except CmmError as error:
        print(f"cmm: {error}", file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.COMPLETE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
