"""What straggler tolerance costs: whole products against NumPy on the same cores, in one run.

    python -m benchmarks.overhead [--size 4096] [--workers 4] [--pairs 5] [--quick]

Prints every budget of the design that concerns a whole product, with the ratio measured here beside it. NumPy and cmm
alternate in one process, pair by pair, and the median of the ratios is what counts: machines drift. NumPy runs with as
many threads as there are cores; cmm with one per rank.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.environment import launcher

CORES = len(os.sched_getaffinity(0))


def main() -> None:
    """Start the ranks and print the table; under mpirun, be one of them."""
    options = arguments()
    if options.inside:
        inside(options)
        return
    lines: list[str] = []
    for case in ("plain", "frozen"):
        lines += run_ranks(case, options)
    print(f"{options.size}^3 float64, {options.workers} workers on {CORES} cores, {options.pairs} pairs each")
    print("\n".join(lines + whole_command(options) + encoding(options)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="size 1024, 3 pairs: to see that it runs")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.size, options.pairs = 1024, 3
    return options


def run_ranks(case: str, options: argparse.Namespace) -> list[str]:
    words, needed = launcher(sys.prefix, options.workers + 1)
    flags = ["--size", options.size, "--workers", options.workers, "--pairs", options.pairs, "--inside", case]
    command = [*words, sys.executable, "-m", "benchmarks.overhead", *map(str, flags)]
    env = {**os.environ, **needed}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("  ")] or [f"  {case}: no result"]


# ---- on the ranks ------------------------------------------------------------------------------------------------


def inside(options: argparse.Namespace) -> None:
    from mpi4py import MPI

    import cmm

    comm = MPI.COMM_WORLD
    pids = comm.gather(os.getpid(), root=0)
    calls = options.pairs + 2
    if options.inside == "frozen":
        calls *= 2
    if comm.rank:
        for _ in range(calls):
            cmm.matmul(comm=comm)
        return
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((2, options.size, options.size))
    if options.inside == "plain":
        plain(A, B, comm, options.pairs, cmm.matmul)
    else:
        frozen(A, B, comm, pids, options.pairs, cmm.matmul)


Product = Callable[..., tuple[Any, dict[str, Any]]]


def reference(A: Any, B: Any) -> float:
    """Seconds of NumPy's product with all cores."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=CORES, user_api="blas"):
        start = time.perf_counter()
        A.T @ B
        return time.perf_counter() - start


def timed(product: Product, A: Any, B: Any, comm: Any) -> tuple[float, dict[str, Any]]:
    start = time.perf_counter()
    C, report = product(A, B, comm)
    seconds = time.perf_counter() - start
    assert report["verification"]["passed"]
    del C
    return seconds, report


def plain(A: Any, B: Any, comm: Any, pairs: int, product: Product) -> None:
    reference(A, B)
    cold = timed(product, A, B, comm)[0] / reference(A, B)
    before = _rss()
    ratios, phases = [], []
    for _ in range(pairs):
        base = reference(A, B)
        seconds, report = timed(product, A, B, comm)
        ratios.append(seconds / base)
        phases.append(report["seconds"])
    show("no straggler, warm, verified", ratios, 1.30)
    print(f"  {'the same, first call (cold)':44} {cold:6.2f} x numpy")
    print("    seconds: " + ", ".join(f"{k} {statistics.median(p[k] for p in phases):.3f}" for k in phases[0]))
    task = (2 * A.shape[0] * -(-A.shape[1] // 4) + (-(-A.shape[1] // 4)) ** 2) * 8
    beyond = _peak() - before - A.shape[1] * B.shape[1] * 8
    print(f"  {'master memory beyond A, B, C':44} {max(beyond, 0) / task:6.2f} task buffers   budget 8")
    timed(product, A, B, comm)


def frozen(A: Any, B: Any, comm: Any, pids: list[int], pairs: int, product: Product) -> None:
    """Worker 1 is stopped just before every measured product and wakes after it; a product between lets it catch up."""
    reference(A, B)
    timed(product, A, B, comm)
    timed(product, A, B, comm)
    ratios = []
    for _ in range(pairs):
        base = reference(A, B)
        os.kill(pids[1], signal.SIGSTOP)
        try:
            ratios.append(timed(product, A, B, comm)[0] / base)
        finally:
            os.kill(pids[1], signal.SIGCONT)
        time.sleep(0.5)
        timed(product, A, B, comm)
    show("one worker frozen from the start", ratios, 1.50)
    timed(product, A, B, comm)
    timed(product, A, B, comm)


def show(what: str, ratios: list[float], budget: float) -> None:
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    verdict = "" if middle <= budget else "   MISSED"
    print(f"  {what:44} {middle:6.2f} x numpy ({low:.2f} ... {high:.2f})   budget {budget:.2f}{verdict}", flush=True)


def _rss() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _peak() -> int:
    from cmm.runtime.report import peak_memory

    return peak_memory()


# ---- the whole command, and encoding -----------------------------------------------------------------------------


def whole_command(options: argparse.Namespace) -> list[str]:
    """Files in, files out, launch included; and how long the job stays after its report with a frozen worker."""
    words, needed = launcher(sys.prefix, options.workers + 1)
    with tempfile.TemporaryDirectory(prefix="cmm-") as folder:
        rng = np.random.default_rng(2)
        paths = [str(Path(folder) / name) for name in ("A.npy", "B.npy", "C.npy")]
        for path in paths[:2]:
            np.save(path, rng.standard_normal((options.size, options.size)))
        base = min(reference(np.load(paths[0]), np.load(paths[1])) for _ in range(2))
        command = [*words, sys.executable, "-m", "cmm.run", "--a", paths[0], "--b", paths[1], "--out", paths[2],
                   "--overwrite", "--progress", "none"]  # fmt: skip
        env = {**os.environ, **needed}
        start = time.perf_counter()
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True, timeout=600)
        seconds = time.perf_counter() - start
        start_frozen = time.perf_counter()
        subprocess.run([*command, "--inject", "freeze:1"], env=env, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False, timeout=600)  # fmt: skip
        ended, frozen_seconds = time.time(), time.perf_counter() - start_frozen
        report = Path(paths[2] + ".report.json")
        stay = ended - report.stat().st_mtime
        assert json.loads(report.read_text())["outcome"] == "complete"
    return [
        f"  {'whole command, launch and files included':44} {seconds / base:6.2f} x numpy ({seconds:.2f} s)",
        f"  {'whole command, one worker frozen':44} {frozen_seconds / base:6.2f} x numpy ({frozen_seconds:.2f} s)",
        f"  {'leaving after the report, worker frozen':44} {stay:6.2f} s   budget 1.00" + "   MISSED" * (stay > 1),
    ]


def encoding(options: argparse.Namespace) -> list[str]:
    """One round of FR's groups on A and B against copying A and B once (K = 6400: 80 x 80, groups 27x5)."""
    from cmm.codes.fr import FactoredRaptor
    from cmm.core.grid import Grid, Partition
    from cmm.matrices.files import as_source
    from cmm.matrices.scaling import look_at
    from cmm.runtime.encoder import Encoder

    size = max(160, options.size - options.size % 80)
    code = FactoredRaptor(Grid(80, 80), 10000, 1, "oneshot", {"groups": "27x5"})
    partition = Partition(code.grid, size, size, size)
    rng = np.random.default_rng(3)
    sides = [look_at(as_source(rng.standard_normal((size, size)), name), np.dtype(float)) for name in "AB"]
    encoders = []  # as in a job: their buffers are allocated once
    for side, slices in zip(sides, (partition.a_slices, partition.b_slices), strict=True):

        def read(chunk: int, low: int, high: int, out: Any, side: Any = side, slices: Any = slices) -> None:
            side.block(slice(low, high), slices(chunk)[1], out=out)

        capacity = max(code.shared_chunks)
        encoders.append(Encoder(read, (size, partition.block_rows), np.dtype(float), capacity))
    ratios = []
    for number in range(options.pairs + 1):
        copies = time.perf_counter()
        for side in sides:
            side.source.array.copy()
        copies = time.perf_counter() - copies
        start = time.perf_counter()
        groups = code.construction.round(number)  # type: ignore[attr-defined]
        for encoder, chunks in zip(encoders, groups, strict=True):
            for chunk in chunks:
                operand = encoder.operand(chunk)
                while not operand.step():
                    pass
        if number:  # the first touches fresh memory
            ratios.append((time.perf_counter() - start) / copies)
    middle = statistics.median(ratios)
    return [f"  {'encoding a round, K = 6400':44} {middle:6.2f} copies of A and B   budget 3.00"
            f"{'' if middle <= 3 else '   MISSED'}"]  # fmt: skip


if __name__ == "__main__":
    main()
