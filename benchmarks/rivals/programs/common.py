"""What every program of a rival does alike: its flags, its stop at the beginning, its times. NumPy and stdlib only,
since it runs in the rivals' own environments.

A worker that the scenario is to hit stops itself (SIGSTOP) when it begins its work; whoever started the program sees
that and holds, slows, wakes or kills it from outside. `cmm.run --inject freeze:RANKS` does the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def parser(description: str) -> argparse.ArgumentParser:
    """Flags that all programs have."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--a", required=True, help="A.npy, s x r, on a disk that every worker sees")
    found.add_argument("--b", required=True, help="B.npy, s x t")
    found.add_argument("--out", required=True, help="where C goes")
    found.add_argument("--folder", type=Path, required=True, help="for the pids of workers and for the times")
    found.add_argument("--grid", default="4x4", help="blocks of C")
    found.add_argument("--stop", default="", help="numbers of the workers that stop themselves at the beginning")
    return found


def mapped(options: argparse.Namespace) -> tuple[Matrix, Matrix]:
    """A and B, memory-mapped."""
    return np.load(options.a, mmap_mode="r"), np.load(options.b, mmap_mode="r")


def begin(options: argparse.Namespace, worker: int, pid: int | None = None) -> None:
    """Say who works; stop, if the scenario wants that."""
    pid = os.getpid() if pid is None else pid
    (options.folder / f"worker-{worker}").write_text(str(pid))
    if str(worker) in options.stop.split(","):
        os.kill(pid, signal.SIGSTOP)


def ready(options: argparse.Namespace, start: float, C: Matrix, **more: float) -> None:
    """C is in memory: note the seconds since `start` (perf_counter), then write it."""
    times = {"seconds": time.perf_counter() - start, **more}
    with open(options.out, "wb") as file:
        np.save(file, C)
    (options.folder / "times.part").write_text(json.dumps(times))
    (options.folder / "times.part").rename(options.folder / "times.json")


def cuts(length: int, parts: int) -> list[slice]:
    """Nearly equal slices."""
    edges = [length * k // parts for k in range(parts + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]


def tiles(options: argparse.Namespace, r: int, t: int) -> list[tuple[slice, slice]]:
    """(rows, columns) of the blocks of C, row by row."""
    m, n = (int(side) for side in options.grid.split("x"))
    return [(rows, columns) for rows in cuts(r, m) for columns in cuts(t, n)]
