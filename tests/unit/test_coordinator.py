"""The coordinator, message by message: dispatch, repairs, losses, rejections, deciding, and what it does alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from cmm.codes.base import Code
from cmm.codes.registry import code_class
from cmm.core.errors import Outcome, UsageError
from cmm.core.grid import Grid
from cmm.engine.coordinator import Coordinator, Judge, Policy, Status
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


@dataclass
class Table:
    """A coordinator and shorthand for talking to it; `now` is the time of the next message."""

    c: Coordinator
    now: float = 0.0
    log: list[Instruction] = field(default_factory=list)

    def tell(self, event: type[Any], *args: Any) -> list[Instruction]:
        reason = {"reason": args[2]} if event is Rejected else {}
        out = self.c.handle(event(*args[:2], time=self.now, **reason))
        self.log += out
        return out

    def join(self, *workers: int) -> list[Instruction]:
        return [i for w in workers for i in self.tell(Joined, w)]

    def accept(self, worker: int, task: int | None = None) -> list[Instruction]:
        """The worker's oldest task (or the given one) is accepted."""
        return self.tell(Accepted, worker, self.c.outstanding()[worker][0] if task is None else task)

    def tick(self, seconds: float = 0.0) -> list[Instruction]:
        self.now += seconds
        return self.tell(Tick)

    def rounds(self, count: int, *workers: int, seconds: float = 1.0) -> list[Instruction]:
        """So often, all these workers answer after so many seconds."""
        out = []
        for _ in range(count):
            self.now += seconds
            for worker in workers:
                if worker in self.c.outstanding():
                    out += self.accept(worker)
        return out


def build(name: str = "fr", grid: str = "2x2", tasks: int | None = None, dispatch: str = "pull", **params: str) -> Code:
    shape = Grid.parse(grid)
    cls = code_class(name)
    return cls(shape, cls.minimum_for(shape) if tasks is None else tasks, 3, dispatch, params)


def table(code: Code, workers: int, judge: Judge | None = None, order: list[int] | None = None, **policy: Any) -> Table:
    policy = {"expected_task_seconds": 1.0, **policy}
    return Table(Coordinator(code, code.decoder(), Policy(code.dispatch, workers, **policy), judge, order))


def brief(instructions: list[Instruction]) -> list[tuple[int, int, str]]:
    """Sends as (worker, task, kind); nothing else may be among them."""
    assert all(isinstance(i, Send) for i in instructions), instructions
    return [(i.worker, i.assignment.task, i.kind.value) for i in instructions if isinstance(i, Send)]


class Never:
    """A judge that is never satisfied."""

    reason = "estimated error 1e-3 exceeds 1e-9"

    def __init__(self, until: int | None = None) -> None:
        self.asked, self.until = 0, until

    def acceptable(self) -> bool:
        self.asked += 1
        return self.until is not None and self.asked > self.until


# ---- pull: the ordinary course ------------------------------------------------------------------------------------


def test_pull_gives_one_task_and_one_ahead_and_finishes_with_the_last_block() -> None:
    t = table(build(grid="2x4"), 2)
    assert brief(t.join(1)) == [(1, 0, "fixed"), (1, 1, "fixed")]
    assert brief(t.join(2)) == [(2, 2, "fixed"), (2, 3, "fixed")]
    t.now = 1.0
    assert brief(t.accept(1)) == [(1, 4, "fixed")]
    assert brief(t.accept(2)) == [(2, 5, "fixed")]
    t.now = 2.0
    assert brief(t.accept(1)) == [(1, 6, "fixed")]
    assert brief(t.accept(2)) == [(2, 7, "fixed")]
    assert t.c.holders(6) == (1,)
    t.now = 3.0
    assert t.accept(1) == t.accept(2) == []
    t.now = 4.0
    assert t.accept(1) == []  # idle, and nothing to repair: worker 2 is about to deliver
    assert t.tick(0.3) == []
    assert t.accept(2) == [Finish()]
    assert t.c.outcome is Outcome.COMPLETE
    assert (t.c.N, t.c.counts.issued, t.c.counts.repairs, t.c.counts.discarded) == (8, 8, 0, 0)
    assert set(t.c.statuses().values()) == {Status.OK}


def test_nothing_is_sent_ahead_while_others_would_be_left_without_work() -> None:
    t = table(build(grid="2x4"), 8)
    sends = brief(t.join(*range(1, 9)))
    assert sends == [(w, w - 1, "fixed") for w in range(1, 9)]


def test_the_given_order_is_followed() -> None:
    t = table(build(grid="2x2"), 1, order=[3, 1, 0, 2])
    assert [task for _, task, _ in brief(t.join(1))] == [3, 1]
    t.now = 1.0
    assert [task for _, task, _ in brief(t.accept(1))] == [0]


def test_more_workers_than_tasks() -> None:
    t = table(build(grid="2x2"), 9)
    assert len(t.join(*range(1, 10))) == 4
    t.rounds(1, *range(1, 10))
    assert t.log[-1] == Finish()
    assert t.c.counts.repairs == 0


# ---- repairs ----------------------------------------------------------------------------------------------------


def test_only_what_is_overdue_is_repaired_and_no_more_than_that() -> None:
    t = table(build(grid="4x4"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(4, 1, 2, 3)  # 12 results; worker 4 holds 2 tasks since 0, the others 2 more
    assert t.c.counts.issued == 16
    t.rounds(1, 1, 2)
    assert t.c.statuses()[4] is Status.OK  # judged on ticks only
    assert t.c.counts.repairs == 0
    sends = brief(t.tick())
    assert [(task, kind) for _, task, kind in sends] == [(16, "repair"), (17, "repair")]  # numbers from P up
    assert {worker for worker, *_ in sends} == {1, 2}
    assert t.c.statuses()[4] is Status.STRAGGLER
    stuck = set(t.c.outstanding()[4])
    support = {int(u) for row in t.c.code.rows(t.c.assignment(16)) for u in row.indices}
    assert stuck <= support
    t.now += 0.1
    assert t.tick() == []  # deficit covered
    t.now += 0.9
    assert t.accept(1) == []
    assert t.accept(2) == [Finish()]
    assert t.c.N == 16


def test_a_worker_that_answers_again_is_ok_again_and_its_results_count() -> None:
    t = table(build(grid="4x4"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(5, 1, 2)
    t.tick()
    assert t.c.statuses()[4] is Status.STRAGGLER
    accepted = t.c.counts.accepted
    t.accept(4)
    t.tick(0.1)
    assert t.c.counts.accepted == accepted + 1
    for _ in range(3):  # its one long time is its habit until it shows a better one
        t.now += 0.5
        if 4 in t.c.outstanding():
            t.accept(4)
    assert t.c.statuses()[4] is Status.OK


def test_repairs_are_replaced_when_their_worker_is_late_too() -> None:
    t = table(build(grid="4x4"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(6, 1, 2, 3)
    sends = brief(t.tick())
    assert [kind for *_, kind in sends] == ["repair", "repair"]
    silent = sends[0][0]
    others = [w for w in (1, 2, 3) if w != silent]
    t.rounds(1, *others)
    assert t.c.outcome is None
    more = brief(t.tick(4.0))
    assert [kind for *_, kind in more] == ["repair"]
    assert more[0][0] in others


def test_a_coded_result_that_arrived_covers_whatever_is_late_next() -> None:
    t = table(build(grid="4x4"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(6, 1, 2, 3)
    t.tick()
    repairs = t.c.counts.repairs
    t.accept(4)  # late, but here: one repair is now superfluous
    assert t.c.outcome is None
    assert t.tick(1.0) == []
    assert t.c.counts.repairs == repairs


def test_replication_copies_exactly_the_overdue_blocks() -> None:
    t = table(build("replication", "4x4"), 4)
    t.join(1, 2, 3, 4)
    stuck = t.c.outstanding()[4]
    t.rounds(5, 1, 2)  # worker 3 is silent since 0, too, but let it answer now
    t.accept(3)
    t.accept(3)
    t.rounds(2, 1, 2, 3)
    sends = t.tick()
    assert [i.assignment.systematic for i in sends if isinstance(i, Send)] == list(stuck)
    assert {i.kind for i in sends if isinstance(i, Send)} == {Kind.REPAIR}


def test_uncoded_waits_for_the_overdue_and_reissues_what_is_lost() -> None:
    t = table(build("uncoded", "4x4"), 4)
    t.join(1, 2, 3, 4)
    held = t.c.outstanding()[4]
    t.rounds(6, 1, 2, 3)
    assert t.tick() == []
    assert t.c.statuses()[4] is Status.STRAGGLER
    sends = brief(t.tell(Lost, 4))
    assert [(task, kind) for _, task, kind in sends] == [(held[0], "copy"), (held[1], "copy")]
    assert len({worker for worker, *_ in sends}) == 2
    t.rounds(1, 1, 2, 3)
    assert t.c.outcome is Outcome.COMPLETE
    assert t.c.statuses()[4] is Status.LOST


def test_the_cap_bounds_the_task_numbers_given_out() -> None:
    t = table(build(grid="4x4"), 4, cap=17)
    t.join(1, 2, 3, 4)
    t.rounds(6, 1, 2, 3)
    assert len(brief(t.tick())) == 1
    assert t.c.counts.issued == 17
    t.rounds(1, 1, 2, 3)
    assert t.tick(0.1) == []


def test_spare_fixed_tasks_serve_where_a_code_makes_no_repairs() -> None:
    code = build("rkrp", "4x4", 20, "oneshot")  # no repairs, 4 dense tasks more than blocks
    t = table(code, 4)
    t.c = Coordinator(code, code.decoder(), Policy("pull", 4, expected_task_seconds=1.0))
    t.join(1, 2, 3, 4)
    t.rounds(6, 1, 2, 3)
    assert [(task, kind) for _, task, kind in brief(t.tick())] == [(16, "fixed"), (17, "fixed")]
    t.rounds(1, 1, 2, 3)
    assert t.c.outcome is Outcome.COMPLETE


def test_spare_copies_serve_only_the_block_they_copy() -> None:
    code = build("replication", "4x4", 32, "oneshot")
    t = table(code, 4)
    t.c = Coordinator(code, code.decoder(), Policy("pull", 4, expected_task_seconds=1.0))
    t.join(1, 2, 3, 4)
    held = t.c.outstanding()[4]
    t.rounds(6, 1, 2, 3)
    assert sorted(task for _, task, _ in brief(t.tick())) == [16 + u for u in held]


def test_a_dense_code_keeps_as_many_tasks_under_way_as_it_lacks() -> None:
    t = table(build("rkrp", "4x4", 30, systematic="no"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(5, 1, 2, 3)
    assert t.c.counts.issued == 16  # any K do: no more while nobody is late
    sends = brief(t.tick())
    assert [(task, kind) for _, task, kind in sends] == [(16, "fixed"), (17, "fixed")]
    t.rounds(2, 1, 2, 3)
    assert (t.c.outcome, t.c.N) == (Outcome.COMPLETE, 16)


# ---- losses and rejections --------------------------------------------------------------------------------------


def test_the_blocks_of_a_lost_worker_go_to_others_as_copies() -> None:
    t = table(build(grid="2x4"), 2)
    t.join(1, 2)
    assert t.tell(Lost, 2) == []  # worker 1 has its hands full
    assert t.c.holders(2) == ()
    seen = brief(t.rounds(6, 1))
    assert sorted(task for _, task, kind in seen if kind == "fixed") == [4, 5, 6, 7]
    assert [(task, kind) for _, task, kind in seen if kind != "fixed"] == [(2, "copy"), (3, "copy")][: len(seen) - 4]
    t.rounds(2, 1)
    assert t.c.outcome is Outcome.COMPLETE
    assert t.c.counts.copies == 2


def test_a_lost_worker_may_come_back() -> None:
    t = table(build(grid="2x4"), 2)
    t.join(1, 2)
    t.tell(Lost, 2)
    assert t.tell(Lost, 2) == []
    assert brief(t.join(2)) == [(2, 4, "fixed"), (2, 5, "fixed")]
    assert t.c.statuses()[2] is Status.OK


def test_a_rejected_result_goes_to_another_worker() -> None:
    t = table(build(grid="2x2"), 2)
    t.join(1, 2)
    t.now = 1.0
    assert t.tell(Rejected, 1, 0, "residual") == []
    t.now = 2.0
    assert t.accept(1) == []  # it is not given its own wrong task while worker 2 is there
    assert brief(t.rounds(1, 2, seconds=0.0)) == []
    assert brief(t.rounds(1, 2)) == [(2, 0, "copy")]
    assert t.rounds(1, 2) == [Finish()]
    assert (t.c.counts.rejected, t.c.N) == (1, 4)


def test_two_rejections_retire_a_worker() -> None:
    t = table(build(grid="2x4"), 2)
    t.join(1, 2)
    t.tell(Rejected, 1, 0, "residual")
    out = t.tell(Rejected, 1, 1, "residual 3e-2")
    assert out == [Retire(1, "2 results were rejected, the last because residual 3e-2")]
    assert t.c.statuses()[1] is Status.REJECTED
    assert 1 not in t.c.outstanding()
    assert t.join(1) == []  # it does not come back
    t.rounds(8, 2)
    assert t.c.outcome is Outcome.COMPLETE
    assert t.c.counts.copies == 3


def test_the_only_worker_may_try_again_what_it_got_wrong() -> None:
    t = table(build(grid="1x2"), 1)
    t.join(1)
    t.tell(Rejected, 1, 0, "")
    assert brief(t.accept(1)) == [(1, 0, "copy")]


def test_late_repeated_and_unknown_results_are_counted() -> None:
    t = table(build(grid="2x4"), 2)
    t.join(1, 2)
    t.now = 1.0
    t.accept(1, 0)
    for event in (Accepted(1, 0, 1.0), Accepted(2, 1, 1.0), Accepted(9, 0, 1.0), Accepted(1, 77, 1.0),
                  Rejected(1, 77, 1.0), Rejected(7, 0, 1.0), Computed(5, 1.0), Lost(99, 1.0), Joined(99, 1.0),
                  Sent(99, 0, 1.0)):  # fmt: skip
        assert t.c.handle(event) == []
    assert t.c.counts.discarded == 7
    assert t.c.N == 1


def test_of_two_holders_the_first_result_counts_and_the_other_worker_is_free_again() -> None:
    t = table(build("replication", "4x4"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(6, 1, 2, 3)
    t.tick()
    assert not t.c.wanted(999)
    first = t.c.outstanding()[4][0]
    assert t.c.wanted(first)
    assert t.c.assignment(first) is not None
    assert t.c.assignment(999) is None
    t.accept(4)
    assert not t.c.wanted(first)
    copy = next(task for w in (1, 2, 3) for task in t.c.outstanding().get(w, ()) if t.c.assignment(task).systematic == first)  # type: ignore[union-attr]  # fmt: skip  # noqa: E501
    assert not t.c.wanted(copy)
    worker = t.c.holders(copy)[0]
    before = t.c.counts.discarded
    t.now += 1
    t.accept(worker, copy)
    assert t.c.counts.discarded == before + 1
    assert copy not in t.c.outstanding().get(worker, ())


def test_a_result_of_a_worker_believed_lost_still_counts_once() -> None:
    t = table(build(grid="2x4"), 2)
    t.join(1, 2)
    t.tell(Lost, 2)
    t.accept(2, 2)
    assert t.c.N == 1
    t.accept(2, 2)
    assert (t.c.N, t.c.counts.discarded) == (1, 1)
    t.rounds(8, 1)
    assert [(i.assignment.task) for i in t.log if isinstance(i, Send) and i.kind is Kind.COPY] == [3]


def test_sent_corrects_when_a_worker_could_start() -> None:
    t = table(build(grid="4x4"), 4)
    t.join(1, 2, 3, 4)
    t.rounds(4, 1, 2)
    t.tell(Sent, 3, t.c.outstanding()[3][0])  # it took long to be encoded
    t.tick()
    assert (t.c.statuses()[3], t.c.statuses()[4]) == (Status.OK, Status.STRAGGLER)


# ---- oneshot ----------------------------------------------------------------------------------------------------


def test_oneshot_deals_by_position_and_never_reissues() -> None:
    code = build("fr", "2x2", 7, "oneshot")
    order = [2, 0, 3, 1, 4, 5, 6]
    t = table(code, 3, order=order, window=2)
    assert brief(t.join(3, 1, 2)) == [(3, 3, "fixed"), (3, 5, "fixed"), (1, 2, "fixed"), (1, 1, "fixed"),
                                      (2, 0, "fixed"), (2, 4, "fixed")]  # fmt: skip
    t.now = 1.0
    assert t.tell(Lost, 2) == []
    assert t.tell(Rejected, 3, 3, "") == []
    assert brief(t.accept(1)) == [(1, 6, "fixed")]
    assert t.rounds(1, 3) == []
    t.rounds(2, 1)
    assert (t.c.N, t.c.outcome) == (4, Outcome.COMPLETE)
    assert {task for _, task, _ in brief([i for i in t.log if isinstance(i, Send)])} == set(range(7))
    assert t.c.counts.copies == t.c.counts.repairs == 0


def test_oneshot_without_enough_left_falls_to_the_master() -> None:
    t = table(build("uncoded", "2x2", dispatch="oneshot"), 2)
    t.join(1, 2)
    t.rounds(2, 1)
    out = t.tell(Lost, 2)
    assert [type(i) for i in out] == [Compute]
    assert out[0].assignment.task == 4  # type: ignore[union-attr]
    assert [type(i) for i in t.tell(Computed, 4)] == [Compute]
    assert t.tell(Computed, 5) == [Finish()]


# ---- deciding ---------------------------------------------------------------------------------------------------


def eve_of_decision(block_seconds: float, judge: Judge | None = None) -> Table:
    """Oneshot, K = 4, one task each for 6 workers; 4 results are in when the last of them is accepted: decodable with
    two blocks missing, which workers 1 and 2 hold."""
    t = table(build("rkrp", "2x2", 6, "oneshot"), 6, judge, block_seconds=block_seconds)
    t.join(*range(1, 7))
    for worker in (3, 4, 5):
        t.now += 1.0
        assert t.accept(worker) == []
    t.now += 1.0
    return t


def test_decodable_is_enough_when_decoding_is_cheap() -> None:
    t = eve_of_decision(block_seconds=0.0)
    assert t.accept(6) == [Finish()]
    assert sorted(t.c.ledger.missing) == [0, 1]


def test_waiting_for_the_next_block_where_decoding_costs_more_than_the_wait() -> None:
    t = eve_of_decision(block_seconds=0.5)  # a block saves 4 * 2 * 0.5 = 4 s, results come every second
    assert t.accept(6) == []
    t.now += 1.0
    assert t.accept(1) == []  # now 2 s
    t.now += 1.0
    assert t.accept(2) == [Finish()]
    assert not t.c.ledger.missing


def test_the_wait_ends_when_the_silence_is_longer_than_it_is_worth() -> None:
    t = eve_of_decision(block_seconds=0.2)  # saves 1.6 s
    assert t.accept(6) == []
    assert t.tick(1.5) == []
    assert t.tick(0.2) == [Finish()]


def test_nobody_waits_for_workers_that_are_overdue_or_lost() -> None:
    t = eve_of_decision(block_seconds=1e6)
    t.accept(6)
    assert t.tell(Lost, 1) == []
    assert t.tell(Lost, 2) == [Finish()]
    t = eve_of_decision(block_seconds=1e6)
    t.accept(6)
    assert t.tick(1.0) == []
    assert t.tick(30.0) == [Finish()]


def test_the_judge_is_asked_once_per_result_and_gets_more_results() -> None:
    judge = Never(until=1)
    t = eve_of_decision(0.0, judge)
    assert t.accept(6) == []
    assert (judge.asked, t.tick(0.1), judge.asked) == (1, [], 1)
    assert t.accept(1) == [Finish()]
    assert judge.asked == 2


def test_a_copy_that_is_not_acceptable_fails_at_once() -> None:
    t = table(build("uncoded", "2x2"), 2, Never())
    t.join(1, 2)
    t.rounds(2, 1, 2)
    fail = t.log[-1]
    assert isinstance(fail, Fail)
    assert fail.outcome is Outcome.INACCURATE
    assert Never.reason in fail.message
    assert "--tolerance" in fail.message


def test_max_extra_bounds_what_is_collected_for_the_tolerance() -> None:
    judge = Never()
    t = table(build("rkrp", "4x4", systematic="no", tasks=40), 4, judge, max_extra=3)
    t.join(1, 2, 3, 4)
    t.rounds(8, 1, 2, 3, 4)
    assert isinstance(t.log[-1], Fail)
    assert (t.c.outcome, t.c.N, judge.asked) == (Outcome.INACCURATE, 19, 4)


def test_repairs_are_made_for_the_tolerance_when_nothing_else_comes() -> None:
    judge = Never(until=2)
    t = table(build(grid="4x4"), 4, judge, max_extra=2)
    t.join(1, 2, 3, 4)
    t.rounds(6, 1, 2, 3)
    t.tick()
    t.rounds(1, 1, 2, 3)
    assert judge.asked == 1
    assert t.c.counts.repairs == 4  # two for the overdue blocks, two for the tolerance
    t.rounds(1, 1, 2, 3)
    assert (t.c.outcome, judge.asked, t.c.N) == (Outcome.COMPLETE, 3, 18)


# ---- alone, stuck, giving up --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fr", "rkrp", "replication", "uncoded"])
@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
def test_a_single_rank_computes_the_fixed_tasks_one_after_another(name: str, dispatch: str) -> None:
    tasks = {"fr": 12, "rkrp": 12, "replication": 18, "uncoded": 9}[name]
    t = table(build(name, "3x3", tasks, dispatch), 0, give_up=1.0)
    seen = []
    out = t.tick()
    while out != [Finish()]:
        assert len(out) == 1
        assert isinstance(out[0], Compute)
        seen.append(out[0].assignment.task)
        assert t.tick(0.1) == []  # one at a time
        out = t.tell(Computed, seen[-1])
    assert seen == list(range(9))
    assert t.c.counts.computed == 9


def test_a_single_rank_with_a_dense_code_and_with_a_split_shared_dimension() -> None:
    for code in (build("rkrp", "3x3", 12, systematic="no"), build("uncoded", "2x3x2"), build("replication", "2x3x2")):
        t = table(code, 0)
        out = t.tick()
        while out != [Finish()]:
            out = t.tell(Computed, out[0].assignment.task)  # type: ignore[union-attr]
        assert t.c.counts.computed == code.recovery_threshold.results


def all_frozen(**policy: Any) -> Table:
    """K = 8, two workers, each has answered once and holds two tasks; two were never sent."""
    t = table(build(grid="2x4"), 2, **policy)
    t.join(1, 2)
    t.rounds(1, 1, 2)
    assert len(t.c.outstanding()) == 2
    return t


def test_when_everybody_is_frozen_the_master_computes_what_is_missing() -> None:
    t = all_frozen()
    assert t.tick(3.0) == []
    out = t.tick(60.0)
    assert [type(i) for i in out] == [Compute]
    missing = set(t.c.ledger.missing)
    seen = []
    while out != [Finish()]:
        assignment = out[0].assignment  # type: ignore[union-attr]
        assert assignment.systematic in missing
        assert assignment.task >= 8  # never a number that a worker may still answer
        seen.append(assignment.task)
        t.now += 1.0
        out = t.tell(Computed, assignment.task)
    assert len(seen) == len(set(seen)) == 6
    assert set(t.c.statuses().values()) == {Status.STRAGGLER}


def test_results_that_arrive_while_the_master_computes_are_used() -> None:
    t = all_frozen()
    t.tick(3.0)
    (compute,) = t.tick(60.0)
    assert isinstance(compute, Compute)
    assert compute.assignment.systematic == 6  # what nobody holds comes first
    assert brief(t.accept(1)) == [(1, 7, "fixed")]  # thawed: it gets work again, but not what the master is at
    assert t.tell(Computed, compute.assignment.task) == []  # no longer stuck
    assert t.c.N == 4
    assert brief(t.rounds(1, 1)) == []
    assert brief(t.rounds(1, 1)) == [(1, 9, "repair")]
    assert sorted(t.c.ledger.missing) == list(t.c.outstanding()[2]) == [3, 5]
    assert brief(t.rounds(1, 1)) == [(1, 10, "repair")]
    assert t.rounds(1, 1) == [Finish()]
    assert (t.c.N, t.c.counts.computed, t.c.counts.accepted) == (8, 1, 7)


def test_a_block_that_a_worker_delivers_while_the_master_is_at_it_counts_once() -> None:
    t = all_frozen()
    t.tick(3.0)
    (compute,) = t.tick(60.0)
    while compute.assignment.systematic != 1:  # type: ignore[union-attr]
        (compute,) = t.tell(Computed, compute.assignment.task)  # type: ignore[union-attr]
    t.accept(1, 1)
    n = t.c.N
    assert t.tell(Computed, compute.assignment.task) == []  # type: ignore[union-attr]
    assert n == t.c.N
    assert t.c.outcome is None


def test_frozen_from_the_start_means_the_prior_times_a_generous_factor() -> None:
    t = table(build(grid="2x4"), 2, expected_task_seconds=0.5)
    t.join(1, 2)
    assert t.tick(4.9) == []
    assert [type(i) for i in t.tick(0.2)] == [Compute]


def test_workers_that_never_join_are_not_waited_for_for_ever() -> None:
    t = table(build(grid="2x2"), 3, expected_task_seconds=0.5)
    assert t.tick() == []
    assert t.tick(4.9) == []
    assert [type(i) for i in t.tick(0.2)] == [Compute]


def test_give_up_fails_after_so_many_seconds_without_a_result() -> None:
    t = all_frozen(give_up=30.0)
    t.tick(3.0)
    assert t.tick(26.0) == []
    (fail,) = t.tick(2.0)
    assert isinstance(fail, Fail)
    assert fail.outcome is Outcome.INCOMPLETE
    assert "6 missing" in fail.message
    assert "workers not answering: 1, 2" in fail.message
    assert "--give-up 30" in fail.message


def test_give_up_does_not_wait_when_nobody_is_left() -> None:
    t = all_frozen(give_up=1e9)
    t.tell(Lost, 1)
    (fail,) = t.tell(Lost, 2)
    assert isinstance(fail, Fail)
    assert "lost: 1, 2" in fail.message


def test_all_workers_lost_or_retired_before_anything_arrived() -> None:
    t = table(build(grid="2x2"), 2)
    t.join(1, 2)
    t.tell(Lost, 1)
    t.tell(Rejected, 2, 2, "")
    out = t.tell(Rejected, 2, 3, "")
    assert [type(i) for i in out] == [Retire, Compute]


def test_nothing_happens_after_the_end() -> None:
    t = table(build(grid="1x2"), 2)
    t.join(1, 2)
    t.rounds(1, 1, 2)
    assert t.c.outcome is Outcome.COMPLETE
    for event in (Tick(9.0), Accepted(1, 0, 9.0), Joined(1, 9.0), Lost(1, 9.0), Computed(3, 9.0)):
        assert t.c.handle(event) == []
    assert t.c.next_tick() is None
    assert t.c.N == 2


# ---- the policy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"dispatch": "push"}, {"workers": -1}, {"window": 0}, {"give_up": -1.0},
                                   {"give_up": float("nan")}, {"max_extra": -1}, {"block_seconds": -1.0}])  # fmt: skip
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Policy(**wrong)


def test_events_are_plain_values() -> None:
    event: Event = Accepted(1, 2, 0.5)
    assert event == Accepted(1, 2, 0.5, None)
    assert np.isfinite(event.time)
