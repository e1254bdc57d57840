"""Monte Carlo: does the first N of what arrives decode, how accurately, and what is the smallest such N?

    from cmm.simulate.recovery import run
    run(Experiment("recovery", CodeSpec("rkrp", "4x4", 24), Arrival("uniform"), results=16), trials=100)

Failures are recorded by kind, never raised: a sweep goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cmm.codes.base import Code
from cmm.core.errors import CmmError, FailureKind, Refusal
from cmm.core.task import IntArray
from cmm.linalg.plan import DecodingError, Plan
from cmm.simulate.experiment import Experiment
from cmm.simulate.received import ScalarProblem, make_decoder, make_peeler
from cmm.simulate.statistics import Stats, error_bin


@dataclass(frozen=True)
class Trial:
    """One outcome. `failure`: None when it decoded; `results`: the smallest decodable N (threshold only)."""

    failure: FailureKind | None = None
    error: float | None = None
    inactivations: int = 0
    operations: int = 0
    results: int | None = None

    def to_stats(self, seconds: float) -> Stats:
        """Of this single trial."""
        failed = self.failure is not None
        return Stats(
            trials=1, failures=int(failed), kinds={self.failure.value: 1} if self.failure else {},
            errors={} if self.error is None else {error_bin(self.error): 1}, error_max=self.error or 0.0,
            thresholds={} if self.results is None else {self.results: 1}, inactivations=self.inactivations,
            inactivations_max=self.inactivations, operations=self.operations, seconds=seconds,
        )  # fmt: skip


def run_trial(experiment: Experiment, number: int) -> Trial:
    """Trial `number` of an experiment. Raises Refusal for one that cannot be built."""
    code, rng = experiment.trial(number)
    order = experiment.arrival.order(code, rng)
    peeling = experiment.decoder.startswith("peeling")
    if experiment.kind == "threshold":
        if not peeling:
            return _threshold(experiment, code, order, rng)
        least = make_peeler(code, order, experiment.decoder).threshold()
        return Trial(FailureKind.INCOMPLETE) if least is None else Trial(results=least)
    results = experiment.results or 0
    if len(order) < results:
        return Trial(FailureKind.INCOMPLETE)
    if peeling:
        decodes = make_peeler(code, order[:results], experiment.decoder).decodes(results)
        return Trial(None if decodes else FailureKind.INCOMPLETE)
    return _decode(experiment, code, order[:results], rng)


def run(experiment: Experiment, trials: int, first: int = 0, stop: Callable[[], bool] | None = None) -> Stats:
    """Trials `first` … `first + trials - 1`, added up; fewer when `stop` says so."""
    total = Stats()
    for number in range(first, first + trials):
        if stop is not None and stop():
            break
        start = time.perf_counter()
        trial = run_trial(experiment, number)
        total = total + trial.to_stats(time.perf_counter() - start)
    return total


def _decode(experiment: Experiment, code: Code, tasks: IntArray, rng: np.random.Generator) -> Trial:
    decoder = make_decoder(code, experiment.decoder)
    for task in tasks.tolist():
        decoder.add(task, code.rows(code.task(task)))
    try:
        if not decoder.decodable():
            decoder.plan()  # says why
        plan = decoder.plan()
    except DecodingError as failure:
        return Trial(failure.kind)
    return _measured(experiment, code, plan, rng)


def _measured(experiment: Experiment, code: Code, plan: Plan, rng: np.random.Generator,
              results: int | None = None) -> Trial:  # fmt: skip
    error = ScalarProblem(code, rng).relative_error(plan) if experiment.errors else None
    return Trial(None, error, plan.inactivations, plan.block_operations, results)


def _threshold(experiment: Experiment, code: Code, order: IntArray, rng: np.random.Generator) -> Trial:
    """Results one by one, the decoder asked after each (it gates itself)."""
    decoder = make_decoder(code, experiment.decoder)
    for count, task in enumerate(order.tolist(), start=1):
        decoder.add(task, code.rows(code.task(task)))
        if decoder.decodable():
            return _measured(experiment, code, decoder.plan(), rng, count)
    try:
        decoder.plan()
    except DecodingError as failure:
        return Trial(failure.kind)
    return Trial(FailureKind.INCOMPLETE)


def refusal(experiment: Experiment) -> Refusal | None:
    """Why the experiment cannot be run at all; None when it can."""
    try:
        code, rng = experiment.trial(0)
        experiment.arrival.order(code, rng)
        if experiment.decoder.startswith("peeling"):
            make_peeler(code, np.arange(0), experiment.decoder)
    except Refusal as refused:
        return refused
    except CmmError:
        return None
    return None
