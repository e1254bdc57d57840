"""One run of a system under a scenario: started, troubled, timed, its C compared with NumPy's."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.rivals.scenarios import Scenario, Trouble
from benchmarks.rivals.systems import ROOT, Case, System
from cmm.bench.points import time_to_c
from cmm.bench.processes import Ended, Running, running
from cmm.core.errors import CmmError
from cmm.core.task import Array
from cmm.runtime.report import load

TOLERANCE = 1e-9  # of C_ij relative to |A_i||B_j|, as cmm's own default


@dataclass(frozen=True)
class Result:
    """One run: one row of the CSV.

    Attributes
    ----------
    to_c : seconds from the start of the work on the root (MPI is up, files are not read) until C is in its memory; cmm:
        decoded and verified. nan when it never was
    to_exit : seconds from starting the launcher until it had ended: start-up, files, C to disk and leaving included.
        nan: not within the time limit
    error : largest |C - A^T B|_ij / (|A_i||B_j|)
    right : "yes", "no", or "no C"
    """

    system: str
    scenario: str
    workers: int
    size: int
    K: int
    repeat: int
    to_c: float
    to_exit: float
    right: str
    error: float
    code: int
    remark: str

    @property
    def key(self) -> tuple[str, str, int, int, int, int]:
        return self.system, self.scenario, self.workers, self.size, self.K, self.repeat


@dataclass
class Problem:
    """Matrices on disk and the product to compare with."""

    folder: Path
    size: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(1)
        A, B = rng.standard_normal((2, self.size, self.size))
        self.a, self.b = self.folder / "A.npy", self.folder / "B.npy"
        np.save(self.a, A)
        np.save(self.b, B)
        self.exact = A.T @ B
        self.scale = np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))

    def error(self, C: Array) -> float:
        return float(np.max(np.abs(C - self.exact) / self.scale))


@contextlib.contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def run_once(system: System, scenario: Scenario, problem: Problem, workers: int, grid: str, repeat: int,
             limit: float) -> Result:  # fmt: skip
    """Start it, trouble it, wait at most `limit` seconds."""
    with _folder(problem.folder) as folder:
        case = Case(folder, problem.a, problem.b, problem.size, workers, grid, scenario.victims(workers))
        start = system.start(case)
        variables = {"PYTHONPATH": str(ROOT), **start.variables}
        with running(start.words, variables, cwd=ROOT) as job:
            trouble = Trouble(scenario, start.victims, _pids(job, case), repeat)
            trouble.start()
            try:
                ended = job.wait(limit)
            finally:
                trouble.stop()
        missed = set(start.victims) - trouble.hit
        return _result(system, scenario, problem, case, repeat, ended, f"{len(missed)} not hit" if missed else "")


def _pids(job: Running, case: Case) -> Callable[[], dict[int, int]]:
    """worker -> pid: what the programs wrote, else the ranks of cmm.run."""

    def known() -> dict[int, int]:
        written = {}
        for path in case.folder.glob("worker-*"):
            with contextlib.suppress(OSError, ValueError):  # being written
                written[int(path.name.partition("-")[2])] = int(path.read_text())
        return written or (job.ranks() if "cmm.run" in job.words else {})

    return known


def _result(system: System, scenario: Scenario, problem: Problem, case: Case, repeat: int, ended: Ended,
            remark: str) -> Result:  # fmt: skip
    m, n = (int(side) for side in case.grid.split("x"))
    seconds, C = _outcome(case)
    error = math.nan if C is None else problem.error(C)
    right = "no C" if C is None else "yes" if error <= TOLERANCE else "no"
    if ended.code is None:
        remark = remark or "no end within the limit"
    elif C is None:
        said = [line for line in ended.stderr.splitlines() if line.strip("- ")]
        remark = remark or (said or ["no message"])[0][:200]
    return Result(system.name, scenario.name, case.workers, problem.size, m * n if system.tasks else 0, repeat, seconds,
                  math.nan if ended.code is None else ended.seconds, right, error,
                  -1 if ended.code is None else ended.code, remark)  # fmt: skip


def _outcome(case: Case) -> tuple[float, Array | None]:
    """(seconds to C, C) as the program left them."""
    with contextlib.suppress(CmmError):
        record = load(case.folder / "report.json")
        if record.outcome.value == "complete":
            return time_to_c(record) - record.seconds.write, np.load(case.out, mmap_mode="r")
    times, raw = case.folder / "times.json", case.folder / "C.raw"
    if not times.exists():
        return math.nan, None
    C = np.fromfile(raw).reshape(case.size, case.size) if raw.exists() else np.load(case.out, mmap_mode="r")
    return float(json.loads(times.read_text())["seconds"]), C
