"""What rank 0 remembers of a task: little once its result is in, and enough to know it again."""

from __future__ import annotations

import tracemalloc
from collections import deque

import numpy as np
import pytest

from cmm.codes.base import Code
from cmm.core.grid import Partition
from cmm.core.task import Assignment, Combination
from cmm.engine.coordinator import Coordinator, Policy
from cmm.engine.events import Accepted, Finish, Instruction, Joined, Lost, Rejected, Send
from cmm.linalg.blocks import BlockStore
from cmm.linalg.directs import Directs
from cmm.linalg.rows import CodedRow
from cmm.runtime.records import same_task
from tests.conformance.table import Case

BYTES_PER_TASK = 160  # 94 to 150 measured, by how full sets and dicts happen to be; 1910 before tasks were closed


def coordinator(code: Code, workers: int = 3) -> Coordinator:
    return Coordinator(code, code.decoder(), Policy(code.dispatch, workers, expected_task_seconds=0.5))


@pytest.mark.parametrize("case", [Case("fr", "60x60", 3600), Case("fr", "60x60", 4200, "oneshot")], ids=str)
def test_a_task_costs_little_memory(case: Case) -> None:
    """Coordinator, decoder and the places of C together. Reports keep a number a task besides, and 50 000 events."""
    code = case.build()
    job, store = coordinator(code), BlockStore(Partition(code.grid, 4, 120, 120), np.float64)
    block, out, now, at = np.zeros((2, 2)), deque[tuple[int, int]](), 0.0, list[tuple[int, int]]()

    def follow(instructions: list[Instruction]) -> bool:
        out.extend((one.worker, one.assignment.task) for one in instructions if isinstance(one, Send))
        return any(isinstance(one, Finish) for one in instructions)

    for worker in job.workers:
        follow(job.handle(Joined(worker, 0.0)))
    tracemalloc.start(1)
    try:
        finished = False
        while not finished:
            (worker, task), now = out.popleft(), now + 1e-3
            assignment = job.assignment(task)
            assert assignment is not None
            for output, row in enumerate(code.rows(assignment)):
                store.put((task, output), block, row)
            finished = follow(job.handle(Accepted(worker, task, now)))
            if job.N in (400, 3400):
                at.append((job.N, tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
    (n0, before), (n1, after) = at
    assert (after - before) / (n1 - n0) < BYTES_PER_TASK
    assert len(job.ledger.items) <= len(job.workers) * job.policy.window
    assert set(range(code.grid.K)) <= job.ledger.issued()


@pytest.mark.parametrize("case", [Case("fr", "3x3", 9), Case("uncoded", "2x2x2", 8), Case("rkrp", "2x2", 7)], ids=str)
def test_a_task_that_is_done_is_known_again(case: Case) -> None:
    """Its assignment, and who had it: a late answer is counted as one, whoever sends it."""
    code = case.build()
    job = coordinator(code, workers=2)
    for worker in (1, 2):
        job.handle(Joined(worker, 0.0))
    task = next(iter(job.outstanding()[1]))
    given = job.assignment(task)
    job.handle(Accepted(1, task, 0.5))
    again = job.assignment(task)
    assert given is not None
    assert again is not None
    assert same_task(given, again)
    assert again.unknowns_b == given.unknowns_b
    assert not job.wanted(task)
    assert job.holders(task) == ()
    n, done = job.N, job.counts.accepted
    job.handle(Accepted(1, task, 0.6))  # twice
    job.handle(Accepted(2, task, 0.7))  # never given to this one
    assert (job.N, job.counts.accepted, job.counts.discarded) == (n, done, 2)
    job.handle(Rejected(2, task, 0.8))
    assert job.workers[2].rejected == 0
    job.handle(Rejected(1, task, 0.9))
    assert job.workers[1].rejected == 1
    assert job.assignment(10**6) is None


def test_the_answer_of_a_worker_believed_dead() -> None:
    """Its tasks went to another and are done: they are remembered as given to both."""
    code = Case("fr", "2x2", 4).build()
    job = coordinator(code, workers=2)
    for worker in (1, 2):
        job.handle(Joined(worker, 0.0))
    lost = job.outstanding()[1]
    job.handle(Lost(1, 0.1, "gone"))
    now = 0.1
    while job.outcome is None:
        now += 0.1
        job.handle(Accepted(2, job.outstanding()[2][0], now))
    assert job.N == 4
    for task in lost:
        job.handle(Accepted(1, task, now + 1))
    assert job.counts.discarded == len(lost)


def test_blocks_that_the_master_computed_are_made_again_from_their_unknown() -> None:
    code = Case("fr", "2x2", 4).build()
    job = coordinator(code, workers=0)
    job.handle(Joined(1, 0.0))
    item = job.ledger.issue(Assignment.pair(code.P + 3, Combination.unit(1), Combination.unit(0), 2))
    job.ledger.settle(item)
    assert code.P + 3 not in job.ledger.items
    again = job.assignment(code.P + 3)
    assert again is not None
    assert same_task(again, item.assignment)


# ---- which result is which unknown -------------------------------------------------------------------------------


def test_directs_are_a_mapping() -> None:
    """As the dict that they replace, with every kind of coefficient."""
    rng, found, expected = np.random.default_rng(3), Directs(50), dict[int, tuple[tuple[int, int], complex]]()
    for _ in range(200):
        unknown, task, output = (int(x) for x in rng.integers((50, 10**12, 4)))
        coefficient = [1.0, -2.5, 1 + 0j, 0.5 - 1j][int(rng.integers(4))]
        found[unknown] = expected[unknown] = (task, output), coefficient
    kept = found.copy()
    assert kept == dict(sorted(expected.items())) == found
    assert list(kept) == sorted(expected)
    assert len(kept) == len(expected)
    assert [type(kept[u][1]) for u in kept] == [type(expected[u][1]) for u in kept]
    free = next(u for u in range(51) if u not in expected)
    assert free not in kept
    assert kept.get(free) is None
    found[free % 50] = (1, 1), 3.0
    assert kept == expected, "a copy does not follow"


def test_of_two_results_for_a_block_the_lower_number_counts() -> None:
    store, row = BlockStore(Partition(Case("fr", "2x2", 4).build().grid, 3, 4, 4), np.float64), [np.array([2], np.intp)]
    for task, value in ((7, 7.0), (5, 5.0), (6, 6.0)):
        store.put((task, 0), np.full((2, 2), value), CodedRow(row[0], np.ones(1)))
    assert (store.C[2:, :2] == 5).all()
