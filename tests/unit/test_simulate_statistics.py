"""Statistics that add up, intervals that mean what they say, files that are merged and resumed."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from cmm.core.errors import DataError, UsageError
from cmm.simulate.arrivals import Arrival
from cmm.simulate.experiment import CodeSpec, Experiment
from cmm.simulate.recovery import run
from cmm.simulate.statistics import Batch, Stats, Store, error_bin, likelihood_interval, merged
from cmm.simulate.sweep import jobs

CODE = CodeSpec("rkrp", "3x3", 12)
POINT = Experiment("recovery", CODE, Arrival("uniform"), "auto", 9, seed=3, errors=True)
OTHER = Experiment("recovery", CODE, Arrival("uniform"), "auto", 8, seed=3, errors=True)


def untimed(stats: Stats) -> Stats:
    return Stats(**{**stats.__dict__, "seconds": 0.0})


def log_likelihood(p: float, failures: int, trials: int) -> float:
    return failures * math.log(p) + (trials - failures) * math.log1p(-p)


@pytest.mark.parametrize(("failures", "trials"), [(2, 100), (37, 40), (1, 2000), (500, 1000)])
def test_edges_of_the_interval_are_a_thousand_times_less_likely(failures: int, trials: int) -> None:
    low, high = likelihood_interval(failures, trials)
    best = log_likelihood(failures / trials, failures, trials)
    assert low < failures / trials < high
    for edge in (low, high):
        assert best - log_likelihood(edge, failures, trials) == pytest.approx(math.log(1000), abs=1e-6)


def test_intervals_without_failures() -> None:
    low, high = likelihood_interval(0, 2000)
    assert low == 0
    assert high == pytest.approx(1 - 1000 ** (-1 / 2000))
    assert likelihood_interval(5, 5)[1] == 1
    assert likelihood_interval(0, 0) == (0, 1)


def test_parts_add_up_to_the_whole() -> None:
    whole, first, second = run(POINT, 12), run(POINT, 5), run(POINT, 7, first=5)
    assert untimed(first + second) == untimed(whole)
    assert untimed(second + first) == untimed(whole)
    assert whole.trials == 12
    assert sum(whole.errors.values()) == 12


def test_quantiles() -> None:
    stats = Stats(trials=10, failures=2, thresholds={9: 3, 10: 4, 12: 1}, errors={error_bin(1e-14): 8})
    assert stats.threshold_quantile(0.3) == 9
    assert stats.threshold_quantile(0.7) == 10
    assert stats.threshold_quantile(0.8) == 12
    assert stats.threshold_quantile(0.9) == math.inf  # failures count
    assert stats.error_median == pytest.approx(1e-14, rel=0.13)


def test_rows_round_trip() -> None:
    batch = Batch(POINT, 5, run(POINT, 4, first=5))
    names = ("key", "first_trial", "trials", "failures", "error_max", "inactivations", "inactivations_max",
             "block_operations", "seconds", "counts", "experiment")  # fmt: skip
    columns = dict(zip(Store.columns(), batch.to_row(), strict=True))
    read = Batch.from_row({name: columns[name] for name in names})
    assert read.experiment == POINT
    assert untimed(read.stats) == untimed(batch.stats)
    assert read.numbers == range(5, 9)


def test_a_file_is_resumed_and_repeated_trials_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    store = Store(path)
    store.add(Batch(POINT, 0, run(POINT, 3)))
    store.add(Batch(POINT, 2, run(POINT, 3, first=2)))  # overlaps: ignored
    again = Store(path)
    assert untimed(again.total(POINT)) == untimed(store.total(POINT))
    assert again.total(POINT).trials == 3
    assert jobs([POINT, OTHER], 8, again, batch=4) == [(POINT, 3, 4), (POINT, 7, 1), (OTHER, 0, 4), (OTHER, 4, 4)]
    assert len(list(csv.reader(path.read_text().splitlines()))) == 2


def test_a_line_cut_off_in_the_middle_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    store = Store(path)
    for first in (0, 2):
        store.add(Batch(POINT, first, run(POINT, 2, first=first)))
    path.write_text(path.read_text()[:-40])
    again = Store(path)
    assert again.total(POINT).trials == 2
    again.add(Batch(POINT, 2, run(POINT, 2, first=2)))
    assert Store(path).total(POINT).trials == 4


def test_files_are_merged(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in ("a.csv", "b.csv")]
    for first, store in zip((0, 3), stores, strict=True):
        store.add(Batch(POINT, first, run(POINT, 3, first=first)))
    both = merged(stores)
    assert untimed(both.total(POINT)) == untimed(run(POINT, 6))
    together = tmp_path / "c.csv"
    together.write_text("".join(store.path.read_text() for store in stores if store.path))
    assert untimed(Store(together).total(POINT)) == untimed(both.total(POINT))


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="--csv"):
        Store(path)


@pytest.mark.parametrize(("name", "value"), [
    ("trials", "-4"), ("failures", "5"), ("first_trial", "x"), ("error_max", "-1"), ("seconds", "1e400"), ("key", "0"),
    ("block_operations", "-1"), ("experiment", "{}"), ("counts", "[]"),
])  # fmt: skip
def test_cells_that_no_sweep_writes_are_refused(tmp_path: Path, name: str, value: str) -> None:
    store = Store(tmp_path / "a.csv")
    store.add(Batch(POINT, 0, run(POINT, 4)))
    assert store.path is not None
    with store.path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    with store.path.open("w", newline="") as file:
        writer = csv.DictWriter(file, Store.columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerow(row | {name: value})
    with pytest.raises(DataError, match="line 2 cannot be read"):
        Store(store.path)


def test_a_changed_experiment_is_another_one() -> None:
    keys = {x.key for x in (
        POINT, OTHER,
        Experiment("recovery", CODE, Arrival("ranks", 4), "auto", 9, seed=3, errors=True),
        Experiment("recovery", CODE, Arrival("uniform"), "dense", 9, seed=3, errors=True),
        Experiment("recovery", CODE, Arrival("uniform"), "auto", 9, seed=4, errors=True),
        Experiment("threshold", CODE, Arrival("uniform"), "auto", None, seed=3, errors=True),
    )}  # fmt: skip
    assert len(keys) == 6
    assert Experiment.from_dict(POINT.describe()) == POINT
    assert CodeSpec("rkrp", "3x3", 12, (("b", "1"), ("a", "2"))) == CodeSpec(
        "rkrp", "3x3", 12, (("a", "2"), ("b", "1"))
    )


@pytest.mark.parametrize("changes", [{"kind": "speed"}, {"decoder": "guess"}, {"results": 13}, {"results": None},
                                     {"decoder": "peeling"}])  # fmt: skip
def test_experiments_that_mean_nothing_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Experiment(**{**POINT.__dict__, **changes})  # type: ignore[arg-type]
