"""Degree distributions, factor pairs and subsets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.core.errors import ExitCode, UsageError
from cmm.core.rng import generator
from cmm.linalg.degrees import DegreeDistribution, factor_pairs, sample_pairs, sample_subsets

PAPER = "0.013x+0.5x^2+0.1661x^3+0.0726x^4+0.0826x^5+0.0581x^8+0.0340x^9+0.0576x^18+0.0160x^66"


@pytest.mark.parametrize(
    ("text", "symbols", "mean"),
    [(PAPER, 1, 5.0783), ("fr", 1, 5.0783), ("r10", 1, 4.6314), ("raptorq", 1, 4.8166),
     ("robust-soliton:0.03:0.5", 10000, 14.426), ("soliton", 4, 1 / 4 + 1 + 1 / 2 + 1 / 3)],
)  # fmt: skip
def test_means_are_those_of_the_sources(text: str, symbols: int, mean: float) -> None:
    omega = DegreeDistribution.parse(text, symbols)
    assert omega.mean == pytest.approx(mean, rel=1e-4)
    assert sum(omega.weights) == pytest.approx(1, abs=1e-12)


def test_the_polynomial_and_the_name_are_one_distribution() -> None:
    named, written = DegreeDistribution.parse("fr", 6400), DegreeDistribution.parse(PAPER, 6400)
    assert named == written
    assert hash(named) == hash(written)
    assert DegreeDistribution.parse(str(DegreeDistribution.of({1: 0.25, 3: 0.75})), 1).weights == (0.25, 0.75)


@pytest.mark.parametrize(
    ("text", "word"),
    [("fr2", "polynomial"), ("0.5x+0.6x^2", "sum to 1"), ("-0.5x", "polynomial"), ("", "polynomial"),
     ("robust-soliton", "DELTA"), ("robust-soliton:0.1:2", "DELTA"), ("0.5x+0.5x^0", "at least 1"), ("nanx", "polyn")],
)  # fmt: skip
def test_unreadable_distributions_are_refused(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        DegreeDistribution.parse(text, 10)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.remedy


@given(st.integers(1, 80), st.integers(1, 12), st.integers(1, 12))
def test_uniform_pairs_are_all_factorisations(degree: int, m: int, n: int) -> None:
    expected = {(a, b) for a in range(1, m + 1) for b in range(1, n + 1) if a * b == degree}
    assert set(factor_pairs(degree, m, n)) == expected
    assert set(factor_pairs(degree, m, n, "balanced")) <= expected
    assert set(factor_pairs(degree, m, n, "one-sided")) == {pair for pair in expected if 1 in pair}


def test_balanced_pairs_come_in_both_orientations() -> None:
    assert factor_pairs(18, 82, 82, "balanced") == ((3, 6), (6, 3))
    assert factor_pairs(9, 82, 82, "balanced") == ((3, 3),)
    assert factor_pairs(66, 12, 12) == ((6, 11), (11, 6))
    with pytest.raises(UsageError, match="pair_rule"):
        factor_pairs(4, 4, 4, "widest")


def test_degrees_without_a_factor_pair_are_refused_by_name() -> None:
    omega = DegreeDistribution.parse("fr", 1)
    omega.check(12, 12)
    with pytest.raises(UsageError, match=r"d_A ≤ 6.*degrees 66.*infeasible=drop"):
        omega.check(6, 6)
    assert omega.infeasible(80, 80, "one-sided") == ()
    assert omega.restricted(6, 6).degrees == (1, 2, 3, 4, 5, 8, 9, 18)
    assert sum(omega.restricted(4, 4).weights) == pytest.approx(1)
    with pytest.raises(UsageError, match="factor pair"):
        DegreeDistribution.of({7: 1.0}).restricted(3, 3)


def test_sampled_degrees_follow_the_distribution_and_pairs_the_rule() -> None:
    omega, count = DegreeDistribution.parse("fr", 1), 200_000
    d_a, d_b = sample_pairs(omega, 82, 82, "uniform", generator(1, "pairs"), count)
    degrees = d_a * d_b
    for degree, weight in zip(omega.degrees, omega.weights, strict=True):
        mine = degrees == degree
        assert abs(mine.mean() - weight) < 5 * np.sqrt(weight / count)
        pairs = factor_pairs(degree, 82, 82)
        for pair in pairs:
            share = ((d_a == pair[0]) & mine).sum() / mine.sum()
            assert abs(share - 1 / len(pairs)) < 5 * np.sqrt(1 / len(pairs) / mine.sum())


@given(st.integers(1, 40), st.integers(0, 2**20))
def test_subsets_are_increasing_distinct_and_of_the_size_asked(population: int, seed: int) -> None:
    rng = generator(seed, "subsets")
    sizes = rng.integers(1, population + 1, size=30)
    indptr, indices = sample_subsets(sizes, population, rng)
    assert (np.diff(indptr) == sizes).all()
    for a, b in pairwise(indptr):
        assert (np.diff(indices[a:b]) > 0).all()
        assert indices[a] >= 0
        assert indices[b - 1] < population


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
def test_subsets_are_uniform(size: int) -> None:
    """Both ways of drawing (again after a repetition, or by sorting keys) hit every element alike."""
    count, population = 40_000, 10
    _, indices = sample_subsets(np.full(count, size), population, generator(2, "uniform", size))
    share = np.bincount(indices, minlength=population) / count
    assert np.abs(share - size / population).max() < 5 * np.sqrt(size / population / count)
