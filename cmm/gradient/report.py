"""The report of a gradient job: that of a matrix job, with what happened in every evaluation and the loss curve.

`python -m cmm.report` reads it too (it shows what both kinds of job have in common).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cmm.core.errors import Outcome
from cmm.core.task import Array
from cmm.gradient.rounds import Round
from cmm.runtime.report import Record, summary_lines


@dataclass
class GradientRecord(Record):
    """Fields beyond `Record`:

    data : rows, features, loss, size of theta, bytes of the largest worker
    encoding : code, workers n, stragglers s, parts k, total_load, largest_load, imbalance d_s(B), loads, speeds
    evaluations : one entry a round: number, iteration, seconds, answers [[rank, seconds, seconds of work]], waited_for,
        decoded, stale, absent, loss
    curve : [iteration, loss (None where there is none), largest element of the gradient, seconds since the start]
    stopped : why the descent stopped
    """

    subject: str = "theta"
    data: dict[str, Any] = field(default_factory=dict)
    encoding: dict[str, Any] = field(default_factory=dict)
    iterations: int = 0
    resumed_at: int = 0
    checkpoints: int = 0
    stopped: str = ""
    loss: float | None = None
    gradient_norm: float | None = None
    fewest_answers: int | None = None
    beyond_promise: int = 0  # evaluations decoded although more than s workers had not answered
    stale_answers: int = 0
    curve: list[list[Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, entry: Round, iteration: int, work: dict[int, float], loss: float | None, promised: int) -> None:
        """A round that has ended. work: seconds that each worker computed; promised: n - s."""
        count = len(entry.answers)
        self.fewest_answers = count if self.fewest_answers is None else min(self.fewest_answers, count)
        self.beyond_promise += count < promised
        self.stale_answers += entry.stale
        self.evaluations.append({
            "number": entry.number, "iteration": iteration, "seconds": round(entry.seconds, 6),
            "answers": [[rank, round(at, 6), round(work.get(rank, 0.0), 6)] for rank, at in entry.answers],
            "waited_for": entry.waited_for, "decoded": entry.combination.label if entry.combination else None,
            "stale": entry.stale, "absent": list(entry.absent), "loss": loss,
        })  # fmt: skip

    def lines(self) -> list[str]:
        """The summary for stdout; the last line says that theta is complete, or why there is none."""
        common = summary_lines(self)
        own = [line for line in (self._data_line(), self._code_line(), self._descent_line()) if line]
        return [*own, *common]

    def _data_line(self) -> str:
        d = self.data
        return f"data     {d['rows']} x {d['features']}, loss {d['loss']}, theta {d['theta']}" if d else ""

    def _code_line(self) -> str:
        e = self.encoding
        if not e:
            return ""
        text = f"coding   {e['code']}: {e['parts']} parts on {e['workers']} workers, {e['stragglers']} may straggle"
        if self.fewest_answers is not None:
            text += f"; decoded from {self.fewest_answers} answers or more"
        if self.beyond_promise:
            text += (f", {self.beyond_promise} of {len(self.evaluations)} times before the "
                     f"{e['workers'] - e['stragglers']} that the code promises")  # fmt: skip
        return text

    def _descent_line(self) -> str:
        if not self.evaluations:
            return ""
        seconds = sorted(entry["seconds"] for entry in self.evaluations)
        loss = "" if self.loss is None else f", loss {self.loss:.9g}"
        norm = "" if self.gradient_norm is None else f", gradient {self.gradient_norm:.2g}"
        return (f"descent  {self.iterations} iterations, {len(self.evaluations)} evaluations of "
                f"{seconds[len(seconds) // 2]:.3g} s (median){loss}{norm}; "
                f"{self.stopped or self.outcome.value}")  # fmt: skip

    @property
    def complete(self) -> bool:
        return self.outcome is Outcome.COMPLETE


def describe_theta(theta: Array) -> str:
    return " x ".join(map(str, theta.shape)) or "a number"
