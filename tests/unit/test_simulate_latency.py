"""The simulated clock against closed forms, and the models of workers against their laws."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from cmm.core.errors import DataError, InputMissingError, UsageError
from cmm.core.grid import Grid, Partition
from cmm.core.rng import generator
from cmm.core.task import Assignment, Combination
from cmm.simulate.clock import TaskCosts
from cmm.simulate.latency import (
    Latency,
    LatencyResult,
    LatencyRow,
    LatencyStore,
    all_schemes,
    run_latency,
    split_scheme,
)
from cmm.simulate.profile import PROFILES, MachineProfile
from cmm.simulate.workers import Population, parse_models

IDEAL = PROFILES["ideal"]
SIZE = (100_000, 60_000, 60_000)


def ideal(scheme: str, model: str, workers: int = 20, seed: int = 1) -> Latency:
    return Latency(scheme, workers, model, SIZE, IDEAL, seed=seed)


def factors(spec: Latency, tasks_each: int = 1) -> np.ndarray:
    """The draws of every worker's first tasks: what the population of trial 0 gives."""
    seed = int(generator(spec.seed, "latency", 0).integers(2**62, size=2)[1])
    population = Population(parse_models(spec.model), spec.workers, seed, spec.unit)
    return np.array([[population.finish(w, 0.0, 1.0) for _ in range(tasks_each)] for w in range(1, spec.workers + 1)])


# ---- closed forms --------------------------------------------------------------------------------------------------


def test_without_stragglers_uncoded_takes_the_time_of_the_product() -> None:
    result = run_latency(ideal("uncoded/oneshot:grid=4x5,tasks=20", "none"))
    assert result.outcome == "complete"
    assert result.total == pytest.approx(result.unit)
    assert (result.N, result.repairs, result.copies, result.computed) == (20, 0, 0, 0)


def test_uncoded_waits_for_the_slowest_worker() -> None:
    spec = ideal("uncoded/oneshot:grid=4x5,tasks=20", "shifted-exponential:5@worker")
    assert run_latency(spec).total == pytest.approx(spec.unit * factors(spec).max())


def test_an_mds_code_waits_for_the_k_th_worker() -> None:
    """Lee et al.: the K-th order statistic, each task being 1 / K of the work."""
    spec = ideal("rkrp/oneshot:grid=4x4,tasks=20,systematic=no", "shifted-exponential:5@worker")
    result = run_latency(spec)
    assert result.N == 16
    assert result.collect == pytest.approx(spec.unit * 20 / 16 * np.sort(factors(spec).ravel())[15])


def test_two_copies_wait_for_the_first_of_each() -> None:
    spec = ideal("replication/oneshot:grid=2x5,tasks=20", "pareto:2")
    code = spec.build(int(generator(spec.seed, "latency", 0).integers(2**62, size=2)[0]))
    order = code.order(generator(code.seed, "order"), 20)
    drawn = factors(spec).ravel()
    first: dict[int, float] = {}
    for worker, task in enumerate(order):
        block = code.task(task).systematic
        assert block is not None
        first[block] = min(first.get(block, math.inf), drawn[worker])
    assert run_latency(spec).total == pytest.approx(spec.unit * 2 * max(first.values()))


def test_dead_workers_cost_coded_schemes_nothing_and_uncoded_ones_much() -> None:
    coded = run_latency(ideal("rkrp/oneshot:grid=4x4,tasks=20,systematic=no", "dead:0.1", seed=3))
    assert coded.outcome == "complete"
    assert coded.collect == pytest.approx(coded.unit * 20 / 16)
    plain = run_latency(ideal("uncoded/oneshot:grid=4x5,tasks=20", "dead:0.1", seed=3))
    assert plain.outcome == "complete"
    assert plain.computed > 0  # by the master, after waiting
    assert plain.total > 2 * plain.unit


def test_announced_deaths_are_repaired_at_once() -> None:
    quiet = run_latency(ideal("fr/pull", "dead:0.3", seed=2))
    told = run_latency(ideal("fr/pull", "lost:0.3", seed=2))
    assert quiet.outcome == told.outcome == "complete"
    assert told.total < quiet.total


def test_pull_beats_oneshot_where_speeds_differ() -> None:
    pull, oneshot = (
        run_latency(ideal(f"uncoded/{d}", "shifted-exponential:1@worker", 40)) for d in ("pull", "oneshot")
    )
    assert pull.total < oneshot.total


def test_repairs_beat_no_repairs() -> None:
    coded, plain = (run_latency(ideal(s, "pareto:1.2", 40)) for s in ("fr/pull", "uncoded/pull"))
    assert coded.total < plain.total
    assert coded.repairs > 0


@pytest.mark.parametrize("scheme", [s for s in all_schemes(12) if not s.startswith("sparse")])
def test_every_scheme_completes_without_stragglers(scheme: str) -> None:
    result = run_latency(ideal(scheme, "none", 12))
    assert result.outcome == "complete" or (scheme == "flt/oneshot" and result.computed)
    assert result.total >= 0.99 * result.unit * (1 if "replication" not in scheme else 0.99)


# ---- the master ----------------------------------------------------------------------------------------------------


def test_bytes_and_link_seconds_add_up() -> None:
    spec = Latency("uncoded/oneshot:grid=4x5,tasks=20", 20, "none", SIZE)
    result = run_latency(spec)
    s, r, t = SIZE
    assert result.sent == 20 * 8 * s * (r // 4 + t // 5)
    assert result.received == 8 * r * t
    assert result.send == pytest.approx(result.sent / spec.profile.bandwidth)
    assert result.receive == pytest.approx(result.received / spec.profile.bandwidth)
    assert 0 < result.load < 1
    assert result.total > result.unit


def test_a_master_that_feeds_too_many_is_the_bottleneck() -> None:
    """Its link is busy throughout; the time is that of the bytes."""
    result = run_latency(Latency("uncoded/pull", 1000, "none", (10_000, 10_000, 10_000)))
    assert result.load > 0.9
    assert result.total >= (result.sent + result.received) / PROFILES["default"].bandwidth


def test_coded_chunks_are_encoded_once_while_they_are_kept() -> None:
    profile = MachineProfile(copy=1e9)
    costs = TaskCosts(Partition(Grid(4, 4), 100, 400, 400), profile, 8, (1, 2))
    size = 100 * 100 * 8
    a, b = Combination.of(range(4), [1.0, -1.0, 1.0, 1.0]), Combination.unit(2)
    first = Assignment.pair(0, a, b, 4)
    assert costs.encode(first) == pytest.approx((4 * 3 + 2) * size / 1e9)
    assert costs.encode(first) == 0
    assert costs.encode(Assignment.pair(1, Combination.unit(0), b, 4)) == pytest.approx(2 * size / 1e9)
    assert costs.encode(first) == pytest.approx(4 * 3 * size / 1e9)  # a was dropped, b was kept


def test_profiles_are_read_from_json(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(MachineProfile(gemm=1e12, name="big").to_json())
    assert MachineProfile.named(str(path)) == MachineProfile(gemm=1e12, name="big")
    path.write_text('{"gemm": 1e12, "speed": 3}')
    with pytest.raises(DataError, match="--profile"):
        MachineProfile.load(path)
    with pytest.raises(InputMissingError):
        MachineProfile.load(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"profile\.gemm"):
        MachineProfile(gemm=0)


# ---- models of workers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "mean"), [("shifted-exponential:2", 1.5), ("pareto:3", 1.5)])
def test_laws_have_their_means(model: str, mean: float) -> None:
    population = Population(parse_models(model), 200, 5, 1.0)
    drawn = np.array([population.finish(w, 0.0, 1.0) for w in range(1, 201) for _ in range(20)])
    assert drawn.min() >= 1
    assert abs(drawn.mean() - mean) < 6 * drawn.std() / math.sqrt(len(drawn))


def test_drawn_once_a_worker() -> None:
    population = Population(parse_models("pareto:1.5@worker"), 3, 0, 1.0)
    for worker in (1, 2, 3):
        assert len({population.finish(worker, 0.0, 1.0) for _ in range(5)}) == 1


def test_bursty_workers_lose_the_share_they_are_slow() -> None:
    """Work done in a long time: (1 − share) + share / F of it."""
    population = Population(parse_models("bursty:10:0.2:1"), 40, 1, 1.0)
    ends = np.array([population.finish(w, 0.0, 2000.0) for w in range(1, 41)])
    assert abs(2000 / ends.mean() - (0.8 + 0.2 / 10)) < 0.01


def test_bursts_do_not_depend_on_how_work_is_cut() -> None:
    whole, cut = (Population(parse_models("bursty:5:0.3:2"), 1, 9, 1.0) for _ in range(2))
    time = 0.0
    for _ in range(50):
        time = cut.finish(1, time, 0.7)
    assert time == pytest.approx(whole.finish(1, 0.0, 35.0))


def test_traces_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("worker,seconds\na,2\na,4\nb,2\n")
    population = Population(parse_models(f"trace:{path}"), 3, 0, 1.0)
    assert [population.finish(1, 0.0, 3.0) for _ in range(3)] == [3.0, 6.0, 3.0]
    assert population.finish(2, 0.0, 3.0) == 3.0
    assert population.finish(3, 0.0, 3.0) == 3.0  # worker 3 replays a
    report = tmp_path / "report.json"
    report.write_text('{"workers": [{"rank": 1, "task_seconds": [2, 4]}, {"rank": 2, "task_seconds": [2]}]}')
    assert parse_models(f"trace:{report}")[0].factors == parse_models(f"trace:{path}")[0].factors  # type: ignore[attr-defined]
    path.write_text("worker,seconds\na,-1\n")
    with pytest.raises(DataError):
        parse_models(f"trace:{path}")


@pytest.mark.parametrize("text", ["", "slow", "pareto", "pareto:0", "pareto:x", "bursty:2", "bursty:0.5:0.1:1",
                                  "dead:2", "dead:0.1@worker", "pareto:1.5@rank", "pareto:nan"])  # fmt: skip
def test_models_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--model"):
        parse_models(text)


@pytest.mark.parametrize("text", ["frr/pull", "fr/push", "fr/pull:grid"])
def test_schemes_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        split_scheme(text)


# ---- sweeps ----------------------------------------------------------------------------------------------------


def test_runs_repeat_and_refusals_are_rows() -> None:
    spec = ideal("fr/pull", "pareto:1.5+dead:0.1")
    assert run_latency(spec, 3) == run_latency(spec, 3)
    assert run_latency(spec, 3) != run_latency(spec, 4)
    refused = run_latency(ideal("uncoded/pull:grid=2x2,tasks=9", "none"))
    assert refused.outcome == "refused"
    assert "--tasks" in refused.remark


@pytest.mark.parametrize(("name", "value"), [("trial", "-1"), ("key", "0"), ("total", "-3.0"), ("K", "-4"),
                                             ("load", "1e400"), ("collect", "soon")])  # fmt: skip
def test_cells_that_no_run_writes_are_refused(tmp_path: Path, name: str, value: str) -> None:
    path, spec = tmp_path / "latency.csv", ideal("fr/pull", "pareto:1.5")
    LatencyStore(path).add(LatencyRow(spec, 0, run_latency(spec)))
    heading, cells = csv.reader(path.read_text().splitlines())
    with path.open("w", newline="") as file:
        row = dict(zip(heading, cells, strict=True)) | {name: value}
        csv.writer(file, lineterminator="\n").writerows([heading, row.values()])
    with pytest.raises(DataError, match="line 2 cannot be read"):
        LatencyStore(path)


def test_rows_round_trip_and_sweeps_resume(tmp_path: Path) -> None:
    path = tmp_path / "latency.csv"
    specs = [ideal("fr/pull", "pareto:1.5"), ideal("uncoded/pull:grid=2x2,tasks=9", "none")]
    store = LatencyStore(path)
    for spec in specs:
        store.add(LatencyRow(spec, 0, run_latency(spec)))
    again = LatencyStore(path)
    assert again.missing(specs, 2) == [(specs[0], 1), (specs[1], 1)]
    assert again.of(specs[0]) == store.of(specs[0])
    assert isinstance(again.of(specs[1])[0], LatencyResult)
    assert again.of(specs[1])[0].remark == store.of(specs[1])[0].remark
