"""Whole jobs against model workers: they end, quickly, with few repairs, whatever the workers do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.codes.registry import code_class
from cmm.core.errors import Outcome
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.engine.coordinator import Coordinator, Policy, Status
from cmm.engine.events import Accepted, Fail, Finish, Joined, Kind, Tick
from tests.unit.event_driver import (
    FROZEN,
    Driver,
    Model,
    Result,
    exponential,
    fixed,
    frozen_at,
    jittered,
)

TASK = 0.5  # seconds of an ordinary task


def job(models: dict[int, Model], *, name: str = "fr", grid: str = "4x8", tasks: int | None = None,
        dispatch: str = "pull", policy: dict[str, Any] | None = None,
        **driver: Any) -> tuple[Coordinator, Result]:  # fmt: skip
    shape, cls = Grid.parse(grid), code_class(name)
    code = cls(shape, cls.minimum_for(shape) if tasks is None else tasks, 1, dispatch)
    rules = Policy(dispatch, len(models), **{"expected_task_seconds": TASK, **(policy or {})})
    coordinator = Coordinator(code, code.decoder(), rules, None, code.order(generator(1, "order")))
    return coordinator, Driver(coordinator, models, **driver).run()


def team(count: int, ordinary: Model, *others: Model) -> dict[int, Model]:
    """Workers 1 ..: first the others, then ordinary ones."""
    return {w: others[w - 1] if w <= len(others) else ordinary for w in range(1, count + 1)}


def consistent(coordinator: Coordinator, result: Result) -> None:
    """What holds after every complete job."""
    counts = coordinator.counts
    assert isinstance(result.last, Finish)
    assert coordinator.outcome is Outcome.COMPLETE
    assert coordinator.decoder.decodable()
    assert counts.accepted + counts.computed == coordinator.N
    assert counts.repairs == result.count(Kind.REPAIR)
    assert counts.copies == result.count(Kind.COPY)
    assert counts.issued == len({send.assignment.task for _, send in result.sends})
    given_out = {send.assignment.task for _, send in result.sends}
    assert not given_out & {compute.assignment.task for _, compute in result.computes}


# ---- counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fr", "rkrp", "replication", "uncoded"])
@pytest.mark.parametrize(("workers", "grid"), [(1, "2x2"), (5, "4x5"), (8, "4x8"), (40, "4x4")])
def test_no_straggler_no_repair(name: str, workers: int, grid: str) -> None:
    for seed in range(5):
        for seconds in (TASK, 0.01):
            models = team(workers, jittered(seconds, 0.2))
            coordinator, result = job(models, name=name, grid=grid, seed=seed)
            consistent(coordinator, result)
            assert coordinator.counts.repairs == coordinator.counts.copies == coordinator.counts.computed == 0
            assert coordinator.N == coordinator.code.grid.K


def test_equally_slow_workers_are_no_stragglers() -> None:
    coordinator, result = job(team(8, jittered(6 * TASK, 0.2)))
    consistent(coordinator, result)
    assert coordinator.counts.repairs == coordinator.counts.computed == 0
    coordinator, result = job(team(8, jittered(100 * TASK, 0.2)), policy={"expected_task_seconds": None})
    consistent(coordinator, result)
    assert coordinator.counts.repairs == coordinator.counts.computed == 0


def test_one_frozen_worker_costs_its_two_blocks_and_under_three_task_times() -> None:
    for seed in range(10):
        coordinator, result = job(team(8, jittered(TASK, 0.1), FROZEN), seed=seed)
        consistent(coordinator, result)
        assert coordinator.counts.repairs == 2
        assert result.end - result.dry < 3 * TASK
        assert result.statuses[1] is Status.STRAGGLER
        assert coordinator.N == 32


@pytest.mark.parametrize(("others", "repairs"), [((FROZEN,), 2), ((FROZEN,) * 6 + (jittered(5 * TASK, 0.1),) * 2, 16)])
def test_design_figures_at_80x80(others: tuple[Model, ...], repairs: int) -> None:
    """Design 4b: 8 workers, 1 frozen: 2.7 task times after the queue ran dry; 64 workers, 6 frozen and 2 slow: 2.9."""
    workers = 8 if len(others) == 1 else 64
    coordinator, result = job(team(workers, jittered(TASK, 0.1), *others), grid="80x80", tick=None)
    consistent(coordinator, result)
    assert coordinator.N == 6400
    assert coordinator.counts.repairs <= repairs
    assert result.end - result.dry <= (2.7 if workers == 8 else 2.9) * TASK


def test_a_worker_five_times_slower_does_not_hold_the_job_up() -> None:
    for seed in range(10):
        coordinator, result = job(team(8, jittered(TASK, 0.1), fixed(5 * TASK)), seed=seed)
        consistent(coordinator, result)
        assert coordinator.counts.repairs <= 2
        assert result.end < 6 * TASK  # 32 tasks on 7 workers: 4.6 task times; waiting for it would be 10
        assert result.statuses[1] is Status.STRAGGLER


def test_unequal_but_steady_speeds_cause_no_repairs() -> None:
    models: dict[int, Model] = {w: jittered(TASK * (1 + w % 2), 0.1) for w in range(1, 9)}
    for seed in range(5):
        coordinator, result = job(models, grid="8x8", seed=seed)
        consistent(coordinator, result)
        assert coordinator.counts.repairs == 0


def test_exponential_delays_cause_few_repairs() -> None:
    repairs = []
    for seed in range(20):
        coordinator, result = job(team(8, exponential(0.05, 0.2)), seed=seed)
        consistent(coordinator, result)
        repairs.append(coordinator.counts.repairs)
    assert max(repairs) <= 8  # one a worker at the most, of 32 tasks
    assert sum(repairs) <= 3 * len(repairs)
    assert sum(repairs) > 0  # the tail is cut


def test_frozen_in_the_middle() -> None:
    for seed in range(10):
        coordinator, result = job(team(8, jittered(TASK, 0.1), frozen_at(1.2, jittered(TASK, 0.1))), seed=seed)
        consistent(coordinator, result)
        assert 1 <= coordinator.counts.repairs <= 2
        assert result.end < 6.5 * TASK


@pytest.mark.parametrize("name", ["fr", "rkrp", "replication", "uncoded"])
def test_dead_workers_cost_their_blocks(name: str) -> None:
    for seed in range(5):
        coordinator, result = job(team(8, jittered(TASK, 0.1)), name=name, seed=seed, deaths={2: 0.7, 5: 1.4})
        consistent(coordinator, result)
        assert coordinator.counts.repairs == coordinator.counts.computed == 0
        assert coordinator.counts.copies <= 4
        assert result.end < 8 * TASK


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
def test_a_corrupt_worker_is_retired_after_two_results(dispatch: str) -> None:
    coordinator, result = job(team(8, jittered(TASK, 0.1)), tasks=48, dispatch=dispatch, corrupt={3: 1.0})
    consistent(coordinator, result)
    assert result.retired == [3]
    assert coordinator.counts.rejected >= 2
    assert result.statuses[3] is Status.REJECTED


# ---- nobody answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fr", "rkrp", "replication", "uncoded"])
@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
@pytest.mark.parametrize("time", [0.0, 1.2])
@pytest.mark.parametrize("tick", [0.02, None])
def test_all_frozen_the_master_finishes(name: str, dispatch: str, time: float, tick: float | None) -> None:
    tasks = {"fr": 40, "rkrp": 40, "replication": 64, "uncoded": 32}[name] if dispatch == "oneshot" else None
    models = team(8, frozen_at(time, fixed(TASK)))
    coordinator, result = job(models, name=name, tasks=tasks, dispatch=dispatch, tick=tick, local=0.1)
    consistent(coordinator, result)
    assert coordinator.counts.accepted == (16 if time else 0)
    assert coordinator.counts.computed == 32 - coordinator.counts.accepted
    assert result.end < (12 if time else 15)


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
def test_all_dead_the_master_finishes(dispatch: str) -> None:
    deaths = {w: 0.7 + 0.01 * w for w in range(1, 9)}
    coordinator, result = job(team(8, fixed(TASK)), tasks=40, dispatch=dispatch, deaths=deaths, local=0.1)
    consistent(coordinator, result)
    assert coordinator.counts.computed == 24
    assert result.end == pytest.approx(0.78 + 2.4)


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
@pytest.mark.parametrize("tick", [0.02, None])
def test_give_up(dispatch: str, tick: float | None) -> None:
    models = team(8, frozen_at(1.2, fixed(TASK)))
    coordinator, result = job(models, dispatch=dispatch, policy={"give_up": 7.0}, tick=tick)
    assert isinstance(result.last, Fail)
    assert coordinator.outcome is Outcome.INCOMPLETE
    assert result.end == pytest.approx(1.0 + 7.0, abs=0.03)
    assert not result.computes


def test_uncoded_waits_for_a_slow_worker_and_helps_itself_when_it_is_frozen() -> None:
    coordinator, result = job(team(8, fixed(TASK), fixed(3 * TASK)), name="uncoded")
    consistent(coordinator, result)
    assert coordinator.counts.computed == 0
    coordinator, result = job(team(8, fixed(TASK), FROZEN), name="uncoded")
    consistent(coordinator, result)
    assert coordinator.counts.computed == 2


def test_workers_that_never_join() -> None:
    coordinator, result = job(team(8, fixed(TASK)), absent=frozenset({1, 2, 3}))
    consistent(coordinator, result)
    assert result.end < 9 * TASK
    coordinator, result = job(team(3, fixed(TASK)), grid="2x2", absent=frozenset({1, 2, 3}))
    consistent(coordinator, result)
    assert coordinator.counts.computed == 4


# ---- anything -----------------------------------------------------------------------------------------------------

MODELS = st.sampled_from([fixed(TASK), jittered(TASK, 0.3), exponential(0.05, 0.2), fixed(5 * TASK), fixed(0.001),
                          frozen_at(0.9, fixed(TASK)), FROZEN])  # fmt: skip


@given(
    name=st.sampled_from(["fr", "rkrp", "replication", "uncoded"]),
    dispatch=st.sampled_from(["pull", "oneshot"]),
    grid=st.sampled_from(["1x1", "2x3", "4x4", "5x3"]),
    spare=st.integers(0, 12),
    models=st.lists(MODELS, min_size=1, max_size=9),
    deaths=st.dictionaries(st.integers(1, 9), st.floats(0.001, 3), max_size=3),
    corrupt=st.dictionaries(st.integers(1, 9), st.sampled_from([0.3, 1.0]), max_size=2),
    window=st.integers(1, 3),
    block_seconds=st.sampled_from([0.0, 0.01, 10.0]),
    tick=st.sampled_from([0.02, None]),
    seed=st.integers(0, 99),
)
def test_every_job_ends(name: str, dispatch: str, grid: str, spare: int, models: list[Model], deaths: dict[int, float],
                        corrupt: dict[int, float], window: int, block_seconds: float, tick: float | None,
                        seed: int) -> None:  # fmt: skip
    K = Grid.parse(grid).K
    workers = dict(enumerate(models, start=1))
    coordinator, result = job(
        workers, name=name, grid=grid, tasks=K if name == "uncoded" else K + spare, dispatch=dispatch, seed=seed,
        deaths={w: t for w, t in deaths.items() if w in workers},
        corrupt={w: c for w, c in corrupt.items() if w in workers},
        policy={"window": window, "block_seconds": block_seconds}, tick=tick, local=0.2,
    )  # fmt: skip
    consistent(coordinator, result)
    assert result.end < 30 + 5 * TASK * (K + spare)


@given(models=st.lists(MODELS, min_size=1, max_size=6), seed=st.integers(0, 99),
       split=st.sampled_from(["2x2x2", "3x1x2"]), name=st.sampled_from(["uncoded", "replication"]))  # fmt: skip
def test_every_job_with_a_split_shared_dimension_ends(models: list[Model], seed: int, split: str, name: str) -> None:
    coordinator, result = job(dict(enumerate(models, start=1)), name=name, grid=split, seed=seed, tick=None)
    consistent(coordinator, result)


class Watched(dict[int, Any]):
    """Counts how often it is gone through."""

    looks = 0

    def __iter__(self) -> Any:
        self.looks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_no_event_goes_through_all_workers() -> None:
    """10 000 workers, a result each, and a tick now and then."""
    workers = 10_000
    code = code_class("uncoded")(Grid(100, 100), workers, 0, "oneshot")
    coordinator = Coordinator(code, code.decoder(), Policy("oneshot", workers, expected_task_seconds=TASK))
    watched = coordinator.workers = Watched(coordinator.workers)
    for worker in range(1, workers + 1):
        coordinator.handle(Joined(worker, 0.0))
    for worker in range(1, workers):
        assert coordinator.handle(Accepted(worker, worker - 1, TASK)) == []
        if worker % 1000 == 0:
            coordinator.handle(Tick(TASK))
    assert coordinator.handle(Accepted(workers, workers - 1, TASK)) == [Finish()]
    assert watched.looks == 0
