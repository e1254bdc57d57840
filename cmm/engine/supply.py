"""Which task a worker gets next, for the two kinds of dispatch.

Pull. A worker that holds nothing gets, in this order: the next fixed task; a task that nobody holds any more (its
worker was lost, or its result was rejected); something for the deficit. One that is at work gets a fixed task ahead
while there are more of them than workers that hold nothing. The deficit is what healthy workers are *not* about to
deliver: blocks only overdue workers hold, minus the coded results that already are, or soon will be, there to replace
them. So without stragglers nothing is repaired, and with d overdue blocks at most d repairs are under way.

For codes whose tasks are not the blocks themselves (dense codes, fountain codes) the same holds with results counted
instead of blocks: as many tasks are kept under way as the recovery threshold still lacks.

Oneshot. Position q of the order belongs to worker 1 + q mod W, come what may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from cmm.codes.base import Code
from cmm.core.task import Assignment
from cmm.engine.events import Kind
from cmm.engine.ledger import Item, Ledger, direct_unknown, leading_blocks
from cmm.engine.policy import Counts, Policy, Worker
from cmm.engine.stragglers import Health, Stragglers

Supplied = tuple[Item, Kind]


class Supply(Protocol):
    """Hands out tasks. `extra`: so many results more are wanted although C is decodable (for the tolerance)."""

    extra: int

    def next(self, worker: Worker, without_work: int) -> Supplied | None:
        """A task for a worker that has room for it, or None. `without_work`: so many others hold nothing yet."""

    def recycle(self, item: Item) -> None:
        """Nobody holds this task any more and its result is not in."""

    def pending(self) -> bool:
        """Whether some worker that holds nothing could be given something."""

    def fresh(self) -> int:
        """A task number above all that were ever used."""

    def skip(self, done: AbstractSet[int]) -> None:
        """The results of these tasks are there from an earlier run: they are not handed out."""

    def fixed(self) -> Assignment | None:
        """The next fixed task, for a master without workers."""


class Numbers:
    """Counts task numbers from P up."""

    def __init__(self, first: int) -> None:
        self._next = first

    def fresh(self) -> int:
        self._next += 1
        return self._next - 1

    def skip(self, done: AbstractSet[int]) -> None:
        self._next = max([self._next, *(task + 1 for task in done)])


class OneshotSupply(Numbers):
    """All tasks belong to a worker from the beginning."""

    def __init__(self, code: Code, ledger: Ledger, policy: Policy, order: Sequence[int]) -> None:
        super().__init__(code.P)
        self.extra = 0
        self._code, self._ledger = code, ledger
        workers = max(policy.workers, 1)
        self._queues = {w + 1: deque(order[w::workers]) for w in range(workers)}

    def next(self, worker: Worker, without_work: int) -> Supplied | None:
        queue = self._queues[worker.number]
        return (self._ledger.issue(self._code.task(queue.popleft())), Kind.FIXED) if queue else None

    def recycle(self, item: Item) -> None:
        """Never reissued."""

    def skip(self, done: AbstractSet[int]) -> None:
        super().skip(done)
        self._queues = {w: deque(i for i in queue if i not in done) for w, queue in self._queues.items()}

    def pending(self) -> bool:
        return False  # workers are served when they have room; nobody can do another's work

    def fixed(self) -> Assignment | None:
        queue = self._queues[1]
        return self._code.task(queue.popleft()) if queue else None


class PullSupply(Numbers):
    """Workers ask for work."""

    def __init__(self, code: Code, ledger: Ledger, stragglers: Stragglers, policy: Policy, order: Sequence[int],
                 counts: Counts) -> None:  # fmt: skip
        super().__init__(code.P)
        self.extra = 0
        self._code, self._ledger, self._stragglers, self._counts = code, ledger, stragglers, counts
        self._cap = policy.cap
        self.by_blocks = bool(blocks := leading_blocks(code, ledger.missing))
        self._queue = deque(i for i in order if i < blocks or not blocks)
        self._spares = deque(i for i in order if i >= blocks) if blocks and not code.repairs else deque[int]()
        self._direct_spares: dict[int, deque[Assignment]] = {}
        self._again: deque[Item] = deque()
        needed = code.recovery_threshold
        self._target = needed.results + (0 if needed.certain else max(1, needed.results // 50))

    # ---- the deficit -------------------------------------------------------------------------------------------

    def need(self) -> int:
        """How many tasks more, beyond fixed blocks and reissues, are worth sending now."""
        ledger = self._ledger
        if self.extra:
            return self.extra - ledger.expected
        if self.by_blocks:
            lacking = len(ledger.uncovered) - ledger.helping
        else:
            lacking = self._target - ledger.settled - ledger.expected
        nobody = ledger.expected == 0 and not self._again and not (self.by_blocks and self._queue)
        return max(lacking, 1) if nobody else lacking

    def pending(self) -> bool:
        return (self.by_blocks and bool(self._again or self._queue)) or self.need() > 0

    # ---- handing out -------------------------------------------------------------------------------------------

    def next(self, worker: Worker, without_work: int) -> Supplied | None:
        if worker.holds:
            ahead = worker.health is Health.HEALTHY and len(self._queue) > without_work
            return self._next_fixed(worker) if ahead else None
        return self._next_fixed(worker) or self._reissue(worker) or self._replacement()

    def recycle(self, item: Item) -> None:
        if not item.repair or item.direct is not None:
            self._again.append(item)

    def skip(self, done: AbstractSet[int]) -> None:
        super().skip(done)
        self._queue, self._spares = (deque(i for i in q if i not in done) for q in (self._queue, self._spares))

    def fixed(self) -> Assignment | None:
        """The next fixed task, leaving out blocks that are known or that the master is computing."""
        while self._queue:
            assignment = self._code.task(self._queue.popleft())
            block = direct_unknown(assignment)
            if block is None or (block in self._ledger.missing and block not in self._ledger.promised):
                return assignment
        return None

    def _capped(self) -> bool:
        return self._cap is not None and self._counts.issued >= self._cap

    def _next_fixed(self, worker: Worker) -> Supplied | None:
        if not self._queue or self._capped():
            return None
        if not (self._in_time(worker) if self.by_blocks else self.need() > 0):
            return None
        assignment = self.fixed()
        return None if assignment is None else (self._ledger.issue(assignment), Kind.FIXED)

    def _in_time(self, worker: Worker) -> bool:
        """Whether a fixed task is better given to this worker than left to the others.

        It is unless the worker would finish it well after the others have emptied the queue. With nobody prompt at
        work, everybody is welcome.
        """
        others, habit = self._stragglers, self._stragglers.estimate(worker.number)
        if habit is None or not others.prompt:
            return True
        rounds = len(self._queue) / others.prompt + 2
        return habit * (len(worker.holds) + 1) <= rounds * others.typical

    def _reissue(self, worker: Worker) -> Supplied | None:
        ledger = self._ledger
        if not self.by_blocks and self.need() <= 0:
            return None
        for _ in range(len(self._again)):
            item = self._again.popleft()
            if not ledger.useful(item) or item.held:
                continue
            if item.direct in ledger.promised or (worker.number in item.refused_from and self._stragglers.active):
                self._again.append(item)
                continue
            return item, Kind.COPY
        return None

    def _replacement(self) -> Supplied | None:
        if self.need() <= 0 or not self._ledger.missing or self._capped():
            return None
        if self._code.repairs:
            assignment = self._repair()
            return None if assignment is None else (self._ledger.issue(assignment, repair=True), Kind.REPAIR)
        assignment = self._spare()
        return None if assignment is None else (self._ledger.issue(assignment), Kind.FIXED)

    def _repair(self) -> Assignment | None:
        """A combination of everything outstanding; where a code makes copies, a copy of what nobody else brings."""
        ledger, number = self._ledger, self.fresh()
        assignment = self._code.repair(sorted(ledger.missing), number)
        if assignment.systematic is None or assignment.systematic in ledger.uncovered:
            return assignment
        return self._code.repair(sorted(ledger.uncovered), number) if ledger.uncovered else None

    def _spare(self) -> Assignment | None:
        """The next fixed task beyond the blocks that helps with the deficit."""
        ledger = self._ledger
        for unknown in ledger.uncovered & self._direct_spares.keys():
            if self._direct_spares[unknown]:
                return self._direct_spares[unknown].popleft()
        while self._spares:
            assignment = self._code.task(self._spares.popleft())
            if assignment.systematic is None or assignment.systematic in ledger.uncovered:
                return assignment
            self._direct_spares.setdefault(assignment.systematic, deque()).append(assignment)
        return None
