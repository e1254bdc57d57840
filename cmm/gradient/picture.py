"""`--plot`: the loss over the iterations, and what every evaluation took. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from cmm.core.errors import UsageError
from cmm.gradient.report import GradientRecord
from cmm.matrices.files import write_atomic


def check_plotting() -> None:
    """Raise UsageError when matplotlib is not installed: asked before the job runs, not after."""
    if find_spec("matplotlib") is None:
        raise UsageError("--plot", "needs matplotlib, which is not installed", "no matplotlib",
                         "Install it (pip install 'cmm[plot]') or leave --plot out.")  # fmt: skip


def draw(record: GradientRecord, path: str) -> None:
    """Draw loss, gradient and seconds into `path` (.png, .pdf or .svg). Raises UsageError or OutputError."""
    check_plotting()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _descent(left, record)
    _seconds(right, record)
    content = BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:].lower())
    write_atomic(path, content.getvalue(), argument="--plot")


def _descent(axes: Any, record: GradientRecord) -> None:
    losses = [(at, loss) for at, loss, _, _ in record.curve if loss is not None]
    if losses:
        axes.plot(*zip(*losses, strict=True), color="#4477aa", label="loss")
        axes.set_ylabel("loss")
    other = axes.twinx()
    norms = [(at, norm) for at, _, norm, _ in record.curve if norm]
    if norms:
        other.semilogy(*zip(*norms, strict=True), color="#ee6677", linewidth=0.8)
        other.set_ylabel("largest element of the gradient", color="#ee6677")
    axes.set_xlabel("iteration")
    axes.set_title(f"{record.data.get('loss', '')}, {record.job.get('optimiser', '')}")


def _seconds(axes: Any, record: GradientRecord) -> None:
    entries = record.evaluations
    labels = sorted({entry["decoded"] or "none" for entry in entries})
    for label in labels[:8]:
        chosen = [entry for entry in entries if (entry["decoded"] or "none") == label]
        axes.plot([entry["number"] for entry in chosen], [entry["seconds"] for entry in chosen], ".", label=label)
    axes.set_xlabel("evaluation")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    if labels:
        axes.legend(fontsize="small")
    axes.set_title("seconds per evaluation, by what was decoded")
