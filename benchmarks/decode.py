"""Decoding at K = 6400 against its budgets: `OMP_NUM_THREADS=1 python -m benchmarks.decode [--repeat N] [--quick]`.

Symbolic: seconds for all bookkeeping, questions and the plan, result by result. Numeric: the time to fill C from
80 x 80 blocks of 50 x 50 numbers, in copies of C (numpy copy into existing memory, one core). Rows are those of the FR
code in rounds, losses independent; results are made from a known C, so that the error is reported too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cmm.codes.registry import code_class
from cmm.core.grid import Grid, Partition
from cmm.core.task import Array
from cmm.linalg import blocks, subtract
from cmm.linalg.blocks import BlockStore
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import LuPlan, Plan
from cmm.linalg.rows import CodedRow, Targets, stack

GRID = Grid(80, 80)
TASKS = 10000
BUDGETS_SYMBOLIC = {0.10: 1.0, 0.30: 3.0}  # seconds
BUDGETS_NUMERIC: dict[float, float | None] = {0.05: 5.0, 0.10: 12.0, 0.30: None}  # copies of C


@dataclass(frozen=True)
class Arrivals:
    """Results in order of arrival: (task, rows); systematic ones that are not lost, then repairs."""

    rows: list[tuple[int, tuple[CodedRow, ...]]]

    @classmethod
    def draw(cls, loss: float, seed: int, groups: str | None = None) -> Arrivals:
        """Systematic results in random order, lost independently with probability `loss`; then repairs, from the groups
        that are made for this loss unless given."""
        params = {"loss": loss} if groups is None else {"groups": groups}
        code = code_class("fr")(GRID, TASKS, seed, "oneshot", params)
        rng = np.random.default_rng(seed)
        kept = np.flatnonzero(rng.random(GRID.K) >= loss)
        repairs = np.arange(GRID.K, min(TASKS, GRID.K + int(1.2 * (GRID.K - len(kept))) + 60))
        order = np.concatenate([rng.permutation(kept), repairs])
        return cls([(int(task), code.rows(code.task(int(task)))) for task in order])


def collect(arrivals: Arrivals) -> tuple[Decoder, Plan]:
    """Add results and ask after each, as the master does, until C is decodable; then plan."""
    decoder = Decoder(GRID.unknowns, Targets.blocks(GRID))
    for task, rows in arrivals.rows:
        decoder.add(task, rows)
        if decoder.decodable():
            break
    return decoder, decoder.plan()


def filled_store(C: Array, plan: Plan, partition: Partition) -> BlockStore:
    """A store that has received every block of C but the missing ones, and the results the plan uses."""
    store = BlockStore(partition, C.dtype)
    block = np.empty((partition.block_rows, partition.block_cols), C.dtype)
    unit = np.ones(1)
    for target in plan.direct:
        block[:] = C[partition.c_slices(*divmod(target, GRID.n))]
        store.put((target, 0), block, CodedRow(np.array([target]), unit))
    height, width = block.shape
    every = C.reshape(GRID.m, height, GRID.n, width).transpose(0, 2, 1, 3).reshape(GRID.K, -1)
    values = stack(list(plan.rows), GRID.K) @ every
    for key, row, value in zip(plan.sources, plan.rows, values, strict=True):
        store.put(key, value.reshape(height, width).astype(C.dtype), row)
    return store


@contextmanager
def stopwatch(seconds: dict[str, float]) -> Iterator[None]:
    """Adds up the time of the stages of BlockStore.decode while active."""
    places: list[tuple[str, Any, str]] = [
        ("prepare", subtract.Subtraction, "__init__"),
        ("invert", LuPlan, "prepared"),
        ("take out", blocks._Gather, "pieces"),
        ("subtract", subtract.Subtraction, "apply"),
        ("solve", Plan, "solve"),
        ("write", blocks, "scatter"),
    ]

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        return wrapper

    originals = [(owner, attribute, getattr(owner, attribute)) for _, owner, attribute in places]
    for name, owner, attribute in places:
        setattr(owner, attribute, timed(name, getattr(owner, attribute)))
    try:
        yield
    finally:
        for owner, attribute, function in originals:
            setattr(owner, attribute, function)


def copy_seconds(C: Array, repeat: int) -> float:
    """Median time of one numpy copy of C into memory that exists already."""
    target = np.zeros_like(C)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        np.copyto(target, C)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def symbolic(loss: float, repeat: int) -> None:
    """Print the symbolic seconds at this loss beside the budget."""
    times, used = [], []
    for seed in range(repeat):
        arrivals = Arrivals.draw(loss, seed)
        start = time.perf_counter()
        decoder, _ = collect(arrivals)
        times.append(time.perf_counter() - start)
        used.append(decoder.results)
    figure, budget = statistics.median(times), BUDGETS_SYMBOLIC[loss]
    print(f"symbolic {loss:4.0%} missing: {figure:6.2f} s   (budget {budget:.0f} s"
          f"{'' if figure <= budget else ', MISSED'})   N = {statistics.median(used):.0f}, K = {GRID.K}")  # fmt: skip


def numeric(loss: float, repeat: int, side: int, dtype: str, groups: str | None = None) -> None:
    """Print the numeric decode in copies of C at this loss beside the budget, the error, and the stages."""
    C = np.random.default_rng(7).standard_normal((side, side)).astype(dtype)
    partition = Partition(GRID, 1, side, side)
    _, plan = collect(Arrivals.draw(loss, 1, groups))
    figures, error, stages = [], 0.0, {}
    for _ in range(repeat):
        store = filled_store(C, plan, partition)
        one_copy = copy_seconds(C, 3)
        stages = {}
        with stopwatch(stages):
            start = time.perf_counter()
            store.decode(plan)
            total = time.perf_counter() - start
        figures.append((total / one_copy, total, one_copy))
        error = float(np.abs(store.C - C).max() / np.abs(C).max())
    figures.sort()
    ratio, total, one_copy = figures[len(figures) // 2]
    budget = BUDGETS_NUMERIC[loss]
    verdict = "" if budget is None else f"   (budget {budget:.0f}{'' if ratio <= budget else ', MISSED'})"
    case = f"{loss:4.0%} missing, {dtype}, groups {groups or 'by rule'}"
    print(f"numeric  {case}: {ratio:5.2f} copies of C{verdict}   {total:.3f} s, a copy "
          f"{one_copy:.3f} s; {plan.method}, {len(plan.missing)} missing, error {error:.0e} of max |C|")  # fmt: skip
    rest = total - sum(stages.values())
    shares = ", ".join(f"{name} {value / one_copy:.2f}" for name, value in [*stages.items(), ("rest", rest)])
    print(f"         in copies of C (last run): {shares}")
    print(f"         {plan.reason}; {plan.block_operations} block operations; condition {plan.condition:.0f}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each figure; the median is printed")
    parser.add_argument("--side", type=int, default=4000, help="r = t of the numeric part, a multiple of 80")
    parser.add_argument("--dtype", default="float64", choices=("float32", "float64", "complex64", "complex128"))
    parser.add_argument("--quick", action="store_true", help="one run, 5 and 10 % only")
    options = parser.parse_args(arguments)
    repeat = 1 if options.quick else options.repeat
    with threadpool_limits(1):
        for loss in BUDGETS_SYMBOLIC:
            if not (options.quick and loss > 0.1):
                symbolic(loss, repeat)
        for loss in BUDGETS_NUMERIC:
            if not (options.quick and loss > 0.1):
                numeric(loss, repeat, options.side, options.dtype)
        numeric(0.05, repeat, options.side, options.dtype, "80x4")  # fewer a-vectors, but more rounds to encode


if __name__ == "__main__":
    main(sys.argv[1:])
