"""A small discrete-event driver for the coordinator: model workers, no MPI, no data.

Workers take their tasks one after another; a model says how long each takes, or that it never ends. The driver checks
what must hold whatever happens: no instruction to a worker without room, no task sent ahead except fixed ones, no
answer after the end, and an end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from cmm.engine.coordinator import Coordinator, Status
from cmm.engine.events import (
    Accepted,
    Compute,
    Computed,
    Event,
    Fail,
    Finish,
    Instruction,
    Joined,
    Kind,
    Lost,
    Rejected,
    Retire,
    Send,
    Tick,
)

Model = Callable[[np.random.Generator, float], float]  # (rng, now) -> seconds of the next task; inf: never


def fixed(seconds: float) -> Model:
    return lambda rng, now: seconds


def jittered(seconds: float, spread: float = 0.2) -> Model:
    """Log-normal around `seconds`: what a shared node does."""
    return lambda rng, now: seconds * float(np.exp(spread * rng.standard_normal()))


def exponential(seconds: float, mean: float) -> Model:
    return lambda rng, now: seconds + float(rng.exponential(mean))


def frozen_at(time: float, model: Model) -> Model:
    """Answers as `model` until `time`, then never again."""

    def seconds(rng: np.random.Generator, now: float) -> float:
        needed = model(rng, now)
        return needed if now + needed <= time else math.inf

    return seconds


FROZEN: Model = lambda rng, now: math.inf  # noqa: E731


@dataclass
class Result:
    """How a run ended, and when things happened."""

    end: float
    last: Instruction
    sends: list[tuple[float, Send]] = field(default_factory=list)
    computes: list[tuple[float, Compute]] = field(default_factory=list)
    retired: list[int] = field(default_factory=list)
    statuses: dict[int, Status] = field(default_factory=dict)

    def count(self, kind: Kind) -> int:
        return sum(send.kind is kind for _, send in self.sends)

    @property
    def dry(self) -> float:
        """When the last fixed task went out."""
        return max((time for time, send in self.sends if send.kind is Kind.FIXED), default=0.0)


class Driver:
    """Runs one coordinator against model workers.

    Parameters
    ----------
    models : worker -> model
    deaths : worker -> when it dies
    corrupt : worker -> probability that a result is rejected
    absent : workers that never join
    local : seconds of one task on the master
    tick : seconds between ticks; None: only when the coordinator's `next_tick` says so
    """

    def __init__(self, coordinator: Coordinator, models: Mapping[int, Model], *, seed: int = 0,
                 deaths: Mapping[int, float] | None = None, corrupt: Mapping[int, float] | None = None,
                 absent: frozenset[int] = frozenset(), local: float = 0.5,
                 tick: float | None = 0.02) -> None:  # fmt: skip
        self.coordinator, self.models, self.local, self.tick = coordinator, models, local, tick
        self.rng = np.random.default_rng(seed)
        self.corrupt, self.absent = corrupt or {}, absent
        self.queue: list[tuple[float, int, Event]] = []
        self.order = 0
        self.held: dict[int, list[int]] = {w: [] for w in models}
        self.busy: set[int] = set()
        self.dead: set[int] = set()
        self.retired: set[int] = set()
        for worker, time in (deaths or {}).items():
            assert time > 0, "workers join at time 0"
            self._push(time, Lost(worker, time, "killed"))
        self.result = Result(0.0, Fail(None, ""))  # type: ignore[arg-type]

    def run(self, limit: float = 1e4) -> Result:
        """To the end; fails when simulated time exceeds the limit."""
        for worker in self.models:
            if worker not in self.absent:
                self._push(0.0, Joined(worker, 0.0))
        self._push(0.0, Tick(0.0))
        while self.queue:
            now, _, event = heapq.heappop(self.queue)
            assert now < limit, f"no end after {limit} s: {self.coordinator.outstanding()}"
            if self._obsolete(event):
                self._next_tick(now, event)
                continue
            self._before(event)
            if self._follow(now, self.coordinator.handle(event)):
                self._after_the_end(now)
                return self.result
            self._start_all(now)
            self._next_tick(now, event)
        raise AssertionError("nothing happens any more, and the job has not ended")

    # ---- private -----------------------------------------------------------------------------------------------

    def _push(self, time: float, event: Event) -> None:
        self.order += 1
        heapq.heappush(self.queue, (time, self.order, event))

    def _obsolete(self, event: Event) -> bool:
        return isinstance(event, Accepted | Rejected) and event.worker in self.dead

    def _before(self, event: Event) -> None:
        match event:
            case Accepted() | Rejected():
                assert self.held[event.worker].pop(0) == event.task
                self.busy.discard(event.worker)
            case Lost():
                self.dead.add(event.worker)

    def _follow(self, now: float, instructions: list[Instruction]) -> bool:
        for instruction in instructions:
            self.result.end, self.result.last = now, instruction
            match instruction:
                case Send():
                    self._check_send(instruction)
                    self.result.sends.append((now, instruction))
                    self.held[instruction.worker].append(instruction.assignment.task)
                case Compute():
                    self.result.computes.append((now, instruction))
                    done = now + self.local
                    self._push(done, Computed(instruction.assignment.task, done))
                case Retire():
                    self.retired.add(instruction.worker)
                    self.result.retired.append(instruction.worker)
                case Finish() | Fail():
                    assert instruction is instructions[-1]
                    return True
        return False

    def _check_send(self, send: Send) -> None:
        worker = send.worker
        assert worker not in self.dead | self.retired | self.absent
        assert len(self.held[worker]) < self.coordinator.policy.window, "no room"
        assert send.kind is Kind.FIXED or not self.held[worker], "repairs and copies are never sent ahead"
        assert send.assignment.task not in self.held[worker]

    def _start_all(self, now: float) -> None:
        for worker, tasks in self.held.items():
            if tasks and worker not in self.busy and worker not in self.dead:
                self.busy.add(worker)
                seconds = self.models[worker](self.rng, now)
                if seconds < math.inf:
                    wrong = self.rng.random() < self.corrupt.get(worker, 0.0)
                    kind = Rejected if wrong else Accepted
                    self._push(now + seconds, kind(worker, tasks[0], now + seconds))

    def _next_tick(self, now: float, event: Event) -> None:
        if self.tick is not None:
            if isinstance(event, Tick):
                self._push(now + self.tick, Tick(now + self.tick))
            return
        time = self.coordinator.next_tick()
        if time is not None:
            assert time > now or not isinstance(event, Tick), "a tick that leads to nothing"
            if not self.queue or self.queue[0][0] >= time:
                self._push(time, Tick(time))

    def _after_the_end(self, now: float) -> None:
        """Late results, deaths and ticks must not disturb a job that has ended."""
        assert self.coordinator.outcome is not None
        self.result.statuses = self.coordinator.statuses()
        assert self.coordinator.handle(Tick(now + 1)) == []
        for worker, tasks in self.held.items():
            for task in tasks:
                assert self.coordinator.handle(Accepted(worker, task, now + 2)) == []
        assert self.coordinator.handle(Lost(1, now + 3)) == []
