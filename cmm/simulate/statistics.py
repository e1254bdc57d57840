"""What trials gave: addable counts, one CSV row each; and likelihood intervals of failure probabilities."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from cmm.simulate.experiment import Experiment
from cmm.simulate.rows import CsvFile, read_cell

BINS = 20  # of relative errors, per decade
LIKELIHOOD_FACTOR = 1000.0  # as in sinter: hypotheses up to so many times less likely than the best one


@dataclass(frozen=True)
class Stats:
    """Counts of some trials of one experiment; `+` adds them.

    Attributes
    ----------
    trials, failures : how many, and how many did not decode
    kinds : failure kind -> number
    errors : relative errors of C, binned: floor(20 log10 error) -> number (-∞ counts as 1e-300)
    error_max : largest relative error
    thresholds : smallest decodable N -> number
    inactivations, inactivations_max : sum and largest number of inactive symbols
    operations : sum of block operations of the plans
    seconds : computing time
    """

    trials: int = 0
    failures: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[int, int] = field(default_factory=dict)
    error_max: float = 0.0
    thresholds: Mapping[int, int] = field(default_factory=dict)
    inactivations: int = 0
    inactivations_max: int = 0
    operations: int = 0
    seconds: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        merged: dict[str, Any] = {}
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if entry.name in ("error_max", "inactivations_max"):
                merged[entry.name] = max(mine, theirs)
            elif isinstance(mine, Mapping):
                merged[entry.name] = dict(sorted((Counter(mine) + Counter(theirs)).items()))
            else:
                merged[entry.name] = mine + theirs
        return Stats(**merged)

    @property
    def decoded(self) -> int:
        return self.trials - self.failures

    @property
    def failure_rate(self) -> float:
        return self.failures / self.trials if self.trials else math.nan

    def interval(self, factor: float = LIKELIHOOD_FACTOR) -> tuple[float, float]:
        """Failure probabilities at most `factor` times less likely than the observed rate."""
        return likelihood_interval(self.failures, self.trials, factor)

    def error_quantile(self, q: float) -> float:
        """Quantile of the relative error, to the width of a bin (12 %); nan without errors."""
        where = _quantile(self.errors, q)
        return math.nan if where is None else float(10 ** ((where + 0.5) / BINS))

    @property
    def error_median(self) -> float:
        return self.error_quantile(0.5)

    def threshold_quantile(self, q: float) -> float:
        """The least N at which a share q of *all* trials decode; inf when fewer ever do."""
        need = q * self.trials
        seen = 0
        for results, count in sorted(self.thresholds.items()):
            seen += count
            if seen >= need and seen:
                return float(results)
        return math.inf

    @property
    def inactivations_mean(self) -> float:
        return self.inactivations / self.decoded if self.decoded else math.nan

    @property
    def operations_mean(self) -> float:
        return self.operations / self.decoded if self.decoded else math.nan


def error_bin(error: float) -> int:
    """The bin of a relative error."""
    return math.floor(BINS * math.log10(max(error, 1e-300)))


def _quantile(counts: Mapping[int, int], q: float) -> int | None:
    total, seen = sum(counts.values()), 0
    for value, count in sorted(counts.items()):
        seen += count
        if seen >= q * total:
            return value
    return None


def likelihood_interval(failures: int, trials: int, factor: float = LIKELIHOOD_FACTOR) -> tuple[float, float]:
    """(low, high): all p whose binomial likelihood is at least 1/factor of the greatest. (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    best = failures / trials
    floor = _log_likelihood(best, failures, trials) - math.log(factor)

    def edge(inside: float, outside: float) -> float:
        if _log_likelihood(outside, failures, trials) >= floor:
            return outside
        for _ in range(100):
            middle = (inside + outside) / 2
            if _log_likelihood(middle, failures, trials) >= floor:
                inside = middle
            else:
                outside = middle
        return inside

    return edge(best, 0.0), edge(best, 1.0)


def _log_likelihood(p: float, failures: int, trials: int) -> float:
    parts = ((failures, p), (trials - failures, 1 - p))
    if any(count and share <= 0 for count, share in parts):
        return -math.inf
    return sum(count * math.log(share) for count, share in parts if count)


# ---- CSV ---------------------------------------------------------------------------------------------------------

COLUMNS = ("key", "kind", "code", "grid", "P", "arrival", "decoder", "N", "alpha", "first_trial", "trials", "failures",
           "error_median", "error_max", "inactivations", "inactivations_max", "block_operations", "seconds", "counts",
           "experiment")  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Trials `first` … `first + stats.trials - 1` of an experiment: one row."""

    experiment: Experiment
    first: int
    stats: Stats

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.stats.trials)

    def to_row(self) -> list[str]:
        """The fields of COLUMNS. `error_median` is for the reader; `counts` holds what is added up."""
        x, s = self.experiment, self.stats
        alpha = "" if x.alpha is None else f"{x.alpha:.6g}"
        counts = json.dumps({"kinds": s.kinds, "errors": s.errors, "thresholds": s.thresholds}, separators=(",", ":"))
        median = f"{s.error_median:.2e}" if s.errors else ""
        largest = repr(s.error_max) if s.errors else ""
        return [x.key, x.kind, x.code.label, x.code.grid, str(x.code.tasks), str(x.arrival), x.decoder,
                "" if x.results is None else str(x.results), alpha, str(self.first), str(s.trials), str(s.failures),
                median, largest, str(s.inactivations), str(s.inactivations_max), str(s.operations),
                f"{s.seconds:.3f}", counts, x.to_json()]  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Batch:
        """What `to_row` wrote. Raises ValueError, KeyError or TypeError when it did not."""
        counts = json.loads(row["counts"])
        tables = {name: {int(k): int(v) for k, v in counts[name].items()} for name in ("errors", "thresholds")}
        experiment = Experiment.from_dict(json.loads(row["experiment"]))
        if experiment.key != row["key"]:
            raise ValueError("the content hash does not match")
        names = ("first_trial", "trials", "failures", "inactivations", "inactivations_max", "block_operations")
        first, trials, failures, inactivations, most, operations = (read_cell(name, row[name], "int") for name in names)
        largest = read_cell("error_max", row["error_max"] or "0", "signed float")
        if failures > trials or not largest >= 0:
            raise ValueError(f"{failures} failures in {trials} trials, error_max {largest}")
        stats = Stats(trials, failures, dict(counts["kinds"]), tables["errors"], largest, tables["thresholds"],
                      inactivations, most, operations, read_cell("seconds", row["seconds"], "float"))  # fmt: skip
        return cls(experiment, first, stats)


class Store:
    """The rows of a sweep, in memory and (with a path) appended to a CSV file as they come.

    A sweep that was stopped goes on where it stopped; files of different runs can be concatenated. A last line cut off
    in the middle is dropped. Rows that repeat trials are ignored.

    Raises
    ------
    DataError : the file is no CSV of this kind
    OutputError : it cannot be written
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._file = CsvFile(self.path, COLUMNS)
        self.batches: list[Batch] = []
        self._done: dict[str, set[int]] = {}
        self._file.begin(lambda row: self._accept(Batch.from_row(row)))

    @staticmethod
    def columns() -> tuple[str, ...]:
        """The heading."""
        return COLUMNS

    def done(self, experiment: Experiment) -> set[int]:
        """Numbers of the trials there are."""
        return self._done.get(experiment.key, set())

    def add(self, batch: Batch) -> None:
        """Take in a batch and append its row."""
        if self._accept(batch):
            self._file.append(batch.to_row())

    def total(self, experiment: Experiment, trials: int | None = None) -> Stats:
        """All trials of an experiment added up (`trials`: only batches within the first so many)."""
        chosen = (b.stats for b in self.batches if b.experiment.key == experiment.key
                  and (trials is None or b.numbers.stop <= trials))  # fmt: skip
        return sum(chosen, Stats())

    def experiments(self) -> list[Experiment]:
        """Every experiment once, in order of appearance."""
        return list({b.experiment.key: b.experiment for b in self.batches}.values())

    def _accept(self, batch: Batch) -> bool:
        done = self._done.setdefault(batch.experiment.key, set())
        if not done.isdisjoint(batch.numbers):
            return False
        done.update(batch.numbers)
        self.batches.append(batch)
        return True


def merged(stores: Iterable[Store]) -> Store:
    """The batches of several stores together, in memory."""
    result = Store()
    for store in stores:
        for batch in store.batches:
            result.add(batch)
    return result


def quantile_of(values: Iterable[float], q: float) -> float:
    """Quantile of a few values; nan of none."""
    listed = list(values)
    return float(np.quantile(listed, q)) if listed else math.nan
