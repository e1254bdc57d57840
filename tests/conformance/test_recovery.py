"""Recovery of systematic FR at K = 6400: results needed, and the error of the missing blocks (scalar blocks).

The reduced form always runs; the full form (100 sets each) is marked slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from cmm.codes.base import Code
from cmm.codes.registry import code_class
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.core.task import Array, IntArray
from cmm.linalg.decoder import Decoder
from cmm.linalg.rows import CodedRow

LOSSES = (0.05, 0.10, 0.20, 0.30)
ALLOWED = 10  # results beyond K


@dataclass
class Trial:
    """Excess N - K at the first decodable moment, and the error at N = K + ALLOWED relative to C."""

    excess: int
    error: float


class Scalars:
    """Blocks that are single numbers, with results exact to the last bit of float64."""

    def __init__(self, unknowns: int, seed: int) -> None:
        self.blocks: Array = generator(seed, "blocks").standard_normal(unknowns)
        self._wide = self.blocks.astype(np.longdouble)
        self.results: dict[tuple[int, int], float] = {}

    def compute(self, task: int, row: CodedRow) -> None:
        self.results[task, 0] = float(row.values.astype(np.longdouble) @ self._wide[row.indices])

    def error(self, decoder: Decoder) -> float:
        plan = decoder.plan()
        if not len(plan.missing):
            return 0.0
        known = self.blocks.copy()
        known[plan.missing] = 0
        received = np.array([[self.results[key]] for key in plan.sources])
        solved = plan.solve(known[:, None], received)[:, 0]
        return float(np.linalg.norm(solved - self.blocks[plan.missing]) / np.linalg.norm(self.blocks))


@cache
def source_rows() -> list[tuple[CodedRow, ...]]:
    """Rows of the systematic tasks on an 80 x 80 grid; no seed enters."""
    code = code_class("fr")(Grid(80, 80), 6400)
    return [code.rows(code.task(task)) for task in range(6400)]


def rounds_trial(loss: float, seed: int) -> Trial:
    """Systematic and repair results are lost independently with probability `loss`; repairs without a missing block
    are skipped, since the losses are known."""
    code = code_class("fr")(Grid(80, 80), 10000, seed, "oneshot", {"loss": loss})
    rng = generator(seed, "loss")
    lost = rng.random(code.P) < loss
    scalars, decoder = Scalars(code.unknowns, seed), code.decoder()
    for task in np.flatnonzero(~lost[: code.systematic]).tolist():
        decoder.add(task, source_rows()[task])
    excess = None
    for task in np.flatnonzero(~lost[code.systematic :]).tolist():
        [row] = code.rows(code.task(code.systematic + task))
        if not lost[row.indices].any():
            continue
        decoder.add(code.systematic + task, [row])
        scalars.compute(code.systematic + task, row)
        if excess is None and decoder.results >= code.systematic and decoder.decodable():
            excess = decoder.results - code.systematic
        if decoder.results >= code.systematic + ALLOWED and excess is not None:
            return Trial(excess, scalars.error(decoder))
    return Trial(code.P, np.inf)


def check_rounds(loss: float, sets: int) -> None:
    trials = [rounds_trial(loss, seed) for seed in range(sets)]
    late = sum(trial.excess > ALLOWED for trial in trials)
    errors = np.array([trial.error for trial in trials])
    print(f"loss {loss:.0%}: {sets} sets, {late} need more than K + {ALLOWED}, excess "
          f"{np.bincount([min(trial.excess, 11) for trial in trials]).tolist()}, "
          f"error median {np.median(errors):.1e}, worst {errors.max():.1e}")  # fmt: skip
    assert late <= 0.01 * sets
    assert np.median(errors) <= 1e-13
    assert errors.max() <= 1e-11


@pytest.mark.parametrize("loss", LOSSES)
def test_rounds(loss: float) -> None:
    check_rounds(loss, 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loss", LOSSES)
def test_rounds_in_full(loss: float) -> None:
    check_rounds(loss, 100)


# ---- targeted repairs ------------------------------------------------------------------------------------------

SHAPES = ("random", "rows", "one row", "square")
SIZES = (1, 2, 3, 5, 10, 40, 150, 500)


def outstanding_set(shape: str, size: int, rng: np.random.Generator) -> IntArray:
    """A set of outstanding blocks of an 80 x 80 grid: anywhere, the last rows (pull deals row by row), a part of one
    row, a square."""
    if shape == "random":
        return np.sort(rng.choice(6400, size, replace=False))
    if shape == "rows":
        return np.arange(6400 - size, 6400)
    if shape == "one row":
        return np.sort(80 * rng.integers(80) + rng.choice(80, min(size, 80), replace=False))
    side = int(np.ceil(np.sqrt(size)))
    rows, cols = (np.sort(rng.choice(80, side, replace=False)) for _ in range(2))
    return np.sort((80 * rows[:, None] + cols).ravel()[:size])


def targeted_trial(code: Code, outstanding: IntArray, seed: int) -> tuple[int, float]:
    """Repairs beyond |O| until C is decodable, and the error then (relative to C, scalar blocks)."""
    scalars, decoder = Scalars(code.unknowns, seed), code.decoder()
    for task in np.setdiff1d(np.arange(code.systematic), outstanding).tolist():
        decoder.add(task, source_rows()[task])
    for number in range(len(outstanding) + 3):
        task = code.P + number
        [row] = code.rows(code.repair(outstanding, task))
        decoder.add(task, [row])
        scalars.compute(task, row)
        if number + 1 >= len(outstanding) and decoder.decodable():
            return number + 1 - len(outstanding), scalars.error(decoder)
    return 3, np.inf


def check_targeted(shape: str, size: int, sets: int) -> None:
    trials = []
    for seed in range(sets):
        code = code_class("fr")(Grid(80, 80), 6400, seed)
        trials.append(targeted_trial(code, outstanding_set(shape, size, generator(seed, "set", size)), seed))
    excess, errors = (np.array(part) for part in zip(*trials, strict=True))
    print(f"targeted, {shape}, |O| = {size}: {sets} sets, excess {np.bincount(excess).tolist()}, "
          f"error median {np.median(errors):.1e}, worst {errors.max():.1e}")  # fmt: skip
    assert np.count_nonzero(excess > 2) <= 0.01 * sets
    assert np.median(errors) <= 1e-12


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_targeted_repairs(shape: str, size: int) -> None:
    check_targeted(shape, size, 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_targeted_repairs_in_full(shape: str, size: int) -> None:
    check_targeted(shape, size, 100)
