"""What the soak multiplies, and the ranks of its calls: `python -m benchmarks.soak_calls FOLDER JOBS SECONDS`."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.processes import open_files, resident

Array = npt.NDArray[Any]
CYCLE = 20  # kinds of calls, repeated, so that memory can be compared
LIMITS = {"float32": 1e-4, "float64": 1e-11, "complex64": 1e-4, "complex128": 1e-11}  # of |C - A^T B| / (|A_i| |B_j|)
CODES = [("fr", "4x4"), ("fr", "6x5"), ("rkrp", "3x4"), ("replication", "4x4"), ("orthopoly", "2x3"),
         ("entangled", "2x2x2"), ("uncoded", "4x4"), ("sparse", "4x3"), ("lt", "12x1")]  # fmt: skip


def call(number: int) -> dict[str, Any]:
    """Call `number` of the sequence, the same on all ranks: shape, dtype and options."""
    rng = random.Random(number % CYCLE)
    code, grid = rng.choice(CODES)
    shape = (rng.randint(1, 400), rng.randint(12, 300), rng.randint(12, 300))
    faults = random.Random(number)
    inject = [f"corrupt:{faults.randint(1, 4)}:{faults.choice([0.05, 0.3, 1])}"] * (faults.random() < 0.4)
    inject += [faults.choice(["slow:2:3", "sleep:3:0.02", "exp:1-4:0.003"])] * (faults.random() < 0.3)
    return {"shape": shape, "dtype": rng.choice(list(LIMITS)), "inject": inject,
            "options": {"code": code, "grid": grid, "seed": number, "dispatch": rng.choice(["pull", "pull", "oneshot"])
                        if code == "fr" else "pull"}}  # fmt: skip


def matrices(shape: tuple[int, int, int], dtype: str, seed: int) -> tuple[Array, Array]:
    """Standard normal A (s, r) and B (s, t)."""
    rng, (s, r, t) = np.random.default_rng(seed), shape
    made = (rng.normal(size=(s, n)) + (1j * rng.normal(size=(s, n)) if dtype[0] == "c" else 0) for n in (r, t))
    A, B = (matrix.astype(dtype) for matrix in made)
    return A, B


def error(C: Array, A: Array, B: Array) -> float:
    """Largest |C - A^T B| relative to the norms of the two columns."""
    wide = np.result_type(A, B, np.float64)
    A, B = A.astype(wide), B.astype(wide)
    return float(np.max(np.abs(C - A.T @ B) / np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))))


def inside_calls(folder: Path, jobs: int, seconds: float) -> None:
    """On every rank: the calls, one line each into a file of the rank's own."""
    from mpi4py import MPI

    import cmm

    comm, until = MPI.COMM_WORLD, time.monotonic() + seconds
    comm = comm.Dup()
    with (folder / f"calls{comm.rank}").open("w", buffering=1) as out:
        for number in range(jobs):
            if comm.rank == 0:
                print(json.dumps(_master_call(comm, cmm, number, time.monotonic() > until)), file=out)
            else:
                given = call(number)
                cmm.matmul(comm=comm, inject=given["inject"], seed=given["options"]["seed"])
                print(json.dumps({"memory": resident(), "files": open_files()}), file=out)


def _master_call(comm: Any, cmm: Any, number: int, late: bool) -> dict[str, Any]:
    """One call on rank 0. When it is late, the calls that remain are tiny, since the ranks have to make as many."""
    given = call(number)
    A, B = matrices((1, 12, 12) if late else given["shape"], given["dtype"], number)
    C, report = cmm.matmul(A, B, comm, inject=given["inject"], **given["options"])
    return {"wrong": not error(C, A, B) <= LIMITS[given["dtype"]], "late": late, "memory": resident(),
            "files": open_files(), "counts": report["counts"],
            "workers": [{"status": worker["status"]} for worker in report["workers"]]}  # fmt: skip


if __name__ == "__main__":
    inside_calls(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
