"""Wrong results of every kind are found, honest ones are not refused: the short form of benchmarks/corruption.py."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.corruption import DTYPES, FAULTS, KINDS, SETTINGS, Job, bits, corrupt, honest
from cmm.verify.freivalds import ResultCheck, Verdict


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_fault_is_missed(dtype: str) -> None:
    tallies = corrupt(90, 1, [dtype])
    assert set(tallies) == {(fault, dtype) for fault in FAULTS}
    for (fault, _), tally in tallies.items():
        assert tally.missed == 0, fault
        assert tally.results >= 90
        assert tally.detected + tally.below == tally.faults
        assert tally.of_claim <= 1
    assert tallies["NaN", dtype].below == 0
    assert tallies["one bit flipped", dtype].detected > 10 * 90


def test_gross_faults_are_always_found_where_c_is_not_rounding_noise() -> None:
    tallies = corrupt(40, 2, ["float32", "complex128"], ["normal", "bad scale", "heavy tails"], SETTINGS[:3])
    for dtype in ("float32", "complex128"):
        for fault in ("zeros: the block", "swapped", "stale", "NaN"):
            assert tallies[fault, dtype].detected == tallies[fault, dtype].faults >= 40, fault


def test_a_relative_change_of_1e_6_is_always_found_in_double_precision() -> None:
    tallies = corrupt(90, 3, ["float64"], ["normal", "positive"], SETTINGS[:3])
    found = tallies["one element off by 1e-6", "float64"]
    assert found.detected >= 0.98 * found.faults  # an element can be as small as it likes
    assert found.largest < 1e-12


def test_the_control_sees_what_a_check_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a check that accepts everything the same count has hundreds of misses."""
    monkeypatch.setattr(ResultCheck, "check", lambda *args: Verdict(True, 0.0, 1e-15, 1e-15))
    tallies = corrupt(30, 4, ["float64"], ["normal"])
    assert tallies["swapped", "float64"].missed >= 30
    assert tallies["NaN", "float64"].missed >= 30
    assert tallies["one bit flipped", "float64"].missed > 500


def test_all_bits_are_flipped_in_turn() -> None:
    block = np.ones((2, 2), "f4")
    flipped = [int((bad.reshape(-1).view("u4") ^ block.reshape(-1).view("u4"))[3]) for bad in bits(block, 3)]
    assert flipped == [1 << bit for bit in range(12, 32)]


def test_honest_results_are_not_refused() -> None:
    found = honest(2000, 5)
    assert sum(len(tally.ratios) for tally in found.values()) >= 2000
    assert all(tally.refused == 0 for tally in found.values())
    assert all(tally.recomputed <= 0.1 * len(tally.ratios) for tally in found.values())


def test_jobs_of_every_kind_of_data_can_be_made() -> None:
    rng = np.random.default_rng(6)
    for kind in KINDS:
        job = Job(SETTINGS[0], kind, "complex64", rng)
        task = job.code.task(job.code.P - 1)
        assert job.check.check(task, 0, job.work(task)[0]).ok, kind
