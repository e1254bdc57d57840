"""The coordinator: who computes what, when it is enough, and what to do when nobody answers. A pure state machine.

Events go in, instructions come out; no MPI, no clock, no data. The runtime, the simulator and the tests drive the same
object. What is asked after every event, in this order:

    decide     decodable? worth waiting for one more block? accurate enough?  -> Finish, or Fail (inaccurate)
    dispatch   who has room, and is there something useful to give?           -> Send      (supply.py)
    rescue     can nobody be expected to answer any more?                     -> Compute, or Fail (incomplete)

Whether a worker is overdue is judged on `Tick` (stragglers.py). Task numbers: fixed tasks have their own (0 .. P-1),
repairs and blocks that the master computes get fresh ones from P up, so a block that the master computes never clashes
with the task of a worker that still holds it. A copy has the number of the task it copies; the first result counts.

Every event costs O(log) plus what it changes, except that with nobody in good time left at work the overdue workers are
looked through, and that idle workers are offered work when there is some.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from cmm.codes.base import Code
from cmm.core.errors import Outcome, Status
from cmm.core.task import Assignment
from cmm.engine import events as ev
from cmm.engine.ledger import Item, Ledger, direct_task
from cmm.engine.messages import gave_up
from cmm.engine.patience import Arrivals
from cmm.engine.policy import Counts, Judge, Policy, Worker
from cmm.engine.stragglers import Health, Stragglers
from cmm.engine.supply import OneshotSupply, PullSupply, Supply
from cmm.linalg.decoder import Decoder

__all__ = ["Coordinator", "Counts", "Judge", "Policy", "Status", "Worker"]

UNSUCCESSFUL_OFFERS = 4  # idle workers asked in vain before the others are left for the next event


class Coordinator:
    """Runs one job.

    Parameters
    ----------
    code : makes tasks, repairs and rows
    decoder : told every accepted result; asked whether they suffice
    policy : how to run the job
    judge : says whether the plan is accurate enough; None: always
    order : the order in which fixed tasks are handed out; None: as numbered

    Attributes
    ----------
    counts : what happened so far
    workers : number -> Worker
    outcome : None while running, then how it ended
    """

    def __init__(self, code: Code, decoder: Decoder, policy: Policy, judge: Judge | None = None,
                 order: Sequence[int] | None = None) -> None:  # fmt: skip
        self.code, self.decoder, self.policy, self.judge = code, decoder, policy, judge
        self.counts = Counts()
        self.workers = {w: Worker(w) for w in range(1, policy.workers + 1)}
        self.outcome: Outcome | None = None
        pull = policy.dispatch == "pull"
        self.ledger = Ledger(code, follow_coded=pull)
        self.stragglers = Stragglers(policy.expected_task_seconds, policy.rule)
        self.supply = self._make_supply(range(code.P) if order is None else order, pull)
        self._arrivals = Arrivals()
        self._idle: OrderedDict[int, Worker] = OrderedDict()  # those that answered last come last
        self._absent = policy.workers
        self._began: float | None = None
        self._now = 0.0
        self._out: list[ev.Instruction] = []
        self._changed = True  # results since the decoder was last asked
        self._decodable_at: int | None = None  # N when it became decodable
        self._unsatisfied = ""  # why the judge refused the present plan
        self._computing: int | None = None
        self._stuck_since: float | None = None

    def _make_supply(self, order: Sequence[int], pull: bool) -> Supply:
        if pull:
            return PullSupply(self.code, self.ledger, self.stragglers, self.policy, order, self.counts)
        return OneshotSupply(self.code, self.ledger, self.policy, order)

    # ---- what the runtime asks ---------------------------------------------------------------------------------

    @property
    def N(self) -> int:  # noqa: N802 - the papers' symbol
        """Results used so far."""
        return self.decoder.results

    def assignment(self, task: int) -> Assignment | None:
        """The assignment of a task that was issued, or None."""
        item = self.ledger.find(task)
        return None if item is None else item.assignment

    def wanted(self, task: int) -> bool:
        """Whether a result of this task would be used: it was issued, is not in yet, and not superfluous."""
        item = self.ledger.items.get(task)
        return self.outcome is None and item is not None and self.ledger.useful(item)

    def holders(self, task: int) -> tuple[int, ...]:
        """The workers that hold this task now."""
        item = self.ledger.items.get(task)
        return tuple(sorted(w for w in item.given if w and task in self.workers[w].holds)) if item else ()

    def outstanding(self) -> dict[int, tuple[int, ...]]:
        """Worker -> the tasks it holds, oldest first; workers that hold nothing are left out."""
        return {w.number: tuple(w.holds) for w in self.workers.values() if w.holds}

    def statuses(self) -> dict[int, Status]:
        """Worker -> ok, straggler, lost or rejected."""
        return {w.number: w.status for w in self.workers.values()}

    def next_tick(self) -> float | None:
        """The earliest time at which a Tick may change anything; None when none will. For simulated clocks."""
        if self.outcome is not None:
            return None
        later = [self._give_up_at()]
        if self._absent and self._began is not None and not self.stragglers.active:
            later.append(self._began + self.stragglers.hard_limit)
        if self._decodable_at is not None and self.ledger.promised and not self._unsatisfied:
            later.append(self._arrivals.last + self._saved())
        times = [t for t in later if t is not None and t > self._now]
        judged = self.stragglers.next_change(self._now)
        return min(times if judged is None else [*times, judged], default=None)

    # ---- events ------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Take in one event; what to do now. Never raises for late, repeated or unknown results: they are counted."""
        self._now = max(self._now, event.time)
        self._began = self._now if self._began is None else self._began
        self._out = []
        asking = self._take_in(event)
        if self.outcome is None:
            self._decide()
        if self.outcome is None:
            self._dispatch(asking)
        if self.outcome is None:
            self._rescue()
        return self._out

    def _take_in(self, event: ev.Event) -> Worker | None:
        """Update the books. Returns the worker that may have room now."""
        match event:
            case ev.Tick():
                self._tick()
            case ev.Joined():
                return self._joined(event.worker)
            case ev.Sent():
                self._sent(event.worker, event.task)
            case ev.Accepted():
                return self._accepted(event.worker, event.task)
            case ev.Rejected():
                return self._rejected(event.worker, event.task, event.reason)
            case ev.Lost():
                self._leave(event.worker, Status.LOST, event.reason)
            case ev.Computed():
                self._computed(event.task)
        return None

    def _tick(self) -> None:
        for number, health in self.stragglers.check(self._now):
            self._judge_worker(self.workers[number], health)

    def _joined(self, number: int) -> Worker | None:
        worker = self.workers.get(number)
        if worker is None or worker.live or worker.gone is Status.REJECTED:
            return None
        self._absent -= not worker.joined
        worker.joined, worker.gone, worker.reason = True, None, ""
        worker.health = Health.HEALTHY
        self._idle[number] = worker
        return worker

    def _sent(self, number: int, task: int) -> None:
        worker = self.workers.get(number)
        if worker is not None and next(iter(worker.holds), None) == task:
            self._judge_worker(worker, self.stragglers.begin(number, self._now))

    def _accepted(self, number: int, task: int) -> Worker | None:
        worker, item = self._answered(number, task)
        if worker is None or item is None or self.outcome is not None or not self.ledger.useful(item):
            self.counts.discarded += 1
        else:
            worker.accepted += 1
            self.counts.accepted += 1
            self._use(item)
        return worker

    def _rejected(self, number: int, task: int, reason: str) -> Worker | None:
        worker, item = self._answered(number, task)
        if worker is None or item is None:
            self.counts.discarded += 1
            return worker
        worker.rejected += 1
        self.counts.rejected += 1
        item.refused_from += (number,)
        if not item.held and self.ledger.useful(item):
            self.supply.recycle(item)
        if worker.rejected >= self.policy.max_rejected and worker.live:
            why = f"{worker.rejected} results were rejected" + (f", the last because {reason}" if reason else "")
            self._leave(number, Status.REJECTED, why)
            self._out.append(ev.Retire(number, why))
        return worker

    def _computed(self, task: int) -> None:
        if task != self._computing:
            self.counts.discarded += 1
            return
        self._computing = None
        item = self.ledger.items[task]
        self.ledger.hold(item, -1, late=False)
        if self.outcome is None and self.ledger.useful(item):
            self.counts.computed += 1
            self._use(item)
        else:
            self.counts.discarded += 1

    def _use(self, item: Item) -> None:
        self.decoder.add(item.assignment.task, self.ledger.settle(item))
        self._arrivals.add(self._now)
        self._changed = True

    # ---- workers -----------------------------------------------------------------------------------------------

    def _answered(self, number: int, task: int) -> tuple[Worker | None, Item | None]:
        """A result came: its worker has one task less. (None, None) when it cannot be the answer to anything."""
        worker, item = self.workers.get(number), self.ledger.find(task)
        if worker is None or item is None or number not in item.given:
            return None, None
        if task not in worker.holds:  # of a worker believed lost, or a repetition
            return worker, item
        self.ledger.hold(item, -1, late=worker.holds.pop(task))
        self.stragglers.answer(number, self._now)
        if worker.holds:
            self._judge_worker(worker, self.stragglers.begin(number, self._now))
        else:
            worker.health = Health.HEALTHY
            self._idle[number] = worker
        return worker, item

    def _judge_worker(self, worker: Worker, health: Health) -> None:
        """Enter what may be expected of the tasks it holds."""
        worker.health = health
        for place, (task, was_late) in enumerate(worker.holds.items()):
            late = health is Health.LATE or (health is Health.TAIL and place > 0)
            if late != was_late:
                item = self.ledger.items[task]
                self.ledger.hold(item, 1, late=late)
                self.ledger.hold(item, -1, late=was_late)
                worker.holds[task] = late

    def _leave(self, number: int, status: Status, reason: str) -> None:
        """A worker is out: what only it held is free again."""
        worker = self.workers.get(number)
        if worker is None or worker.gone is not None:
            return
        self._absent -= not worker.joined
        worker.joined, worker.gone, worker.reason = True, status, reason
        self._idle.pop(number, None)
        self.stragglers.stop(number)
        holds, worker.holds = worker.holds, {}
        for task, late in holds.items():
            item = self.ledger.items[task]
            self.ledger.hold(item, -1, late=late)
            if not item.held and self.ledger.useful(item):
                self.supply.recycle(item)

    # ---- decide ------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self._decodable_at is None:
            if not self._changed or not self.decoder.decodable():
                self._changed = False
                return
            self._decodable_at = self.N
        elif self._unsatisfied and not self._changed:
            return
        if not self._unsatisfied and self._waiting_pays():
            return
        self._changed = False
        if self.judge is None or self.judge.acceptable():
            self._end(ev.Finish(), Outcome.COMPLETE)
            return
        self._unsatisfied = self.judge.reason or "the tolerance is out of reach"
        collected = self.N - self._decodable_at
        if not self.ledger.missing:
            self._inaccurate("every block of C was computed directly, so more results cannot help")
        elif collected >= self.policy.max_extra:
            self._inaccurate(f"{collected} results more than needed did not help")
        else:
            self.supply.extra = self.policy.max_extra - collected

    def _waiting_pays(self) -> bool:
        """The stop rule: is what the next block saves in decoding worth the expected wait for it?"""
        if not self.ledger.promised or not self.policy.block_seconds:
            return False
        rate_of_any = self._arrivals.interval(self._now, self.stragglers)
        share = len(self.ledger.promised) / max(self.ledger.expected, 1)
        return self._saved() > rate_of_any / share

    def _saved(self) -> float:
        """Seconds of decoding saved by one more block: about 4 block operations per missing block."""
        return 4 * len(self.ledger.missing) * self.policy.block_seconds

    def _inaccurate(self, remark: str) -> None:
        message = f"{self._unsatisfied}; {remark}. Raise --tolerance, or use another seed, grid or code."
        self._end(ev.Fail(Outcome.INACCURATE, message), Outcome.INACCURATE)

    def _end(self, instruction: ev.Instruction, outcome: Outcome) -> None:
        self.outcome = outcome
        self._out.append(instruction)

    # ---- dispatch ----------------------------------------------------------------------------------------------

    def _dispatch(self, asking: Worker | None) -> None:
        if asking is not None:
            self._fill(asking)
        failures = 0
        while self._idle and failures < min(UNSUCCESSFUL_OFFERS, len(self._idle)) and self.supply.pending():
            number = next(reversed(self._idle))  # who answered last is the most likely to answer again
            if not self._fill(self._idle[number]):
                failures += 1
                self._idle.move_to_end(number, last=False)

    def _fill(self, worker: Worker) -> bool:
        """Give a worker what it has room for. Returns whether it got anything."""
        given = False
        while worker.live and len(worker.holds) < self.policy.window:
            supplied = self.supply.next(worker, len(self._idle) + self._absent)
            if supplied is None:
                break
            self._send(worker, *supplied)
            given = True
        return given

    def _send(self, worker: Worker, item: Item, kind: ev.Kind) -> None:
        first = not worker.holds
        if worker.number not in item.given:
            item.given += (worker.number,)
        worker.holds[item.assignment.task] = False
        self.ledger.hold(item, 1, late=False)
        self._idle.pop(worker.number, None)
        health = self.stragglers.begin(worker.number, self._now) if first else worker.health
        self._judge_worker(worker, health)
        self.counts.issued += kind is not ev.Kind.COPY
        self.counts.repairs += kind is ev.Kind.REPAIR
        self.counts.copies += kind is ev.Kind.COPY
        self._out.append(ev.Send(worker.number, item.assignment, kind))

    # ---- rescue ------------------------------------------------------------------------------------------------

    def _rescue(self) -> None:
        """Nobody can be expected to answer: the master helps itself, or gives up."""
        if self._computing is not None:
            return
        if not self._stuck():
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = self._now
        if self.policy.give_up is None or not self.workers:
            self._compute()
        elif not self._hope() or self._now >= (self._give_up_at() or 0.0):
            waited = self._now - max(self._arrivals.last, self._began or 0.0)
            message = gave_up(waited, self.policy, self.N, self.code.targets.count, self.ledger.missing, self.workers)
            self._end(ev.Fail(Outcome.INCOMPLETE, message), Outcome.INCOMPLETE)

    def _stuck(self) -> bool:
        if self._absent and self._began is not None and self._now < self._began + self.stragglers.hard_limit:
            return False
        return self.stragglers.frozen(self._now)

    def _hope(self) -> bool:
        """Whether somebody is left who might answer some time."""
        return bool(self._absent) or any(worker.holds for worker in self.workers.values())

    def _give_up_at(self) -> float | None:
        if self._stuck_since is None or self.policy.give_up is None:
            return None
        return max(self._arrivals.last, self._began or 0.0) + self.policy.give_up

    def _compute(self) -> None:
        """The master computes the next block itself (without workers: the next fixed task)."""
        assignment = None if self.workers else self.supply.fixed()
        if assignment is None:
            assignment = direct_task(
                self.code, self.supply.fresh(), self.ledger.most_wanted(self.decoder.wanted().tolist())
            )
        item = self.ledger.issue(assignment)
        self.ledger.hold(item, 1, late=False)
        self._computing = assignment.task
        self._out.append(ev.Compute(assignment))
