"""`--dry-run`: the plan of a job and the memory that each rank will need. Reads shapes, computes nothing, needs no MPI.

The plan is made by the functions that make it in the job; the memory is the forecast of cmm.engine.forecast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cmm.codes.base import Code
from cmm.codes.defaults import build_code
from cmm.core.errors import DataError
from cmm.core.grid import Partition
from cmm.core.spec import JobSpec, check_ranks
from cmm.engine.forecast import MemoryForecast, memory_forecast, results_bytes, size_text
from cmm.matrices.files import MatrixSource, check_output, open_matrix, working_dtype
from cmm.matrices.integers import integral
from cmm.runtime import launch
from cmm.runtime.accuracy import accuracy_lines
from cmm.runtime.judge import DEFAULT_TOLERANCE


def plan_lines(spec: JobSpec, workers: int | None = None) -> list[str]:
    """The plan of a job as text. `workers`: W; None: what the launcher started, else none (a single rank).

    Raises
    ------
    CmmError : whatever the job itself would refuse before it computes
    """
    size = launch.world_size()
    known = workers is not None or size is not None
    if workers is None:
        workers = max(0, (size or 1) - 1)
    if known:
        check_ranks(spec.inject, workers)
    plan = prepare(spec, workers)
    return [*_plan(spec, plan.code, plan.partition, workers, plan.sources, plan.dtype), *_accuracy(spec, plan, workers),
            *plan.memory.lines(),
            f"           ({_held(*plan.sources)}; Python and its libraries take about 100 MB more)",
            *_kept(spec, plan),
            "dry run: nothing was computed" + ("" if known else "; --workers W plans for W workers")]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A job that has not begun: its inputs, how they are cut and coded, and the memory that it will need."""

    sources: tuple[MatrixSource, MatrixSource]
    dtype: np.dtype[Any]
    code: Code
    partition: Partition
    memory: MemoryForecast


def prepare(spec: JobSpec, workers: int) -> Plan:
    """The plan of a job for so many workers. Raises whatever the job itself would refuse before it computes."""
    a, b = open_matrix(spec.a, "--a", load=False), open_matrix(spec.b, "--b", load=False)
    if a.shape[0] != b.shape[0]:
        raise DataError("--b", f"must have as many rows as A ({a.shape[0]})", f"{b.shape[0]} rows in {b.name}",
                        "Transpose it, or use the matching file.")  # fmt: skip
    dtype = working_dtype(a.dtype, b.dtype)
    s, r, t = a.shape[0], a.shape[1], b.shape[1]
    if spec.out:
        check_output(spec.out, [spec.a, spec.b], spec.overwrite, size=r * t * dtype.itemsize)
    code = build_code(spec.code, max(workers, 1), (s, r, t), grid=spec.grid, tasks=spec.tasks, dispatch=spec.dispatch,
                      seed=spec.seed, params=spec.params, complex_data=dtype.kind == "c",
                      exact=integral(a.dtype, b.dtype))  # fmt: skip
    partition = Partition(code.grid, s, r, t)
    wire = np.result_type(dtype, np.complex64) if code.complex_coefficients else dtype
    memory = memory_forecast(partition, code, workers, itemsize=dtype.itemsize, wire_itemsize=wire.itemsize,
                             verify=spec.verify,
                             input_itemsizes=(a.dtype.itemsize, b.dtype.itemsize))  # fmt: skip
    memory = replace(memory, a=a.memory or a.bytes, b=b.memory or b.bytes)
    return Plan((a, b), dtype, code, partition, memory)


def _accuracy(spec: JobSpec, plan: Plan, workers: int) -> list[str]:
    """Condition and error of likely sets of results."""
    a, b = plan.sources
    if integral(a.dtype, b.dtype):
        return ["accuracy   exact: integers in int64"]
    tolerance = spec.tolerance or DEFAULT_TOLERANCE[plan.dtype.str[1:]]
    shape = a.shape[0], a.shape[1], b.shape[1]
    return accuracy_lines(plan.code, shape, plan.dtype, tolerance, workers, spec.seed)


def _kept(spec: JobSpec, plan: Plan) -> list[str]:
    """What a checkpoint takes on disk until C is complete."""
    if spec.checkpoint is None:
        return []
    itemsize = plan.dtype.itemsize * (2 if plan.code.complex_coefficients and plan.dtype.kind != "c" else 1)
    size = size_text(results_bytes(plan.code, plan.partition, itemsize))
    return [f"disk       {size} of results in {spec.checkpoint}, typically, until C is complete"]


def _held(a: MatrixSource, b: MatrixSource) -> str:
    """How much of A and of B is in memory, rather than mapped or read from the file by blocks."""
    held = [f"{name} takes {size_text(source.memory)} of memory" for name, source in (("A", a), ("B", b))
            if source.memory]  # fmt: skip
    return " and ".join(held) or "A and B are mapped from their files"


def _plan(spec: JobSpec, code: Code, partition: Partition, workers: int, sources: tuple[MatrixSource, MatrixSource],
          dtype: np.dtype[Any]) -> list[str]:  # fmt: skip
    p, grid, K = partition, code.grid, code.grid.K
    threshold = code.recovery_threshold
    params = "".join(f" {key}={value}" for key, value in code.params.items() if value is not None)
    who = f"{workers} (ranks 1 to {workers})" if workers else "none: a single rank, the master computes everything"
    given = " and ".join(dict.fromkeys(str(source.dtype) for source in sources))
    computed = "" if given == str(dtype) else f", computed in {dtype}"
    products = max(sum(map(len, code.task(task).outputs)) for task in (0, code.P - 1))
    flops = 2.0 * p.chunk_rows * p.block_rows * p.block_cols * products
    if code.dispatch == "oneshot":
        more = f"{code.P - threshold.results} results may stay away ({code.P / K - 1:.0%} redundancy)"
    elif code.repairs:
        more = "repairs are made on demand, for what is overdue or lost"
    elif code.fixed_pool:
        more = "what is overdue or lost is replaced by spare tasks, then computed by the master"
    else:
        more = "copies are sent on demand, for what is overdue or lost"
    return [
        f"product    C = A^{spec.op} B, {p.r} x {p.t}, from A {p.s} x {p.r} and B {p.s} x {p.t}, {given}{computed}",
        f"workers    {who}",
        f"code       {code.name}{params}, {code.dispatch}, seed {code.seed}",
        f"grid       {grid}: K = {K} blocks of at most {p.block_rows} x {p.block_cols}",
        f"tasks      P = {code.P} of {flops / 1e9:.3g} Gflop; {more}",
        f"threshold  {threshold.results} results, "
        + ("always, but for rounding" if threshold.certain else "typically, of tasks in random order"),
    ]
