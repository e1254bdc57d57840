"""Who is overdue: the formula, and that only lateness against one's peers counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.engine.stragglers import Health, Rule, Stragglers


def trained(times: list[float], rule: Rule | None = None) -> Stragglers:
    """Service times of different workers (numbered from 1000), one each."""
    watch = Stragglers(1.0, rule)
    for worker, seconds in enumerate(times, start=1000):
        watch.begin(worker, 0.0)
        assert watch.answer(worker, seconds) == seconds
    return watch


def test_the_limit_is_the_formula() -> None:
    times = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    rule = Rule()
    assert trained(times).limit == pytest.approx(max((2 + 8 / 8) * 1.4, 1.6 + 1.5 * (1.6 - 1.2)) + 0.05)
    assert trained(times).typical == 1.4
    wide = [0.1] * 12 + [1.0] * 4 + [9.0] * 4  # the fence decides: Q3 = 9 would be for a quarter of them, here Q3 = 1.0
    watch = trained(sorted(wide))
    first, third = sorted(wide)[5], sorted(wide)[15]
    assert watch.limit == pytest.approx(third + rule.fence * (third - first) + rule.floor)
    assert watch.hard_limit == rule.hard_factor * watch.limit
    assert trained([0.001] * 20).hard_limit == rule.hard_floor


def test_before_the_first_result_only_a_generous_multiple_of_the_expectation_counts() -> None:
    assert Stragglers(3.0).limit == 30.0
    assert Stragglers(0.001).limit == Rule().prior_floor
    assert Stragglers(None).limit == 10 * Rule().unknown
    watch = Stragglers(1.0)
    watch.begin(1, 0.0)
    assert watch.check(9.99) == []
    assert watch.check(10.0) == [(1, Health.LATE)]
    assert watch.frozen(10.0)  # without any peer the generous limit is far enough


def test_one_late_worker_among_eight_and_it_is_well_again_when_it_answers() -> None:
    watch = trained([1.0] * 8)  # limit 3.05
    for worker in range(1, 9):
        watch.begin(worker, 10.0)
    for worker in range(2, 9):
        watch.answer(worker, 11.0)
    assert watch.check(12.5) == []
    assert watch.check(13.0) == [(1, Health.LATE)]
    assert watch.check(14.0) == []  # told once
    assert watch.active == 0
    assert watch.started(1) == 10.0
    watch.answer(1, 20.0)
    for start in (20.0, 21.0, 22.0):  # at first it is thought to be slow, until it answers quickly
        watch.begin(1, start)
        watch.answer(1, start + 1)
    assert watch.begin(1, 23.0) is Health.HEALTHY


def test_nobody_is_overdue_because_all_are_slower_than_expected() -> None:
    watch = Stragglers(0.001)
    for round_ in range(4):
        for worker in range(1, 9):
            watch.begin(worker, 1.5 * round_)
        assert watch.check(1.5 * round_ + 1.49) == []
        for worker in range(1, 9):
            watch.answer(worker, 1.5 * round_ + 1.5)


def test_a_cold_start_widens_the_limit_and_is_forgotten() -> None:
    watch = trained([3.0] * 8)
    assert watch.limit > 6.0
    for _ in range(40):
        for worker in range(1, 9):
            watch.begin(worker, 0.0)
            watch.answer(worker, 1.0)
    assert watch.limit < 2.2
    assert watch.samples == Rule().window


def test_a_slow_worker_is_late_while_a_peer_would_be_sooner() -> None:
    watch = trained([1.0] * 16)  # limit 2.55
    watch.begin(1, 0.0)
    watch.answer(1, 5.0)
    assert watch.estimate(1) == 5.0
    assert watch.begin(1, 5.0) is Health.LATE
    assert watch.check(8.9) == []  # 1.1 s to go, a peer needs 1.0
    assert watch.check(9.1) == [(1, Health.TAIL)]  # the task in work comes sooner than a peer's; those behind it do not
    assert watch.check(5.0 + 1.5 * 5.0) == [(1, Health.LATE)]  # exceeds its own habit


def test_a_worker_with_a_habit_near_the_limit_is_not_late_for_a_little_jitter() -> None:
    watch = trained([1.0] * 64)  # limit 2.18
    for _ in range(3):
        watch.begin(1, 0.0)
        watch.answer(1, 1.9)
    watch.begin(1, 0.0)
    watch.begin(2, 0.0)
    assert watch.check(2.5) == [(2, Health.LATE)]  # no habit known
    assert watch.check(2.9) == [(1, Health.LATE)]  # 1.5 times its habit


def test_one_hiccup_does_not_make_a_worker_slow() -> None:
    watch = trained([1.0] * 16)
    for seconds in (1.0, 1.0, 9.0):
        watch.begin(1, 0.0)
        watch.answer(1, seconds)
    assert watch.begin(1, 0.0) is Health.HEALTHY


def test_frozen_means_everybody_at_work_is_silent_for_longer_than_the_hard_limit() -> None:
    watch = trained([1.0] * 16)  # limit 2.55, hard 7.65
    assert watch.frozen(0.0)  # nobody is at work
    watch.begin(1, 0.0)
    watch.begin(2, 3.0)
    watch.check(4.0)
    assert not watch.frozen(9.0)  # worker 2 has not been judged late yet
    watch.check(9.0)
    assert not watch.frozen(10.6)
    assert watch.frozen(10.7)
    watch.stop(2)
    watch.stop(1)
    assert watch.started(1) is None
    assert watch.answer(1, 12.0) is None


def test_exponential_delays_pass_except_for_the_last_few_per_cent() -> None:
    rng = np.random.default_rng(5)
    watch = trained((0.05 + rng.exponential(0.2, 256)).tolist())
    late = math.exp(-(watch.limit - 0.05) / 0.2)
    assert 0.005 < late < 0.06


HUNDREDTHS = st.integers(1, 500).map(lambda n: n / 100)


@given(st.lists(HUNDREDTHS, max_size=12), st.lists(HUNDREDTHS, min_size=1, max_size=6))
def test_next_change_is_when_something_changes_and_not_earlier(times: list[float], starts: list[float]) -> None:
    watch = trained(times)
    for worker, start in enumerate(sorted(starts), start=1000):  # some of them have a habit
        watch.begin(worker, start)
    now = max(starts)
    watch.check(now)
    for _ in range(4 * len(starts) + 4):
        time = watch.next_change(now)
        if time is None:
            break
        assert time > now
        before = watch.frozen(now)
        early = now + 0.999 * (time - now)
        assert watch.check(early) == []
        assert watch.frozen(early) == before
        now = time
        watch.check(now)
    assert watch.next_change(now) is None
    assert watch.frozen(now)
    assert watch.active == 0
