"""What checking costs against its budget: `OMP_NUM_THREADS=1 python -m benchmarks.checks [--size N] [--repeat N]`.

Processor time on one core of everything that checking adds to a job: looking at A and B, checking every result of a
4 x 4 grid, checking C. The ratio is to the product on one core, in the same run; the budget is 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cmm.core.grid import Grid, Partition
from cmm.core.task import Array, Assignment, Combination
from cmm.matrices.files import as_source
from cmm.matrices.scaling import look_at
from cmm.verify.freivalds import ResultCheck
from cmm.verify.product import check_product

BUDGET = 0.05
DTYPES = ("float64", "float32", "complex128", "complex64")
GRID = Grid(4, 4)


def drawn(size: int, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    """(size, size), standard normal."""
    real = rng.standard_normal((size, size))
    return (real + 1j * rng.standard_normal((size, size)) if dtype.kind == "c" else real).astype(dtype)


def product_seconds(A: Array, B: Array, repeat: int) -> tuple[Array, float]:
    """(C, median seconds of processor time)."""
    found = []
    for _ in range(repeat):
        start = time.process_time()
        C = A.T @ B
        found.append(time.process_time() - start)
    return C, statistics.median(found)


def check_seconds(A: Array, B: Array, C: Array) -> list[float]:
    """Seconds for A and B, all results, and C."""
    size = len(A)
    partition = Partition(GRID, size, size, size)
    a, b = look_at(as_source(A, "A"), A.dtype), look_at(as_source(B, "B"), B.dtype)  # done for scaling in any case
    blocks = [np.ascontiguousarray(C[partition.c_slices(*divmod(k, GRID.n))]) for k in range(GRID.K)]
    times = [time.process_time()]
    check = ResultCheck(partition, a, b).prepare()
    times.append(time.process_time())
    for k, block in enumerate(blocks):
        i, j = divmod(k, GRID.n)
        task = Assignment.pair(k, Combination.unit(i), Combination.unit(j), GRID.n)
        if not check.check(task, 0, block).ok:
            raise SystemExit("an honest result was refused")
    times.append(time.process_time())
    if not check_product(a, b, C, unscaled=False, results=check).ok:
        raise SystemExit("an honest product was refused")
    times.append(time.process_time())
    return np.diff(times).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dtype", default=",".join(DTYPES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{options.size} cubed, {GRID} grid, one core, seed {options.seed}; medians of {options.repeat}\n")
    print("| dtype | product, s | A and B, s | results, s | C, s | together | budget |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with threadpool_limits(limits=1, user_api="blas"):
        for name in options.dtype.split(","):
            rng, dtype = np.random.default_rng(options.seed), np.dtype(name)
            A, B = drawn(options.size, dtype, rng), drawn(options.size, dtype, rng)
            C, product = product_seconds(A, B, min(3, options.repeat))
            parts = np.median([check_seconds(A, B, C) for _ in range(options.repeat)], axis=0)
            share = parts.sum() / product
            print(f"| {name} | {product:.2f} | {parts[0]:.3f} | {parts[1]:.3f} | {parts[2]:.3f} | {share:.1%} "
                  f"| {BUDGET:.0%}{'' if share <= BUDGET else ': MISSED'} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
