"""Every registered code: encode, lose, decode; counts; refusals; determinism. One table, the same tests for all."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.codes.registry import CODES, build
from cmm.core.errors import FailureKind
from cmm.core.rng import generator
from tests.conformance.harness import Job, estimate, failure, lose, matrices, sources
from tests.conformance.table import TABLE, Case

every_case = pytest.mark.parametrize("case", TABLE, ids=str)
erasing = [case for case in TABLE if case.name != "uncoded"]
repairing = [case for case in TABLE if case.build().repairs]


def new_job(case: Case, seed: int = 0, dtype: str = "float64", shape: tuple[int, int, int] = (37, 83, 61)) -> Job:
    return Job(case.build(seed), *matrices(seed, *shape, dtype))


def finish(job: Job, order: list[int]) -> None:
    """Receive in this order, and repair (or fetch the lost tasks late) when that does not suffice."""
    if job.receive_until_decodable(order):
        return
    if job.code.repairs:
        job.repair_until_decodable()
    else:
        late = [task for task in range(job.code.P) if task not in order]
        job.receive_until_decodable(late)


def test_the_table_has_every_code() -> None:
    assert {case.name for case in TABLE} == set(CODES)


@every_case
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64"])
def test_decoded_equals_numpy_within_the_plans_own_estimate(case: Case, dtype: str) -> None:
    job = new_job(case, 11, dtype)
    rng = generator(11, "loss", dtype)
    finish(job, lose(job.code.order(rng), 0.15, rng))
    C, plan = job.decode()
    assert C.dtype == dtype
    assert job.error() <= estimate(job, plan)


@every_case
def test_everything_in_order_is_a_copy(case: Case) -> None:
    """Without a loss a systematic code only copies: bit for bit the plain block products."""
    job = new_job(case)
    assert job.receive_until_decodable(range(job.code.P))
    C, plan = job.decode()
    if job.code.systematic:
        assert (plan.method, len(plan.missing), plan.block_operations) == ("copy", 0, 0)
        for i in range(job.code.grid.m):
            for j in range(job.code.grid.n):
                task = job.code.task(i * job.code.grid.n + j)
                rows, cols = job.partition.c_slices(i, j)
                [block] = job.workers.results(task)
                assert (C[rows, cols] == block[: rows.stop - rows.start, : cols.stop - cols.start]).all()
    assert job.error() <= estimate(job, plan)


@every_case
def test_counts(case: Case) -> None:
    job = new_job(case, 3)
    rng = generator(3, "loss")
    finish(job, lose(job.code.order(rng), 0.1, rng))
    plan = job.decoder.plan()
    targets = job.code.targets
    assert job.decoder.results == len(set(job.arrived))
    assert sources(plan) <= set(job.arrived)
    assert len(plan.direct) + len(plan.missing) == targets.count
    assert plan.deficiency == 0
    assert plan.condition >= 1.0
    assert len(plan.sources) == len(plan.rows)
    if targets.identity:
        assert len(plan.missing) == job.decoder.missing
        assert plan.rank >= len(plan.missing)
    if plan.method == "lu" and not plan.realify:  # as many equations as missing blocks, each of one result
        assert plan.rank == len(plan.sources) == len(plan.missing)
        touched = sum(len(row.indices) for row in plan.rows)
        assert len(plan.missing) ** 2 <= plan.block_operations <= touched + 2 * (touched + len(plan.missing) ** 2)


@every_case
def test_the_recovery_threshold_holds(case: Case) -> None:
    """Within the threshold (and the spare results of the table) any fixed tasks decode: 20 random orders."""
    code = case.build(5)
    threshold = code.recovery_threshold
    for trial in range(20):
        decoder = code.decoder()
        order = generator(trial, "order").permutation(code.P).tolist()
        for task in order:
            if decoder.decodable():
                break
            decoder.add(task, code.rows(code.task(task)))
        assert decoder.decodable()
        if threshold.certain or case.spare:
            assert decoder.results <= threshold.results + case.spare


@every_case
def test_too_few_results_are_refused_and_change_nothing(case: Case) -> None:
    job = new_job(case)
    order = generator(1, "order").permutation(job.code.P).tolist()
    least = job.code.minimum_tasks()
    for task in order[: least - 1]:
        job.receive(job.code.task(task))
        assert not job.decoder.decodable()
    error = failure(job.decoder)
    assert error.kind in (FailureKind.INCOMPLETE, FailureKind.SINGULAR, FailureKind.ILL_CONDITIONED)
    assert error.needed >= 1
    assert len(job.decoder.outstanding()) >= 1
    finish(job, order[least - 1 :])
    C, plan = job.decode()
    assert np.isfinite(C).all()
    assert job.error() <= estimate(job, plan)


@every_case
def test_the_same_seed_makes_the_same_job(case: Case) -> None:
    """A code rebuilt from its JSON description makes the same C from the same arrivals, bit for bit."""
    results = []
    for rebuilt in (False, True):
        job = new_job(case, 4)
        if rebuilt:
            job.code = build(json.loads(json.dumps(job.code.describe())))
        rng = generator(4, "loss")
        finish(job, lose(job.code.order(rng), 0.15, rng))
        results.append((job.arrived, job.decode()[0]))
    assert results[0][0] == results[1][0]
    assert (results[0][1] == results[1][1]).all()


@pytest.mark.parametrize("case", erasing, ids=str)
def test_a_result_counts_once(case: Case) -> None:
    code = case.build()
    decoder = code.decoder()
    for _ in range(3):
        decoder.add(0, code.rows(code.task(0)))
    assert decoder.results == 1


@pytest.mark.parametrize("case", repairing, ids=str)
@given(data=st.data())
@settings(max_examples=25)
def test_repairs_decode_any_outstanding_set(case: Case, data: st.DataObject) -> None:
    code = case.build(2)
    fixed = code.order(generator(0, "order"))
    lost = data.draw(st.sets(st.sampled_from(fixed), min_size=1))
    job = Job(code, *matrices(2, 9, 31, 29))
    job.receive_until_decodable([task for task in fixed if task not in lost])
    outstanding = len(job.decoder.outstanding())
    job.repair_until_decodable()
    assert job.decoder.decodable()
    assert job.repairs <= outstanding + 2
    _, plan = job.decode()
    assert job.error() <= estimate(job, plan)


SIZE = st.one_of(st.integers(0, 3), st.integers(0, 40))


@given(s=SIZE, r=SIZE, t=SIZE, index=st.integers(0, len(TABLE) - 1), seed=st.integers(0, 999), data=st.data())
@settings(max_examples=120)
def test_any_shape_and_arrival_order(s: int, r: int, t: int, index: int, seed: int, data: st.DataObject) -> None:
    """Nothing has to divide; sizes may be 0 or 1 as long as the grid is not larger than the matrix."""
    case = TABLE[index]
    grid = case.build().grid
    s, r, t = max(s, grid.p if grid.p > 1 else 0), max(r, grid.m), max(t, grid.n)
    dtype = data.draw(st.sampled_from(["float64", "complex128"]))
    job = new_job(case, seed, dtype, (s, r, t))
    finish(job, lose(range(job.code.P), data.draw(st.sampled_from([0.0, 0.1, 0.4])), generator(seed, "loss")))
    C, plan = job.decode()
    assert C.shape == (r, t)
    assert job.error() <= estimate(job, plan)
