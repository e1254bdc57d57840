"""How long workers take: the models of stragglers, by name.

A model multiplies the time that a task takes on an undisturbed worker. Models are combined with `+`; drawn anew for
every task, or with `@worker` once for every worker and job:

    shifted-exponential:MU   1 + Exp(1) / MU       (Lee et al. and most papers: with @worker)
    pareto:A                 Pareto of least 1 and index A: heavy tail, infinite variance for A <= 2
    bursty:F:SHARE:LENGTH    a worker alternates between full speed and 1/F; SHARE of the time it is slow, in spells of
                             mean LENGTH units
    dead:PROBABILITY         never answers, and nobody is told (frozen)
    lost:PROBABILITY         dies at a random moment of the first unit of time, and the master is told
    trace:FILE               recorded task times, in turn: a job's report, or CSV with columns worker,seconds; worker w
                             replays worker w mod (number recorded), times relative to the median of the file

A unit of time is what the whole product would take on all workers undisturbed (2srt / (W · flop/s)), so that a spell
means the same for every scheme. A worker's draws depend on the seed, the worker and the number of the task it is at,
never on the scheme: schemes are compared on the same stragglers.
"""

from __future__ import annotations

import csv
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cmm.core.errors import DataError, InputMissingError, UsageError
from cmm.core.rng import generator

SYNTAX = "shifted-exponential:MU, pareto:A, bursty:F:SHARE:LENGTH, dead:PROBABILITY, lost:PROBABILITY or trace:FILE"


class Behaviour:
    """One worker under one model. Asked for tasks in order."""

    dies: float = math.inf  # when it stops, in seconds
    announced = False  # whether the master is told

    def factor(self) -> float:
        """By how much the next task takes longer."""
        return 1.0

    def finish(self, start: float, work: float) -> float:
        """When `work` seconds of full speed are done, begun at `start`."""
        return start + work


class _Drawn(Behaviour):
    def __init__(self, draw: Callable[[], float], once: bool) -> None:
        self._draw, self._fixed = draw, draw() if once else None

    def factor(self) -> float:
        return self._draw() if self._fixed is None else self._fixed


class _Bursty(Behaviour):
    """Alternating spells of exponential length; begins in the stationary state."""

    def __init__(self, rng: np.random.Generator, slow: float, share: float, length: float) -> None:
        self._rng, self._slow = rng, slow
        self._means = (length * (1 - share) / share, length)
        state = bool(rng.random() < share)
        self._states: list[bool] = [state]
        self._ends = [float(rng.exponential(self._means[state]))]

    def finish(self, start: float, work: float) -> float:
        spell = self._spell(start)
        time = start
        while True:
            speed = 1 / self._slow if self._states[spell] else 1.0
            there = (self._ends[spell] - time) * speed
            if there >= work:
                return time + work / speed
            work -= there
            time = self._ends[spell]
            spell += 1
            self._extend(spell)

    def _spell(self, time: float) -> int:
        while self._ends[-1] <= time:
            self._extend(len(self._ends))
        return int(np.searchsorted(self._ends, time, side="right"))

    def _extend(self, spell: int) -> None:
        if spell == len(self._ends):
            state = not self._states[-1]
            self._states.append(state)
            self._ends.append(self._ends[-1] + float(self._rng.exponential(self._means[state])))


class _Mortal(Behaviour):
    def __init__(self, dies: float, announced: bool) -> None:
        self.dies, self.announced = dies, announced


class _Replayed(Behaviour):
    def __init__(self, factors: Sequence[float]) -> None:
        self._factors, self._next = factors, 0

    def factor(self) -> float:
        value = self._factors[self._next % len(self._factors)]
        self._next += 1
        return value


@dataclass(frozen=True)
class Model(ABC):
    """A straggler model; makes one Behaviour a worker. `once`: drawn once a worker."""

    text: str
    once: bool

    @abstractmethod
    def behaviour(self, rng: np.random.Generator, worker: int, unit: float) -> Behaviour:
        """Of worker `worker`; `unit`: seconds."""


@dataclass(frozen=True)
class ShiftedExponential(Model):
    """Factor 1 + Exp(1) / mu."""

    mu: float

    def behaviour(self, rng: np.random.Generator, worker: int, unit: float) -> Behaviour:
        return _Drawn(lambda: 1.0 + float(rng.exponential()) / self.mu, self.once)


@dataclass(frozen=True)
class Pareto(Model):
    """Factor U^(-1/a)."""

    a: float

    def behaviour(self, rng: np.random.Generator, worker: int, unit: float) -> Behaviour:
        return _Drawn(lambda: float((1.0 - rng.random()) ** (-1.0 / self.a)), self.once)


@dataclass(frozen=True)
class Bursty(Model):
    """Full speed and 1/factor in spells."""

    slow: float
    share: float
    length: float

    def behaviour(self, rng: np.random.Generator, worker: int, unit: float) -> Behaviour:
        return _Bursty(rng, self.slow, self.share, self.length * unit)


@dataclass(frozen=True)
class Mortal(Model):
    """Silent from the start, or dying (announced) within the first unit."""

    probability: float
    announced: bool

    def behaviour(self, rng: np.random.Generator, worker: int, unit: float) -> Behaviour:
        hit, when = rng.random() < self.probability, float(rng.random()) * unit
        return _Mortal((when if self.announced else 0.0) if hit else math.inf, self.announced)


@dataclass(frozen=True)
class Trace(Model):
    """Recorded times by worker, relative to their median."""

    factors: tuple[tuple[float, ...], ...]

    def behaviour(self, rng: np.random.Generator, worker: int, unit: float) -> Behaviour:
        return _Replayed(self.factors[(worker - 1) % len(self.factors)])


def parse_models(text: str) -> tuple[Model, ...]:
    """Read models joined by `+`; `none` is no straggler at all. Raises UsageError, InputMissingError, DataError."""
    return () if text.strip() == "none" else tuple(_parse(part.strip()) for part in text.split("+"))


def _parse(text: str) -> Model:
    body, at, scope = text.partition("@")
    kind, _, rest = body.partition(":")
    if at and (scope != "worker" or kind not in ("shifted-exponential", "pareto")):
        _refuse(text, "@worker belongs to shifted-exponential and pareto")
    if kind == "trace":
        return Trace(text, False, read_trace(rest))
    try:
        values = [float(part) for part in rest.split(":")]
    except ValueError:
        values = []
    counts = {"shifted-exponential": 1, "pareto": 1, "bursty": 3, "dead": 1, "lost": 1}
    if counts.get(kind) != len(values):
        _refuse(text, f"must be {SYNTAX}")
    if not np.isfinite(values).all():
        _refuse(text, "needs finite numbers")
    return _make(text, kind, values, bool(at))


def _make(text: str, kind: str, values: list[float], once: bool) -> Model:
    first = values[0]
    if kind in ("shifted-exponential", "pareto"):
        if first <= 0:
            _refuse(text, "needs a positive number")
        return ShiftedExponential(text, once, first) if kind == "shifted-exponential" else Pareto(text, once, first)
    if kind == "bursty":
        if first < 1 or not 0 < values[1] < 1 or values[2] <= 0:
            _refuse(text, "needs F >= 1, SHARE between 0 and 1 and LENGTH > 0")
        return Bursty(text, False, first, values[1], values[2])
    if not 0 <= first <= 1:
        _refuse(text, "needs a PROBABILITY from 0 to 1")
    return Mortal(text, True, first, kind == "lost")


def _refuse(text: str, rule: str) -> None:
    raise UsageError("--model", rule, repr(text), "For example shifted-exponential:1@worker or pareto:1.5+dead:0.02.")


def read_trace(path: str) -> tuple[tuple[float, ...], ...]:
    """Task times by worker, relative to the median of all. Raises InputMissingError, DataError."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise InputMissingError("--model trace", "cannot be read", path, str(error)) from error
    except UnicodeDecodeError as error:
        raise DataError("--model trace", "must be text", path, f"{error}.") from error
    times: dict[str, list[float]] = {}
    try:
        if text.lstrip().startswith("{"):
            for worker in json.loads(text)["workers"]:
                times[str(worker["rank"])] = [float(seconds) for seconds in worker["task_seconds"]]
        else:
            for row in csv.DictReader(text.splitlines()):
                times.setdefault(row["worker"], []).append(float(row["seconds"]))
        times = {worker: own for worker, own in times.items() if own}
        if not times:
            raise ValueError("it holds no times")
        values = np.concatenate([np.array(own) for own in times.values()])
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError("times must be positive and finite")
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError("--model trace", "must be a report, or CSV with columns worker,seconds", path,
                        f"{why[:200]}.") from error  # fmt: skip
    median = float(np.median(values))
    return tuple(tuple(seconds / median for seconds in own) for own in times.values())


class Population:
    """W workers under some models.

    Parameters
    ----------
    models : all of them act on every worker
    workers : W
    seed : of all draws
    unit : seconds of the whole product on all workers undisturbed
    """

    def __init__(self, models: Sequence[Model], workers: int, seed: int, unit: float) -> None:
        self._behaviours = {w: [model.behaviour(generator(seed, "worker", w, k), w, unit)
                                for k, model in enumerate(models)] for w in range(1, workers + 1)}  # fmt: skip
        self._moving = any(isinstance(model, Bursty) for model in models)

    def finish(self, worker: int, start: float, seconds: float) -> float:
        """When a task of `seconds` undisturbed is done, begun at `start`; inf when never."""
        behaviours = self._behaviours[worker]
        work = seconds * math.prod(b.factor() for b in behaviours)
        end = start + work
        if self._moving:
            end = max(b.finish(start, work) for b in behaviours)
        return end if end < min((b.dies for b in behaviours), default=math.inf) else math.inf

    def deaths(self) -> dict[int, float]:
        """Worker -> when the master learns that it died."""
        return {w: b.dies for w, own in self._behaviours.items() for b in own if b.announced and b.dies < math.inf}
