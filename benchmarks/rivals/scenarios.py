"""What happens to the workers, the same for every system: held, slowed, woken and killed from outside, by signals.

A worker that is hit stops itself when it begins its work (cmm.run: --inject freeze:RANKS; the rivals' programs:
--stop). From then on a thread here decides: it sees the stopped process in /proc and acts on its pid. So no system is
hit earlier than another, and none has to contain anything but that first stop.

- slow: runs for a fifth of every tenth of a second and is stopped for the rest of it: five times slower
- exponential: every worker alternately runs and is stopped, for exponential times of the same mean; the times depend on
  the seed and the worker only. Task times of a monolithic product cannot be drawn one by one, this can be done to any
- frozen: stopped for good, or woken after some seconds
- killed: SIGKILL
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cmm.bench.processes import state_of

LOOK = 0.002  # seconds between looks at /proc
PERIOD = 0.1  # of a slow worker: long against a scheduler's slice, short against a product
MEAN = 0.25  # seconds of a spell


@dataclass(frozen=True)
class Scenario:
    """One kind of trouble.

    Attributes
    ----------
    hit : number of workers that are hit; all of them if -1
    spells : (seconds stopped, seconds running) in turn, for worker w and a seed; a worker that is stopped for inf stays
        so; None: killed
    """

    name: str
    text: str
    hit: int
    spells: Callable[[int, int], Iterator[tuple[float, float]]] | None

    def victims(self, workers: int) -> int:
        return workers if self.hit < 0 else min(self.hit, workers)


def _slow(factor: float) -> Callable[[int, int], Iterator[tuple[float, float]]]:
    def spells(worker: int, seed: int) -> Iterator[tuple[float, float]]:
        while True:
            yield PERIOD * (1 - 1 / factor), PERIOD / factor

    return spells


def _frozen(seconds: float) -> Callable[[int, int], Iterator[tuple[float, float]]]:
    return lambda worker, seed: iter([(seconds, math.inf)])


def _exponential(worker: int, seed: int) -> Iterator[tuple[float, float]]:
    rng = random.Random(f"{seed} {worker}")
    while True:
        yield rng.expovariate(1 / MEAN), rng.expovariate(1 / MEAN)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("none", "none slow", 0, _frozen(0)),
        Scenario("slow", "one worker 5 times slower", 1, _slow(5)),
        Scenario("frozen", "one worker frozen for 10 s", 1, _frozen(10)),
        Scenario("killed", "one worker killed", 1, None),
        Scenario("exponential", f"every worker runs and stands still for Exp({MEAN} s) in turn", -1, _exponential),
        Scenario("two-frozen", "two workers frozen for good", 2, _frozen(math.inf)),
    )
}


class Trouble(threading.Thread):
    """Does to the workers what the scenario says, until `stop`.

    Parameters
    ----------
    victims : the numbers of the workers that stop themselves
    pids : worker -> pid, of those that are known so far
    """

    def __init__(self, scenario: Scenario, victims: list[int], pids: Callable[[], dict[int, int]], seed: int) -> None:
        super().__init__(daemon=True)
        self.scenario, self.victims, self.pids, self.seed = scenario, set(victims), pids, seed
        self.over = threading.Event()
        self.hit: set[int] = set()

    def run(self) -> None:
        agenda: list[tuple[float, int, Iterator[tuple[float, int]]]] = []  # (when, pid, what comes), one a worker
        coming: dict[int, int] = {}  # pid -> signal that is due
        while not self.over.is_set():
            now = time.monotonic()
            for worker, pid in self._begun():
                self.hit.add(worker)
                actions = self._actions(worker)
                delay, coming[pid] = next(actions)
                heapq.heappush(agenda, (now + delay, pid, actions))
            while agenda and agenda[0][0] <= now:
                when, pid, actions = heapq.heappop(agenda)
                if _send(pid, coming[pid]):
                    delay, coming[pid] = next(actions, (math.inf, signal.SIGCONT))
                    heapq.heappush(agenda, (when + delay, pid, actions))
            self.over.wait(LOOK)

    def _actions(self, worker: int) -> Iterator[tuple[float, int]]:
        """(seconds to wait, signal) from the moment at which the worker has stopped itself."""
        if self.scenario.spells is None:
            yield 0.0, signal.SIGKILL
            return
        for stopped, running in self.scenario.spells(worker, self.seed):
            yield stopped, signal.SIGCONT
            yield running, signal.SIGSTOP

    def _begun(self) -> list[tuple[int, int]]:
        """Victims that have stopped themselves since the last look."""
        if self.hit >= self.victims:
            return []
        known = self.pids()
        return [(w, known[w]) for w in self.victims - self.hit if w in known and state_of(known[w]) == "T"]

    def stop(self) -> None:
        self.over.set()
        self.join()


def _send(pid: int, signum: int) -> bool:
    """Whether the process was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
        return True
    return False
