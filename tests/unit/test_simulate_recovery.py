"""Monte Carlo against what is known exactly, against brute force, and against published figures (few trials here)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cmm.codes.defaults import choose
from cmm.codes.registry import CODES
from cmm.core.errors import UsageError
from cmm.simulate.arrivals import Arrival
from cmm.simulate.experiment import CodeSpec, Experiment
from cmm.simulate.received import ScalarProblem, make_decoder, make_peeler
from cmm.simulate.recovery import refusal, run, run_trial
from cmm.simulate.statistics import Store
from cmm.simulate.sweep import sweep

UNIFORM = Arrival("uniform")
PAPER = (("coefficients", "signs"), ("construction", "paper"))


def experiment(name: str, grid: str, tasks: int, results: int | None, decoder: str = "auto", *,
               params: tuple[tuple[str, str], ...] = (), errors: bool = True) -> Experiment:  # fmt: skip
    kind = "threshold" if results is None else "recovery"
    return Experiment(kind, CodeSpec(name, grid, tasks, params), UNIFORM, decoder, results, seed=7, errors=errors)


@pytest.mark.parametrize(("name", "tasks", "results"), [("rkrp", 12, 9), ("uncoded", 9, 9), ("polynomial", 12, 9),
                                                       ("orthopoly", 12, 9), ("replication", 18, 18)])  # fmt: skip
def test_codes_with_a_certain_threshold_never_fail_at_it(name: str, tasks: int, results: int) -> None:
    stats = run(experiment(name, "3x3", tasks, results), 20)
    assert stats.failures == 0
    assert 0 <= stats.error_max < 1e-9


def test_one_result_less_than_the_unknowns_always_fails() -> None:
    stats = run(experiment("rkrp", "3x3", 12, 8), 10)
    assert stats.failures == 10
    assert stats.kinds == {"incomplete": 10}


def test_the_threshold_of_copies_is_that_of_the_coupon_collector() -> None:
    """4 products, two copies of each: P(done after 4 of 8 results) is 2^4 / C(8,4) = 0.2286."""
    stats = run(experiment("replication", "2x2", 8, None), 400)
    share = stats.thresholds.get(4, 0) / 400
    assert abs(share - 16 / 70) < 5 * np.sqrt(0.23 * 0.77 / 400)
    assert max(stats.thresholds) <= 7  # P - P/K + 1


@pytest.mark.parametrize(("name", "grid", "tasks", "params", "decoder"), [
    ("fr", "8x8", 140, PAPER, "peeling+outer"), ("fr", "8x8", 250, PAPER, "peeling"),
    ("flt", "5x6", 200, (), "peeling"), ("lt", "30x1", 60, (), "peeling"),
    ("product", "6x6", 81, (("axes", "9:6x9:6"),), "peeling+outer"),
])  # fmt: skip
def test_growing_peeling_agrees_with_peeling_from_the_start(name: str, grid: str, tasks: int, decoder: str,
                                                            params: tuple[tuple[str, str], ...]) -> None:  # fmt: skip
    reached = 0
    for number in range(12):
        x = experiment(name, grid, tasks, None, decoder, params=params, errors=False)
        code, rng = x.trial(number)
        peeler = make_peeler(code, x.arrival.order(code, rng), decoder)
        least = peeler.threshold()
        if least is None:
            assert not peeler.decodes(tasks)
            continue
        reached += 1
        assert peeler.decodes(least)
        assert not peeler.decodes(least - 1)
    assert reached >= 6


def test_inactivation_needs_no_more_than_peeling() -> None:
    params = (("coefficients", "signs"), ("construction", "paper"))
    peeling = run(experiment("fr", "10x10", 220, None, "peeling+outer", params=params, errors=False), 15)
    exact = run(experiment("fr", "10x10", 220, None, "inactivation", params=params), 15)
    assert exact.failures <= peeling.failures
    assert exact.threshold_quantile(0.5) < peeling.threshold_quantile(0.5)
    assert exact.threshold_quantile(0.5) <= 105


@pytest.mark.parametrize("name", sorted(CODES))
def test_scalar_blocks_are_decoded_as_accurately_as_promised(name: str) -> None:
    """Every registered code, from its default P: what the plan solves is what the products are."""
    grid, tasks = choose(12, 60, 60, 60, code=name, dispatch="oneshot")
    spec = CodeSpec(name, str(grid), tasks)
    errors = []
    for number in range(3):
        x = Experiment("recovery", spec, UNIFORM, "auto", tasks, seed=number, errors=True)
        trial = run_trial(x, 0)
        assert trial.failure is None or name in ("flt", "lt", "sparse")
        errors += [] if trial.error is None else [trial.error]
    assert all(error < 1e-8 for error in errors)


def test_what_workers_return_is_the_row_times_the_products() -> None:
    for name, grid in (("rotation", "4x4"), ("sparse", "3x4"), ("matdot", "3x1x1")):
        code = CodeSpec(name, grid, 14).build(3)
        problem = ScalarProblem(code, np.random.default_rng(0))
        for (task, output), value in problem.results(range(5)).items():
            row = code.rows(code.task(task))[output]
            assert abs(value - (row.values @ problem.unknowns[row.indices, 0])) < 1e-10


def test_a_lost_digit_shows_in_the_error() -> None:
    """A control: the error of a plan applied to wrong products is large."""
    code = CodeSpec("rkrp", "3x3", 12).build(1)
    decoder = make_decoder(code, "dense")
    for task in range(3, 12):
        decoder.add(task, code.rows(code.task(task)))
    assert decoder.decodable()
    problem = ScalarProblem(code, np.random.default_rng(0))
    assert problem.relative_error(decoder.plan()) < 1e-12
    problem.unknowns[4] *= 1.001
    assert problem.relative_error(decoder.plan()) > 1e-6


def test_results_do_not_depend_on_batches_or_processes(tmp_path: Path) -> None:
    points = [experiment("fr", "5x5", 40, n, params=(("groups", "3x2"),)) for n in (26, 28)]
    alone = sweep(points, 8, Store(), processes=1, progress=False, batch=8)
    spread = sweep(points, 8, Store(tmp_path / "x.csv"), processes=2, progress=False, batch=3)
    for x in points:
        one, other = alone.total(x), spread.total(x)
        assert {**one.__dict__, "seconds": 0} == {**other.__dict__, "seconds": 0}


def test_refusals_come_before_anything_runs() -> None:
    bad = experiment("rkrp", "3x3", 5, 5)
    assert isinstance(refusal(bad), UsageError)
    with pytest.raises(UsageError, match="--tasks"):
        sweep([bad], 3, Store(), processes=1, progress=False)
    with pytest.raises(UsageError, match="no outer code"):
        sweep([experiment("rkrp", "3x3", 12, 9, "peeling+outer", errors=False)], 1, Store(), 1, False)


# ---- the reference case of arXiv 1907.11018: the full runs are in docs/figures ---------------------------------


REFERENCE = CodeSpec("fr", "80x80", 10000, (*PAPER, ("outer", "82x82")))


def test_reference_case_peels_at_7060() -> None:
    assert run(Experiment("recovery", REFERENCE, UNIFORM, "peeling+outer", 7060, seed=1), 10).failures == 0


def test_reference_case_has_its_published_threshold() -> None:
    """Median 6857, standard deviation 48 (20 000 trials): the mean of 16 within four standard errors."""
    stats = run(Experiment("threshold", REFERENCE, UNIFORM, "peeling+outer", seed=1), 16)
    needed = np.repeat(list(stats.thresholds), list(stats.thresholds.values()))
    assert abs(needed.mean() - 6857) < 4 * 48 / 4


def test_three_dimensional_product_has_its_published_threshold() -> None:
    code = CodeSpec("product", "18x361", 10164, (("axes", "21:18x22:19x22:19"),))
    stats = run(Experiment("threshold", code, UNIFORM, "peeling+outer", seed=1), 16)
    needed = np.repeat(list(stats.thresholds), list(stats.thresholds.values()))
    assert abs(needed.mean() - 7167) < 4 * 35 / 4


def test_systematic_rounds_need_a_handful_of_results_more_than_blocks() -> None:
    code = CodeSpec("fr", "30x30", 1500, (("groups", "10x5"),))
    for alpha in (0.1, 0.3):
        stats = run(Experiment("threshold", code, Arrival("systematic", alpha), "auto", errors=True, seed=2), 5)
        assert stats.failures == 0
        assert stats.threshold_quantile(0.5) <= 900 + 4
        assert stats.error_max < 1e-10
