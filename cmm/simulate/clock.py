"""The real coordinator, driven by a discrete clock: a master that does one thing at a time, and workers.

Master: receives results first, then encodes and sends, then computes blocks itself when told to. Each takes the time
that the machine profile says, one after the other; what waits, waits. Worker: tasks in the order sent, one at a time;
its result goes out while the next task begins. Deciding costs nothing here (docs/decoding.md has what it costs).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from cmm.core.grid import Partition
from cmm.core.task import Assignment, Combination
from cmm.engine import events as ev
from cmm.engine.coordinator import Coordinator
from cmm.simulate.profile import MachineProfile
from cmm.simulate.workers import Population


class Work(Enum):
    """What the master does."""

    RECEIVE = "receive"
    SEND = "send"
    COMPUTE = "compute"


@dataclass(slots=True)
class Ledger:
    """Seconds and bytes of the master, and seconds of the workers."""

    seconds: dict[Work, float] = field(default_factory=lambda: dict.fromkeys(Work, 0.0))
    encoding: float = 0.0  # part of SEND
    bytes_sent: int = 0
    bytes_received: int = 0
    work: float = 0.0  # seconds of finished tasks
    events: int = 0


class TaskCosts:
    """What a task costs: encoding with a cache of coded chunks, bytes, seconds of the product.

    Parameters
    ----------
    partition : sizes
    profile : the machine
    itemsize : bytes of an element on the wire
    kept : coded chunks kept a side, as the runtime's encoder does
    complex_work : real multiplications per multiplication (4 for complex operands)
    """

    def __init__(self, partition: Partition, profile: MachineProfile, itemsize: int, kept: tuple[int, int],
                 complex_work: float = 1.0) -> None:  # fmt: skip
        rows, cols = partition.block_rows, partition.block_cols
        self._sides = partition.chunk_rows * rows * itemsize, partition.chunk_rows * cols * itemsize
        self._profile, self._kept = profile, kept
        self._caches: tuple[OrderedDict[bytes, None], ...] = (OrderedDict(), OrderedDict())
        self.block = rows * cols * itemsize
        self.product = complex_work * profile.product(partition.chunk_rows, rows, cols)

    def encode(self, task: Assignment) -> float:
        """Seconds of encoding what is not at hand."""
        seconds = 0.0
        for side, operands in enumerate((task.a, task.b)):
            seconds += sum(self._operand(side, operand) for operand in operands)
        return seconds

    def _operand(self, side: int, operand: Combination) -> float:
        cache, key, size = self._caches[side], operand.key, self._sides[side]
        if key in cache:
            cache.move_to_end(key)
            return 0.0
        cache[key] = None
        if len(cache) > self._kept[side]:
            cache.popitem(last=False)
        return 2 * size / self._profile.copy if operand.is_unit else operand.degree * self._profile.axpy(size)

    def sent(self, task: Assignment) -> int:
        """Bytes of its operands."""
        return len(task.a) * self._sides[0] + len(task.b) * self._sides[1]

    def returned(self, task: Assignment) -> int:
        """Bytes of its results."""
        return len(task.outputs) * self.block

    def seconds(self, task: Assignment) -> float:
        """Of its products on an undisturbed worker."""
        return len({pair for pairs in task.outputs for pair in pairs}) * self.product


@dataclass
class Run:
    """How it ended: `end` when the last needed result was in, `last` the closing instruction (None: time was up)."""

    end: float
    last: ev.Finish | ev.Fail | None
    ledger: Ledger


class Clock:
    """One simulated job.

    Parameters
    ----------
    coordinator : the real one
    costs, profile : what things take
    population : the workers
    """

    def __init__(self, coordinator: Coordinator, costs: TaskCosts, profile: MachineProfile,
                 population: Population) -> None:  # fmt: skip
        self.coordinator, self.costs, self.profile, self.population = coordinator, costs, profile, population
        self.ledger = Ledger()
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._receive: deque[tuple[int, Assignment, float]] = deque()
        self._send: deque[tuple[int, Assignment, float]] = deque()
        self._compute: deque[Assignment] = deque()
        self._doing: Work | None = None
        self._held: dict[int, deque[Assignment]] = {w: deque() for w in coordinator.workers}
        self._working: set[int] = set()
        self._tick_at: float | None = None
        self._handed = False  # whether the coordinator was told anything since it was last asked for a tick
        self._last: ev.Finish | ev.Fail | None = None

    def run(self, limit: float = math.inf) -> Run:
        """To the end, or until `limit` seconds of simulated time."""
        deaths = self.population.deaths()
        for worker in self.coordinator.workers:
            self._handle(ev.Joined(worker, 0.0))
        for worker, time in deaths.items():
            self._at(time, partial(self._died, worker))
        if not self.coordinator.workers:
            self._handle(ev.Tick(0.0))
        while self._last is None:
            if not self._heap or self._heap[0][0] > self.now:
                self._next_tick()  # asked once, when everything of this moment has been handed over
            if not self._heap:
                break
            time, _, action = heapq.heappop(self._heap)
            if time > limit:
                self.now = limit
                break
            self.now = time
            self.ledger.events += 1
            action()
        return Run(self.now, self._last, self.ledger)

    # ---- clockwork -------------------------------------------------------------------------------------------

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, action))

    def _handle(self, event: ev.Event) -> None:
        if self._last is not None:
            return
        self._handed = True
        for instruction in self.coordinator.handle(event):
            match instruction:
                case ev.Send():
                    self._send.append((instruction.worker, instruction.assignment, self.now))
                case ev.Compute():
                    self._compute.append(instruction.assignment)
                case ev.Finish() | ev.Fail():
                    self._last = instruction
                    return
        self._master()

    def _next_tick(self) -> None:
        """One tick is under way at most; a coordinator that wants an earlier one gets it."""
        if not self._handed:
            return
        self._handed = False
        wanted = self.coordinator.next_tick()
        if wanted is None or (self._tick_at is not None and self.now <= self._tick_at <= wanted):
            return
        self._tick_at = max(wanted, self.now)
        self._at(self._tick_at, self._tick)

    def _died(self, worker: int) -> None:
        self._handle(ev.Lost(worker, self.now, "died"))

    def _tick(self) -> None:
        """Results that have arrived are handed over first: only then is it judged who is late."""
        if self._tick_at is None or self.now < self._tick_at:
            return  # replaced by an earlier one
        self._tick_at = None
        if not self._receive and self._doing is not Work.RECEIVE:
            self._handle(ev.Tick(self.now))  # else the result that is handed over asks for another tick

    # ---- the master ------------------------------------------------------------------------------------------

    def _master(self) -> None:
        """Take up the next piece of work when nothing is in hand."""
        if self._doing is not None:
            return
        if self._receive:
            worker, task, seconds = self._receive.popleft()
            size = self.costs.returned(task)
            self.ledger.bytes_received += size
            self._occupy(Work.RECEIVE, self.profile.message(size), lambda: self._received(worker, task, seconds))
        elif self._send:
            worker, task, issued = self._send.popleft()
            encoding, size = self.costs.encode(task), self.costs.sent(task)
            self.ledger.encoding += encoding
            self.ledger.bytes_sent += size
            self._occupy(Work.SEND, encoding + self.profile.message(size), lambda: self._sent(worker, task, issued))
        elif self._compute:
            task = self._compute.popleft()
            seconds = self.costs.seconds(task)
            self._occupy(Work.COMPUTE, seconds, lambda: self._handle(ev.Computed(task.task, self.now)))

    def _occupy(self, work: Work, seconds: float, then: Callable[[], None]) -> None:
        self._doing = work
        self.ledger.seconds[work] += seconds

        def done() -> None:
            self._doing = None
            then()
            self._master()

        self._at(self.now + seconds, done)

    def _received(self, worker: int, task: Assignment, seconds: float) -> None:
        self._handle(ev.Accepted(worker, task.task, self.now, seconds))

    def _sent(self, worker: int, task: Assignment, issued: float) -> None:
        self._at(self.now + self.profile.latency, lambda: self._arrived(worker, task))
        if self.now > issued:  # else the coordinator knows: the time of its instruction counts
            self._handle(ev.Sent(worker, task.task, self.now))

    # ---- the workers -----------------------------------------------------------------------------------------

    def _arrived(self, worker: int, task: Assignment) -> None:
        self._held[worker].append(task)
        self._work(worker)

    def _work(self, worker: int) -> None:
        if worker in self._working or not self._held[worker]:
            return
        task = self._held[worker].popleft()
        start, end = self.now, self.population.finish(worker, self.now, self.costs.seconds(task))
        self._working.add(worker)
        if end == math.inf:
            return

        def finished() -> None:
            self.ledger.work += end - start
            self._working.discard(worker)
            self._at(self.now + self.profile.latency, lambda: self._announced(worker, task, end - start))
            self._work(worker)

        self._at(end, finished)

    def _announced(self, worker: int, task: Assignment, seconds: float) -> None:
        self._receive.append((worker, task, seconds))
        self._master()
