"""The systems: how each is started, what it needs to know or hold, and why it may be absent."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cmm.bench.processes import ONE_THREAD, launcher
from cmm.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "benchmarks.rivals.programs"
CORES = len(os.sched_getaffinity(0))
SOURCE = Path(__file__).with_name("programs") / "pdgemm.c"
DEBIAN = "libscalapack-openmpi-dev libopenmpi-dev libopenblas-dev"
PDGEMM_BLOCK = 256  # of the cyclic distribution


@dataclass(frozen=True)
class Case:
    """What is to be multiplied, by how many, and who stops himself.

    Attributes
    ----------
    folder : everything of this run; a, b: row-major float64 .npy files
    stop : how many workers stop themselves
    """

    folder: Path
    a: Path
    b: Path
    size: int
    workers: int
    grid: str
    stop: int

    @property
    def out(self) -> Path:
        return self.folder / "C.npy"


@dataclass(frozen=True)
class Start:
    """Words, variables, and the numbers of the workers that stop themselves."""

    words: Sequence[str | Path]
    variables: dict[str, str]
    victims: list[int]


@dataclass(frozen=True)
class System:
    """One line of the table. `tasks`: whether the number of blocks K matters to it."""

    name: str
    needs: str
    start: Callable[[Case], Start]
    missing: Callable[[], str] = lambda: ""
    tasks: bool = True


@functools.cache
def _no_launcher() -> str:
    """Why no ranks can be started here; empty when they can."""
    try:
        launcher(2)
    except UsageError as error:
        return f"there is no mpirun: {error.value}"
    return ""


# ---- cmm ---------------------------------------------------------------------------------------------------------


def _cmm(code: str) -> Callable[[Case], Start]:
    def start(case: Case) -> Start:
        victims = list(range(1, case.stop + 1))
        words, variables = launcher(case.workers + 1)
        report = case.folder / "report.json"
        job = [sys.executable, "-m", "cmm.run", "--a", case.a, "--b", case.b, "--out", case.out, "--report", report,
               "--progress", "none", "--code", code, "--grid", case.grid]  # fmt: skip
        inject = ["--inject", f"freeze:{','.join(map(str, victims))}"] if victims else []
        return Start([*words, *job, *inject], variables, victims)

    return start


# ---- programs in Python ------------------------------------------------------------------------------------------


def _program(python: Path | str, name: str, case: Case, victims: list[int], *flags: str) -> list[str | Path]:
    stop = ",".join(map(str, victims))
    return [python, "-m", f"{PROGRAMS}.{name}", "--a", case.a, "--b", case.b, "--out", case.out,
            "--folder", case.folder, "--grid", case.grid, "--stop", stop, *flags]  # fmt: skip


def _numpy(case: Case) -> Start:
    victims = [1] if case.stop else []
    threads = dict.fromkeys(ONE_THREAD, str(CORES))
    return Start(_program(sys.executable, "numpy_product", case, victims), threads, victims)


def _pool(*flags: str, ulfm: bool = False) -> Callable[[Case], Start]:
    def start(case: Case) -> Start:
        victims = list(range(1, case.stop + 1))
        words, variables = launcher(case.workers + 1)
        words = [*words[:1], *(["--with-ft", "ulfm"] if ulfm else []), *words[1:]]
        more = [*flags, *(["--ulfm"] if ulfm else [])]
        return Start([*words, *_program(sys.executable, "pool", case, victims, *more)], variables, victims)

    return start


def rivals_python() -> Path:
    """Of the rivals' own environment: $CMM_RIVALS, else .venv-rivals (see docs/benchmarks.md)."""
    return Path(os.environ.get("CMM_RIVALS", ROOT / ".venv-rivals")) / "bin" / "python"


@functools.cache
def _no_package(package: str) -> str:
    python = rivals_python()
    if not python.exists():
        return f"no environment of the rivals at {python.parent.parent}"
    test = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    done = subprocess.run([python, "-c", test], check=False, capture_output=True, timeout=60)
    return f"{package} is not installed in {python.parent.parent}" if done.returncode else ""


def _square(workers: int) -> int:
    side = max(1, round(workers**0.5))
    return side * side


def _last(ranks: int, count: int) -> list[int]:
    """The last ranks: where all ranks compute, rank 0 is the one that has the result."""
    return list(range(ranks - count, ranks))


def _pylops(case: Case) -> Start:
    ranks = _square(case.workers)
    victims = _last(ranks, case.stop if case.stop < case.workers else ranks)
    words, variables = launcher(ranks, prefix=str(rivals_python().parent.parent))
    return Start([*words, *_program(rivals_python(), "pylops_product", case, victims)], variables, victims)


def _dask(case: Case) -> Start:
    victims = list(range(1, case.stop + 1))
    return Start(_program(rivals_python(), "dask_product", case, victims, "--workers", str(case.workers)), {}, victims)


# ---- ScaLAPACK ---------------------------------------------------------------------------------------------------


@functools.cache
def _compiled() -> Path | str:
    """The driver, or why there is none. Built anew by every run, with Debian's Open MPI and OpenBLAS."""
    compiler, mpirun = shutil.which("mpicc.openmpi"), shutil.which("mpirun.openmpi")
    if compiler is None or mpirun is None:
        return f"no mpicc.openmpi and mpirun.openmpi: apt-get install {DEBIAN}"
    out = ROOT / "build" / "pdgemm"
    out.parent.mkdir(exist_ok=True)
    done = subprocess.run([compiler, "-O2", SOURCE, "-o", out, "-lscalapack-openmpi", "-lopenblas"], check=False,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    return out if done.returncode == 0 else (done.stderr.strip().splitlines() or ["does not compile"])[-1]


def _scalapack(case: Case) -> Start:
    victims = _last(case.workers, case.stop)
    size = str(case.size)
    flags = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", str(case.workers)]
    stop = f",{','.join(map(str, victims))},"
    words = ["mpirun.openmpi", *flags, _compiled(), case.a, case.b, case.folder / "C.raw", size, size, size,
             str(PDGEMM_BLOCK), case.folder, stop]  # fmt: skip
    return Start(words, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}, victims)


SYSTEMS = {
    system.name: system
    for system in (
        System("numpy", "A, B and C in one process; the cores of one node", _numpy, tasks=False),
        System("scalapack", "every rank its blocks of A, B and C, and every rank's answer", _scalapack,
               lambda: "" if isinstance(_compiled(), Path) else str(_compiled()), tasks=False),
        System("pylops-mpi", "every rank its blocks of A and B, and every rank's answer", _pylops,
               lambda: _no_package("pylops_mpi"), tasks=False),
        System("dask", "A and B on a disk that all workers see; a scheduler", _dask,
               lambda: _no_package("distributed")),
        System("pool", "A and B on a disk that all workers see; every worker's answer", _pool(), _no_launcher),
        System("pool+copies", "A and B on a disk that all workers see", _pool("--copies"), _no_launcher),
        System("pool+copies+abort", "the same, and a launcher that lets an abort pass for success",
               _pool("--copies", "--abort"), _no_launcher),
        System("pool+copies+ulfm", "the same without abort, and an MPI with ULFM",
               _pool("--copies", ulfm=True), _no_launcher),
        System("uncoded", "A and B on rank 0; a worker only its task", _cmm("uncoded"), _no_launcher),
        System("replication", "A and B on rank 0; a worker only its task", _cmm("replication"), _no_launcher),
        System("fr", "A and B on rank 0; a worker only its task", _cmm("fr"), _no_launcher),
    )
}  # fmt: skip
