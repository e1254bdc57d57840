"""Arrival models: what arrives, in what order, and that losses are grouped as the model says."""

from __future__ import annotations

import numpy as np
import pytest

from cmm.core.errors import UsageError
from cmm.simulate.arrivals import Arrival
from cmm.simulate.experiment import CodeSpec

CODE = CodeSpec("fr", "6x6", 60, (("groups", "3x3"),)).build(5)


@pytest.mark.parametrize("text", ["uniform", "ranks:7", "clustered:5"])
def test_every_task_arrives_once(text: str) -> None:
    order = Arrival.parse(text).order(CODE, np.random.default_rng(1))
    assert sorted(order.tolist()) == list(range(60))


def test_systematic_first_loses_systematic_tasks_only() -> None:
    rng = np.random.default_rng(2)
    lost = 0
    for _ in range(200):
        order = Arrival.parse("systematic:0.25").order(CODE, rng)
        kept = int(np.sum(order < 36))
        assert set(order[:kept].tolist()) <= set(range(36))
        assert order[kept:].tolist() == list(range(36, 60))
        lost += 36 - kept
    assert abs(lost / (200 * 36) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / (200 * 36))


def test_ranks_are_lost_as_a_whole() -> None:
    rng = np.random.default_rng(3)
    order = Arrival.parse("ranks:12").order(CODE, rng)  # 5 tasks a rank
    handed = CODE.order(np.random.default_rng(3), 12)
    rank = {task: position % 12 for position, task in enumerate(handed)}
    missing = order[60 - 15 :]
    assert len({rank[int(task)] for task in missing}) == 3


def test_clusters_are_runs_as_handed_out() -> None:
    order = Arrival.parse("clustered:10").order(CODE, np.random.default_rng(4))
    handed = CODE.order(np.random.default_rng(4), 0)
    place = {task: position for position, task in enumerate(handed)}
    places = [place[int(task)] for task in order]
    for start in range(0, 60, 10):
        assert places[start : start + 10] == list(range(places[start], places[start] + 10))
    assert places != sorted(places)


@pytest.mark.parametrize("text", ["uniform", "systematic:0.1", "ranks:16", "clustered:3"])
def test_round_trip(text: str) -> None:
    assert str(Arrival.parse(text)) == text
    assert Arrival.parse(str(Arrival.parse(text))) == Arrival.parse(text)


@pytest.mark.parametrize("text", ["", "uniform:3", "systematic:1", "systematic:x", "ranks", "ranks:0", "ranks:2.5",
                                  "clustered:-1", "nearest:2"])  # fmt: skip
def test_refusals_name_the_flag(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        Arrival.parse(text)
    assert refused.value.argument == "--arrival"


def test_systematic_first_needs_a_systematic_code() -> None:
    code = CodeSpec("flt", "4x4", 60).build(1)
    with pytest.raises(UsageError, match="no systematic tasks"):
        Arrival.parse("systematic:0.1").order(code, np.random.default_rng(0))
