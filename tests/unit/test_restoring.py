"""A job that goes on from results of an earlier run: nothing is done twice, and the same results give the same C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cmm.codes.base import Code
from cmm.core.errors import InternalError, Outcome
from cmm.core.grid import Partition
from cmm.core.rng import generator
from cmm.core.task import Array, Assignment
from cmm.engine.coordinator import Coordinator, Policy
from cmm.engine.events import Accepted, Finish, Joined
from cmm.engine.ledger import direct_task
from cmm.engine.restoring import restore
from cmm.linalg.blocks import BlockStore
from tests.conformance.table import TABLE, Case
from tests.unit.event_driver import Driver, fixed, frozen_at

SMALL = Case("fr", "4x4", 16)


def coordinator(code: Code, workers: int = 3, **policy: Any) -> Coordinator:
    rules = Policy(code.dispatch, workers, expected_task_seconds=0.5, **policy)
    return Coordinator(code, code.decoder(), rules, None, code.order(generator(1, "order"), workers))


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_nothing_is_done_twice(case: Case) -> None:
    """Wherever the first run was stopped, and with fewer workers later."""
    code = case.build()
    accepted = run(coordinator(code), {w: fixed(0.5 + 0.1 * w) for w in (1, 2, 3)})
    for count in range(0, len(accepted) + 1, max(1, len(accepted) // 4)):
        again = coordinator(code, workers=2)
        assert restore(again, accepted[:count]) == count == again.counts.restored == again.N
        done = {assignment.task for assignment in accepted[:count]}
        later = run(again, {1: fixed(0.5), 2: fixed(0.7)})
        assert not done & {assignment.task for assignment in later}
        assert again.outcome is Outcome.COMPLETE
        assert again.N - count == len(later)


def run(job: Coordinator, models: dict[int, Any], **driver: Any) -> list[Assignment]:
    """The results that were accepted, in order; fails when a task is sent that was restored."""
    restored = job.ledger.issued()
    accepted: list[Assignment] = []
    original = job.decoder.add

    def add(task: int, rows: Any) -> None:
        assignment = job.assignment(task)
        assert assignment is not None
        accepted.append(assignment)
        original(task, rows)

    job.decoder.add = add  # type: ignore[method-assign]
    result = Driver(job, models, **driver).run()
    assert isinstance(result.last, Finish)
    sent = [send.assignment.task for _, send in result.sends] + [c.assignment.task for _, c in result.computes]
    assert not restored & set(sent)
    return accepted


def test_new_numbers_begin_above_the_restored_ones() -> None:
    code = SMALL.build()
    first = coordinator(code)
    accepted = run(first, {1: fixed(0.5), 2: fixed(0.5), 3: frozen_at(0.4, fixed(0.5))})
    repairs = [assignment for assignment in accepted if assignment.task >= code.P]
    assert repairs
    again = coordinator(code)
    restore(again, repairs)
    assert again.supply.fresh() == max(assignment.task for assignment in repairs) + 1


def test_a_job_that_has_everything_ends_at_once() -> None:
    code = Case("fr", "3x3", 9).build()
    job = coordinator(code)
    restore(job, [code.task(index) for index in range(9)])
    assert job.handle(Joined(1, 0.0)) == [Finish()]


def test_what_is_no_use_is_left_out() -> None:
    """A task twice, and a block that is there already under another number."""
    code = Case("fr", "2x2", 4).build()
    job = coordinator(code)
    block = Assignment.pair(code.P + 5, code.task(1).a[0], code.task(1).b[0], 2)
    assert restore(job, [code.task(1), code.task(1), block, code.task(2)]) == 2
    assert job.N == 2


def test_restored_tasks_count_for_the_cap() -> None:
    code = SMALL.build()
    job = coordinator(code, cap=20)
    restore(job, [code.task(index) for index in range(10)])
    assert job.counts.issued == 10


def test_results_are_restored_before_the_first_event() -> None:
    code = Case("fr", "2x2", 4).build()
    job = coordinator(code)
    job.handle(Joined(1, 0.0))
    with pytest.raises(InternalError):
        restore(job, [code.task(0)])


def test_without_workers_the_master_goes_on() -> None:
    code = Case("fr", "2x3", 6).build()
    job = coordinator(code, workers=0)
    restore(job, [code.task(index) for index in (0, 3)])
    computed = [assignment.task for assignment in run(job, {})]
    assert computed == [1, 2, 4, 5]


def test_a_result_of_an_earlier_number_is_not_taken_for_a_new_one() -> None:
    """An answer to a task that this run has not given out is discarded."""
    code = Case("fr", "2x2", 4).build()
    job = coordinator(code)
    restore(job, [code.task(0)])
    job.handle(Joined(1, 0.0))
    before = job.N
    job.handle(Accepted(1, 0, 0.1))
    assert (job.N, job.counts.discarded) == (before, 1)


# ---- the same results, the same bits -----------------------------------------------------------------------------

CASES = [(case, "f8") for case in TABLE] + [(TABLE[0], "f4"), (TABLE[1], "c16"), (TABLE[13], "i8")]


def blocks_of(code: Code, assignment: Assignment, A: Array, B: Array, partition: Partition) -> list[Array]:
    """What a worker returns."""

    def chunk(matrix: Array, slices: Any, index: int, width: int) -> Array:
        rows, cols = slices(index)
        part = np.zeros((partition.chunk_rows, width), matrix.dtype)
        picked = matrix[rows, cols]
        part[: picked.shape[0], : picked.shape[1]] = picked
        return part

    def coded(side: Any, matrix: Array, slices: Any, width: int) -> Array:
        return sum(value * chunk(matrix, slices, int(index), width)
                   for index, value in zip(side.indices, side.values, strict=True))  # fmt: skip

    a = [coded(x, A, partition.a_slices, partition.block_rows) for x in assignment.a]
    b = [coded(x, B, partition.b_slices, partition.block_cols) for x in assignment.b]
    return [sum(a[x].T @ b[y] for x, y in pairs) for pairs in assignment.outputs]


def decoded(code: Code, results: Sequence[tuple[Assignment, list[Array]]], partition: Partition,
            dtype: np.dtype[Any]) -> Array:  # fmt: skip
    store = BlockStore(partition, dtype)
    decoder = code.decoder(real_data=dtype.kind != "c")
    for assignment, blocks in results:
        rows = code.rows(assignment)
        decoder.add(assignment.task, rows)
        for output, (block, row) in enumerate(zip(blocks, rows, strict=True)):
            store.put((assignment.task, output), block, row)
    assert decoder.decodable()
    store.decode(decoder.plan())
    return store.C


@pytest.mark.parametrize(("case", "dtype"), CASES, ids=str)
def test_the_same_results_in_any_order_give_the_same_bits(case: Case, dtype: str) -> None:
    code, rng = case.build(), np.random.default_rng(5)
    kind = np.dtype("f8" if dtype == "i8" else dtype)
    partition = Partition(code.grid, 31, 37, 29)
    A, B = (rng.standard_normal((31, width)).astype(kind) for width in (37, 29))
    if dtype == "i8":
        A, B = np.rint(10 * A), np.rint(10 * B)
    wire = np.result_type(kind, np.complex64) if code.complex_coefficients else kind
    results = [(task, [np.ascontiguousarray(block, dtype=wire) for block in blocks_of(code, task, A, B, partition)])
               for task in some_tasks(code, rng, real=kind.kind != "c")]  # fmt: skip
    first = decoded(code, results, partition, kind)
    error = np.abs(first - A.T @ B) / np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
    assert error.max() < (1e-3 if dtype == "f4" else 1e-6)
    for _ in range(3):
        shuffled = [results[k] for k in rng.permutation(len(results))]
        assert decoded(code, shuffled, partition, kind).tobytes() == first.tobytes()


def some_tasks(code: Code, rng: np.random.Generator, *, real: bool) -> list[Assignment]:
    """Fixed tasks that arrive in random order until they decode; then what the master computes, and repairs where the
    code makes them, as more than is needed."""
    decoder, arrived = code.decoder(real_data=real), []
    for index in rng.permutation(code.P).tolist():
        arrived.append(code.task(index))
        decoder.add(index, code.rows(arrived[-1]))
        if decoder.decodable():
            break
    blocks = rng.permutation(code.grid.unknowns)[:2].tolist()
    arrived += [direct_task(code, code.P + extra, block) for extra, block in enumerate(blocks)]
    if code.repairs:
        arrived += [code.repair(range(code.grid.K), code.P + extra) for extra in (2, 3)]
    return arrived
