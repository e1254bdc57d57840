"""Real jobs: matrices in a folder, `mpirun … python -m cmm.run`, and the row that its report gives."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cmm.bench.points import Point, Run, run_of
from cmm.bench.processes import Ended, launcher, run
from cmm.bench.store import Store
from cmm.core.errors import CmmError, OutputError
from cmm.core.rng import generator
from cmm.matrices.npy import write_array
from cmm.runtime.report import load


@dataclass
class Bench:
    """Where and how jobs run.

    Attributes
    ----------
    folder : for matrices and results; rank 0 has to see it
    given : the launcher with its flags, or None for the mpirun of this environment
    limit : seconds of one job
    seed : of the matrices; run k of a point has the seed k
    environment : of the ranks, as the last report has it
    """

    folder: Path
    given: str | None = None
    limit: float = 600.0
    seed: int = 1
    environment: dict[str, Any] = field(default_factory=dict)

    def matrix(self, name: str, rows: int, columns: int) -> Path:
        """A standard normal float64 matrix, written once. Raises OutputError."""
        path = self.folder / f"{name}-{rows}x{columns}.npy"
        if not path.exists():
            self._check_room(8 * rows * columns)
            rng = generator(self.seed, "bench", name)
            with open(path.with_suffix(".part"), "wb") as file:
                write_array(file, rng.standard_normal((rows, columns)))
            path.with_suffix(".part").rename(path)
        return path

    def check(self, wanted: Iterable[Point]) -> None:
        """Raise OutputError where the scratch folder has no room for what these points need, UsageError for a launcher
        that cannot be started."""
        wanted = list(wanted)
        sides = {("A", point.s, point.r) for point in wanted} | {("B", point.s, point.t) for point in wanted}
        largest = max((point.r * point.t for point in wanted), default=0)
        need = 8 * (sum(rows * columns for _, rows, columns in sides) + 2 * largest)  # C, and C being replaced
        self._check_room(need)
        launcher(max((point.ranks for point in wanted), default=1), self.given)

    def _check_room(self, need: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if need > free:
            raise OutputError("--scratch", f"needs {need / 1e9:.3g} GB", f"{free / 1e9:.3g} GB in {self.folder}",
                              "Name another folder, or a smaller size.")  # fmt: skip

    def job(self, point: Point, repeat: int) -> Run:
        """Run it; what goes wrong is in the row."""
        a, b = self.matrix("A", point.s, point.r), self.matrix("B", point.s, point.t)
        out, report = self.folder / "C.npy", self.folder / "report.json"
        report.unlink(missing_ok=True)
        words, variables = launcher(point.ranks, self.given)
        files: list[str | Path] = ["--a", a, "--b", b, "--out", out, "--report", report, "--overwrite"]
        job = [sys.executable, "-m", "cmm.run", *files, "--progress", "none", "--seed", str(repeat), *point.flags()]
        ended = run([*words, *job], self.limit, variables)
        try:
            record = load(report)
        except CmmError:
            return Run(point.s, point.r, point.t, point.ranks, point.scheme, point.inject, point.scaling, repeat,
                       command=ended.seconds, remark=self.why(ended))  # fmt: skip
        self.environment = record.environment
        return run_of(point, repeat, record, ended.seconds)

    def why(self, ended: Ended) -> str:
        """Our own message, where there is one among the launcher's."""
        if ended.code is None:
            return f"no end within {self.limit:g} s"
        lines = [line for line in ended.stderr.splitlines() if line.strip()] or ["no message"]
        return f"exit code {ended.code}: {next((line for line in lines if line.startswith('cmm: ')), lines[0])[:300]}"


@contextlib.contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    """A folder of our own below `folder` (default: TMPDIR), 0700, removed afterwards. Raises OutputError."""
    try:
        made = Path(tempfile.mkdtemp(prefix="cmm-bench-", dir=folder))
    except OSError as error:
        raise OutputError("--scratch", "must be a folder that can be written to", str(folder or tempfile.gettempdir()),
                          f"{error.strerror}.") from None  # fmt: skip
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(bench: Bench, wanted: Iterable[Point], repeats: int, store: Store[Run],
          said: Callable[[str], None]) -> list[Run]:  # fmt: skip
    """Run what is missing, or failed before, round by round, so that a machine that drifts drifts under all points
    alike. Returns the rows of the wanted points.

    Raises
    ------
    CmmError : what `Bench.check` finds, before the first run
    """
    chosen = list(wanted)
    bench.check(chosen)
    left = [(point, repeat) for repeat in range(repeats) for point in chosen if (point, repeat) not in store]
    again = sum(key in store.rows for key in left)
    if again:
        said(f"cmm: {again} run{'s' if again > 1 else ''} that failed before {'are' if again > 1 else 'is'} run again")
    for number, (point, repeat) in enumerate(left, start=1):
        row = bench.job(point, repeat)
        store.add(row)
        what = f"{point.s}x{point.r}x{point.t}, {point.ranks} ranks, {point.scheme}, {point.inject}"
        result = f"{row.time:.3g} s" if row.passed else f"{row.check}: {row.outcome} {row.remark}"
        said(f"cmm: {number} of {len(left)}: {what}: {result}")
    wanted_keys = {(point, repeat) for point in chosen for repeat in range(repeats)}
    return [row for key, row in store.rows.items() if key in wanted_keys]


def machine() -> dict[str, Any]:
    """What the numbers were measured on: versions, BLAS, platform, processor, cores, load."""
    from cmm.runtime.surroundings import environment

    np.ones((2, 2)) @ np.ones((2, 2))  # BLAS is loaded before it is asked
    found = environment(threads=1)
    found["processor"] = processor()
    with contextlib.suppress(OSError):
        found["load_average"] = round(os.getloadavg()[0], 2)
    return found


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""
