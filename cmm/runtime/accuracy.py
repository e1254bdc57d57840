"""The accuracy of a plan, before anything is computed: condition and estimated error of likely sets of results.

Decoder, judge and tolerance are those of the job. The results are drawn: those of the workers planned for as
stragglers stay away, what replaces them arrives as the dispatch would send it. The noise is that of random columns; the
job measures its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmm.codes.base import Code
from cmm.codes.defaults import stragglers
from cmm.core.errors import FailureKind
from cmm.core.rng import generator
from cmm.core.task import Assignment
from cmm.engine.ledger import direct_task
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import DecodingError
from cmm.linalg.rehearse import NoiseModel
from cmm.runtime.judge import MAX_EXTRA, TolerancePlanner

SETS = 5
WORK = 4e9  # multiply-adds of dense factorisations that a forecast may take in all: some seconds
MOST_EXTRA = 4 * MAX_EXTRA  # results beyond the first possible moment that are tried: blocks of the master among them
LARGEST = 3000  # blocks solved for by a dense factorisation: beyond, the job alone judges


@dataclass(frozen=True)
class Moment:
    """A set of N results: condition and estimated error of its plan; `trouble`: why there is no plan."""

    results: int
    condition: float = math.inf
    estimate: float = math.inf
    missing: int = 0
    trouble: str = ""

    def __str__(self) -> str:
        if self.trouble:
            return f"N = {self.results}: cannot be decoded ({self.trouble})"
        return f"N = {self.results}: condition {self.condition:.1e}, estimated error {self.estimate:.1e}"


@dataclass(frozen=True)
class Drawn:
    """One set: when results first were enough by number, and when C was within the tolerance (None: never)."""

    first: Moment
    enough: Moment | None


def forecast(code: Code, shape: tuple[int, int, int], dtype: np.dtype[Any], tolerance: float, workers: int,
             seed: int) -> list[Drawn]:  # fmt: skip
    """Likely sets of results; fewer for large codes, none where a dense factorisation would take too long.

    shape : s, r, t; dtype : the working one, real or complex
    """
    missing = _solved_for(code, workers)
    if missing > LARGEST and _dense(code, missing):
        return []
    sets = int(np.clip(WORK / (max(missing, 1) ** 3), 1, SETS))
    return [_drawn(code, shape, dtype, tolerance, workers, generator(seed, "accuracy", k)) for k in range(sets)]


def _solved_for(code: Code, workers: int) -> int:
    """About how many unknowns a decoder will have to solve for."""
    return code.unknowns if not code.systematic else round(code.unknowns * stragglers(workers) / max(workers, 1))


def _dense(code: Code, missing: int) -> bool:
    """Whether coded tasks combine so many unknowns that there is no sparse plan."""
    return any(len(row.indices) > max(64, missing / 4) for row in code.rows(code.task(code.P - 1)))


def _drawn(code: Code, shape: tuple[int, int, int], dtype: np.dtype[Any], tolerance: float, workers: int,
           rng: np.random.Generator) -> Drawn:  # fmt: skip
    real = dtype.kind != "c"
    wire = np.result_type(dtype, np.complex64) if code.complex_coefficients else dtype
    decoder = code.decoder(real_data=real)
    noise = NoiseModel.for_dtype(wire, max(shape[0], 1), 1 / math.sqrt(max(shape[0], 1)), code.grid.p)
    judge = TolerancePlanner(decoder, tolerance, noise, dtype, code.seed)
    first: Moment | None = None
    for assignment in _arrivals(code, decoder, workers, rng):
        decoder.add(assignment.task, code.rows(assignment))
        good = decoder.decodable() and judge.acceptable()
        moment = _moment(code, decoder, judge)
        first = first or moment
        if first is not None and moment is not None and (good or moment.results >= first.results + MOST_EXTRA):
            return Drawn(first, moment if good else None)
    assert first is not None, "all blocks were computed directly"
    return Drawn(first, None)


def _moment(code: Code, decoder: Decoder, judge: TolerancePlanner) -> Moment | None:
    """Of what has arrived; None while it is too little."""
    try:
        plan = decoder.plan()
    except DecodingError as failure:
        threshold = code.recovery_threshold
        enough = threshold.certain and decoder.results >= threshold.results  # but for rounding
        lacking = failure.kind is FailureKind.INCOMPLETE and not enough
        return None if lacking else Moment(decoder.results, missing=decoder.missing, trouble=failure.message)
    estimate = math.inf if judge.estimate is None else judge.estimate
    return Moment(decoder.results, float(plan.condition), estimate, len(plan.missing))


def _arrivals(code: Code, decoder: Decoder, workers: int, rng: np.random.Generator) -> Iterator[Assignment]:
    """Tasks whose results arrive, in order, as long as the caller wants more.

    Blocks first, or in their absence all tasks; then repairs, or spare tasks; under pull what is late, sent again; at
    last blocks that the master computes.
    """
    late, pull = _late(code, workers, rng), code.dispatch == "pull"
    first = rng.permutation(code.systematic or code.P).tolist()
    yield from (code.task(task) for task in first if task not in late)
    if pull and code.repairs:
        for number in range(code.P, code.P + len(late) + MAX_EXTRA):
            if len(outstanding := decoder.outstanding()):
                yield code.repair(outstanding, number)
    else:
        yield from (code.task(task) for task in range(len(first), code.P) if task not in late)
        yield from (code.task(task) for task in sorted(late) if pull)
    number = code.P + len(late) + MAX_EXTRA
    while len(wanted := decoder.wanted()):
        yield direct_task(code, number, int(wanted[0]))
        number += 1


def _late(code: Code, workers: int, rng: np.random.Generator) -> set[int]:
    """Tasks of the workers planned for as stragglers."""
    order = code.order(rng, workers)
    chosen = rng.permutation(workers)[: stragglers(workers)].tolist() if workers > 1 else []
    return {task for w in chosen for task in order[w::workers]}


# ---- in words ------------------------------------------------------------------------------------------------------


def accuracy_lines(code: Code, shape: tuple[int, int, int], dtype: np.dtype[Any], tolerance: float, workers: int,
                   seed: int) -> list[str]:  # fmt: skip
    """What `--dry-run` says of the plan's accuracy."""
    drawn = forecast(code, shape, dtype, tolerance, workers, seed)
    if not drawn:
        return ["accuracy   judged by the job before it decodes: the system is too large to be tried here"]
    if not any(d.first.missing for d in drawn):
        return ["accuracy   blocks are taken as they were computed: nothing is solved for"]
    late = f"{stragglers(workers)} of {workers} workers late" if workers > 1 else "results in random order"
    story = [str(max((d.first for d in drawn), key=lambda m: (m.estimate, m.condition)))]
    never = sum(d.enough is None for d in drawn)
    if never:
        story.append(f"{never} of {len(drawn)} sets stay beyond the tolerance whatever is added: such a job ends with "
                     "exit code 5. Use fewer blocks, or another code")  # fmt: skip
    elif any(d.first != d.enough for d in drawn):
        last = max((d.enough for d in drawn if d.enough), key=lambda m: m.results)
        story.append(f"{last}: the job collects so many, blocks computed by the master among them")
    return [*(f"{'' if k else 'accuracy':11}{line}" for k, line in enumerate(story)),
            f"{'':11}(the worst of {len(drawn)} drawn sets, {late}, random columns; a job may use more results; error "
            f"of C_ij relative to |A_i||B_j|, tolerance {tolerance:.0e})"]  # fmt: skip
