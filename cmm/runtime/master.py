"""The master: encodes and sends what the coordinator says, checks and stores what arrives, decodes C.

The coordinator decides, the decoder knows what is decodable, the link moves bytes; this module is the loop that
connects them, with one rule: whatever takes long (encoding, a product of its own) is done in slices, and between two
slices messages are heard.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cmm.core.errors import CmmError, InaccurateError, IncompleteError, InternalError, Outcome, RemoteError
from cmm.core.task import Array, Assignment
from cmm.engine.coordinator import Coordinator
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
    Sent,
    Tick,
)
from cmm.engine.restoring import restore
from cmm.linalg.blocks import BlockStore
from cmm.runtime import stopping
from cmm.runtime.checkpoint import Checkpoint
from cmm.runtime.clock import Clock
from cmm.runtime.encoder import Encoder, Operand
from cmm.runtime.judge import TolerancePlanner
from cmm.runtime.kernel import products
from cmm.runtime.link import Arrival, MasterLink
from cmm.runtime.protocol import Down, Header, Up, dtype_code, pack_program
from cmm.runtime.records import Saved
from cmm.runtime.report import Record
from cmm.runtime.transport import Patience
from cmm.verify.freivalds import ResultCheck

TICK_SECONDS = 0.02


@dataclass
class Pending:
    """A task on its way out: operands being encoded."""

    worker: int
    assignment: Assignment
    kind: Kind
    a: list[Operand]
    b: list[Operand]


class Master:
    """One job's loop on rank 0.

    Parameters
    ----------
    link : the workers, or None for a single rank
    coordinator, judge : decide (see cmm.engine)
    encode_a, encode_b : make coded chunks
    store : takes results
    check : makes the check of single results on first use, or None when results are not checked
    clock : phases
    record : receives the events of the timeline and each worker's task times
    checkpoint : keeps accepted results, or None
    """

    def __init__(self, link: MasterLink | None, coordinator: Coordinator, judge: TolerancePlanner,
                 encode_a: Encoder, encode_b: Encoder, store: BlockStore, check: ResultCheck | None,
                 clock: Clock, record: Record, progress: Callable[[int, int], None] | None = None,
                 checkpoint: Checkpoint | None = None) -> None:  # fmt: skip
        self.link, self.coordinator, self.judge = link, coordinator, judge
        self.encode_a, self.encode_b, self.store, self.check = encode_a, encode_b, store, check
        self.clock, self.record, self.progress, self.checkpoint = clock, record, progress, checkpoint
        self.queue: list[tuple[int, int, Pending]] = []  # (tasks the worker holds already, order, task)
        self.order = 0
        self.held: dict[int, dict[int, tuple[str, float]]] = {}  # worker -> task -> (what, sent at)
        self.local: tuple[Pending, Iterator[None] | None, list[Array]] | None = None
        self.local_since = 0.0
        self.finished = False
        self.patience = Patience()
        self.preparing = check.steps() if check is not None else None
        self.last_tick = -1.0
        self.checked = 0  # results
        self.record_last: dict[int, float] = {}  # worker -> when its last result came

    # ---- the loop --------------------------------------------------------------------------------------------

    def run(self, ready: list[int]) -> None:
        """Work until the coordinator says finish. Raises what ends it otherwise, a CmmError."""
        now = self.clock.now()
        for worker in ready:
            self._tell(Joined(worker, now))
        self._tick()
        while not self.finished:
            stopping.check()
            moved = self._receive()
            if not self.finished:
                moved |= self._step()
            if self.finished:
                break
            if self.clock.now() - self.last_tick >= TICK_SECONDS:
                self._tick()
            if moved:
                self.patience.reset()
            else:
                with self.clock.phase("wait"):
                    self.patience.wait(self.link is not None and self.link.moving)

    def _tick(self) -> None:
        self.last_tick = self.clock.now()
        self._tell(Tick(self.last_tick))

    def _tell(self, event: Event) -> None:
        before = self.coordinator.N
        for instruction in self.coordinator.handle(event):
            self._follow(instruction)
        if self.progress is not None and before < self.coordinator.N:
            self.progress(self.coordinator.N, max(self.coordinator.N, self.coordinator.code.grid.K))

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case Send():
                self._enqueue(instruction)
            case Compute():
                self.local = (self._pending(0, instruction.assignment, Kind.FIXED), None, [])
            case Retire():
                self.record.event(self.clock.now(), instruction.worker, "retired")
                self.record.worker(instruction.worker).reason = instruction.reason
            case Finish():
                self.finished = True
            case Fail():
                raise _failure(instruction)

    def unanswered(self) -> None:
        """Note for the timeline what was still out at the end."""
        now = self.clock.now()
        for worker, tasks in self.held.items():
            for task, (_, sent) in tasks.items():
                self.record.event(now, worker, "unanswered", task, now - sent)

    # ---- arriving --------------------------------------------------------------------------------------------

    def _receive(self) -> bool:
        if self.link is None:
            return False
        with self.clock.phase("wait"):  # receiving counts as waiting
            arrivals = self.link.poll()
        for worker, how in self.link.take_lost().items():
            self._lost(worker, how)
        for arrival in arrivals:
            if self.finished:
                self.link.discard(arrival.blocks)
            elif arrival.header.kind == Up.ERROR:
                host = self.link.hosts[arrival.worker]
                raise RemoteError(arrival.worker, host, arrival.header.task, arrival.text)
            elif arrival.header.kind == Up.ACK:
                self._tell(Joined(arrival.worker, self.clock.now()))
            else:
                self._result(arrival)
        return bool(arrivals)

    def _lost(self, worker: int, how: str) -> None:
        """A worker has died: what waits to be sent to it is given up."""
        now = self.clock.now()
        self.record.event(now, worker, "lost")
        for _, _, item in self.queue:
            if item.worker == worker:
                _release(item)
        self.queue = [entry for entry in self.queue if entry[2].worker != worker]
        heapq.heapify(self.queue)
        if not self.finished:
            self._tell(Lost(worker, now, how))

    def _result(self, arrival: Arrival) -> None:
        assert self.link is not None
        worker, header = arrival.worker, arrival.header
        held = self.held.setdefault(worker, {})
        assignment = self.coordinator.assignment(header.task)
        if header.task not in held or assignment is None or not self._fits(header, assignment):
            self.link.discard(arrival.blocks)
            return
        what, sent = held.pop(header.task)
        now, seconds = self.clock.now(), header.nanoseconds * 1e-9
        problem = self._fault(assignment, arrival.blocks)
        self.record.event(now, worker, what, header.task, now - max(sent, self.record_last.get(worker, 0.0)))
        self.record_last[worker] = now
        entry = self.record.worker(worker)
        if problem:
            entry.rejected_results += 1
            self.record.event(now, worker, "rejected", header.task)
            self._give_back(arrival.blocks)
            self._tell(Rejected(worker, header.task, now, problem))
            return
        entry.tasks_done += 1
        entry.task_seconds.append(round(seconds, 6))
        self._store(assignment, arrival.blocks, what)
        self._give_back(arrival.blocks)
        self._tell(Accepted(worker, header.task, now, seconds))

    def _fits(self, header: Header, assignment: Assignment) -> bool:
        """Whether a result has the shape and dtype of the task it claims to answer."""
        expected = (dtype_code(self.encode_a.dtype), self.encode_a.shape[1], self.encode_b.shape[1])
        return (header.dtype, header.cols_a, header.cols_b) == expected and header.outputs == len(assignment.outputs)

    def _fault(self, assignment: Assignment, blocks: Sequence[Array]) -> str:
        """Why the result cannot be accepted, or nothing."""
        if self.check is None:
            return ""
        self.checked += 1
        with self.clock.phase("verify"):
            if self.preparing is not None:
                for _ in self.preparing:
                    stopping.check()
                self.preparing = None
            for output, block in enumerate(blocks):
                verdict = self.check.check(assignment, output, block)
                if not verdict.ok:
                    return f"residual {verdict.residual:.1e} exceeds the limit {verdict.limit:.1e}"
        return ""

    def _store(self, assignment: Assignment, blocks: Sequence[Array], what: str) -> None:
        """Put a result in its place, unless the coordinator will discard it; on disk first, since then it counts."""
        if not self.coordinator.wanted(assignment.task):
            return
        if self.checkpoint is not None:
            with self.clock.phase("checkpoint"):
                self.checkpoint.save(Saved(assignment, what, self.check is not None), blocks)
        self._put(assignment, blocks)

    def _put(self, assignment: Assignment, blocks: Sequence[Array]) -> None:
        for output, (block, row) in enumerate(zip(blocks, self.coordinator.code.rows(assignment), strict=True)):
            self.store.put((assignment.task, output), block, row)

    def restore(self, results: Iterable[tuple[Saved, list[Array]]]) -> int:
        """Take over results of an earlier run, before `run`; returns how many. Those that were not checked when they
        were saved are checked now, if results are checked at all."""
        wrong = 0

        def taken() -> Iterator[Assignment]:
            nonlocal wrong
            seen: set[int] = set()
            for saved, blocks in results:
                if saved.assignment.task in seen:
                    continue
                if not saved.checked and self._fault(saved.assignment, blocks):
                    wrong += 1
                    continue
                seen.add(saved.assignment.task)
                self._put(saved.assignment, blocks)
                yield saved.assignment

        restored = restore(self.coordinator, taken())
        if wrong and self.checkpoint is not None:
            self.checkpoint.warn(f"{wrong} results were not checked in the earlier run, are wrong, and are not used")
        return restored

    def _give_back(self, blocks: Sequence[Array]) -> None:
        if self.link is not None:
            for block in blocks:
                self.link.pool.give(block)

    # ---- leaving ---------------------------------------------------------------------------------------------

    def _pending(self, worker: int, assignment: Assignment, kind: Kind) -> Pending:
        a = [self.encode_a.use(combination) for combination in assignment.a]
        b = [self.encode_b.use(combination) for combination in assignment.b]
        return Pending(worker, assignment, kind, a, b)

    def _enqueue(self, send: Send) -> None:
        """Tasks for workers with nothing to do go first."""
        held = self.held.setdefault(send.worker, {})
        held[send.assignment.task] = (_label(send), self.clock.now())
        self.order += 1
        item = Pending(send.worker, send.assignment, send.kind, [], [])
        heapq.heappush(self.queue, (len(held), self.order, item))

    def _step(self) -> bool:
        """One slice of encoding, or one send, or one slice of the master's own product."""
        if self.queue:
            self._encode_and_send()
            return True
        if self.preparing is not None:  # once the workers have something to do
            with self.clock.phase("verify"):
                if next(self.preparing, self) is self:
                    self.preparing = None
            return True
        if self.local is not None:
            self._compute()
            return True
        return False

    def _encode_and_send(self) -> None:
        item = self.queue[0][2]
        with self.clock.phase("encode"):
            if not item.a:
                full = self._pending(item.worker, item.assignment, item.kind)
                item.a, item.b = full.a, full.b
            if not _encode_slice(item):
                return
        with self.clock.phase("send"):
            self._send(item)
        self.queue = [entry for entry in self.queue if entry[2] is not item]
        heapq.heapify(self.queue)

    def _send(self, item: Pending) -> None:
        assert self.link is not None
        assignment = item.assignment
        pairs = sum(len(pairs) for pairs in assignment.outputs)
        program = [pack_program(assignment.outputs)] if pairs > 1 else []
        header = Header(Down.TASK, self.link.job, assignment.task, dtype_code(self.encode_a.dtype),
                        self.encode_a.shape[0], self.encode_a.shape[1], self.encode_b.shape[1], len(item.a),
                        len(item.b), len(assignment.outputs), pairs)  # fmt: skip
        payload = [operand.buffer for operand in (*item.a, *item.b)]
        self.link.send(item.worker, header, [*program, *payload], lambda: _release(item))
        what = self.held[item.worker][assignment.task][0]
        self.held[item.worker][assignment.task] = (what, self.clock.now())
        self.record.counts.tasks_sent += 1
        self._tell(Sent(item.worker, assignment.task, self.clock.now()))

    def _compute(self) -> None:
        """A slice of the task that the master computes itself."""
        assert self.local is not None
        item, steps, out = self.local
        if steps is None:
            with self.clock.phase("encode"):
                if not _encode_slice(item):
                    return
            shape = (self.encode_a.shape[1], self.encode_b.shape[1])
            out = [np.empty(shape, self.encode_a.dtype) for _ in item.assignment.outputs]
            program = pack_program(item.assignment.outputs)
            steps = products([x.buffer for x in item.a], [x.buffer for x in item.b], program, out)
            self.local = (item, steps, out)
            self.local_since = self.clock.now()
        with self.clock.phase("compute"):
            for _ in steps:
                return
        _release(item)
        self.local = None
        if problem := self._fault(item.assignment, out):
            raise InternalError(f"the master's own product failed its check ({problem}): its memory or BLAS is faulty")
        now = self.clock.now()
        self.record.event(now, 0, "local", item.assignment.task, now - self.local_since)
        self._store(item.assignment, out, "local")
        self._give_back(out)
        self._tell(Computed(item.assignment.task, now))


def _encode_slice(item: Pending) -> bool:
    """One slice of encoding; True when all operands are ready."""
    for operand in (*item.a, *item.b):
        if not operand.ready:
            operand.step()
            break
    return all(operand.ready for operand in (*item.a, *item.b))


def _release(item: Pending) -> None:
    for operand in (*item.a, *item.b):
        operand.users -= 1


def _label(send: Send) -> str:
    """What the timeline calls a task."""
    if send.kind is not Kind.FIXED:
        return send.kind.value
    return "coded" if send.assignment.systematic is None else "systematic"


def _failure(fail: Fail) -> CmmError:
    kinds: dict[Outcome, type[CmmError]] = {Outcome.INCOMPLETE: IncompleteError, Outcome.INACCURATE: InaccurateError}
    return kinds.get(fail.outcome, InternalError)(fail.message)
