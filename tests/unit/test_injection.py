"""Injected trouble is seeded, hits whom it should, and corruption is never smaller than promised."""

from __future__ import annotations

import numpy as np
import pytest

from cmm.core.spec import Injection
from cmm.runtime.injection import Injector


def injector(rank: int, *specs: str, seed: int = 0) -> Injector:
    return Injector(rank, [Injection.parse(spec) for spec in specs], seed)


def test_who_is_hit() -> None:
    assert injector(1, "slow:1:3", "slow:all:2").factor == 6
    assert injector(2, "slow:1:3", "slow:all:2").factor == 2
    assert injector(3, "sleep:1-2:5").sleep == 0
    assert injector(2, "freeze:2@1.5", "kill:1").signals[0][1] == 1.5


def test_what_was_to_happen_later_can_be_cancelled() -> None:
    one = injector(2, "freeze:2@1000", "kill:2@1000")
    one.start()
    assert [timer.is_alive() for timer in one.timers] == [True, True]
    one.cancel()
    for timer in one.timers:
        timer.join(10)
    assert [timer.is_alive() for timer in one.timers] == [False, False]


def test_delays_are_seeded() -> None:
    def delays(rank: int, seed: int) -> list[float]:
        found: list[float] = []
        one = injector(rank, "exp:all:0.5", seed=seed)
        for _ in range(4):
            one.before(found.append)
        return found

    assert delays(1, 3) == delays(1, 3)
    assert delays(1, 3) != delays(2, 3)
    assert delays(1, 3) != delays(1, 4)


def test_a_factor_stretches() -> None:
    pauses: list[float] = []
    injector(1, "slow:1:5").after(0.25, pauses.append)
    injector(2, "slow:1:5").after(0.25, pauses.append)
    assert pauses == [1.0]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_corruption_changes_one_element_by_enough(dtype: str) -> None:
    one = injector(1, "corrupt:1")
    for trial in range(200):
        block = np.random.default_rng(trial).standard_normal((4, 5)).astype(dtype)
        block[1, 1] = 0
        before = block.copy()
        one.corrupt(block)
        changed = np.flatnonzero(block != before)
        assert len(changed) == 1
        old, new = before.flat[changed[0]], block.flat[changed[0]]
        size = abs(old) if old != 0 else max(abs(before).max(), 1)
        assert abs(new - old) >= 1e-3 * size


def test_corruption_has_its_probability() -> None:
    one = injector(1, "corrupt:1:0.25")
    hits = 0
    for _ in range(400):
        block = np.ones((2, 2))
        one.corrupt(block)
        hits += bool((block != 1).any())
    assert 60 <= hits <= 140  # 100 +- 4.6 standard deviations of a binomial (400, 1/4)
