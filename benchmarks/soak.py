"""A soak: many jobs in sequence and many small tasks in one job, with random kills, freezes and corruption.

    scripts/soak [--jobs 500] [--kinds 2000] [--tasks 200000] [--minutes 10] [--seed 0]
    scripts/soak --short            some 40 s: 50 jobs, 100 of random kinds, 4000 tasks

Four parts, one after another, each compared with NumPy to the last element:

    calls      most of the jobs: `cmm.matmul` again and again on one communicator of 5 ranks. Workers are stopped and
               continued from outside at random moments, and corrupt, delay and stretch their results.
    launches   the other jobs: `mpirun -n 5 python -m cmm.run`, each with workers that die, freeze or corrupt.
    kinds      `cmm.matmul` again and again on matrices, codes and options of every kind, drawn at random
               (benchmarks/soak_kinds.py). A job that is refused has failed, unless it had liars and only C was checked.
    tasks      one `python -m cmm.run` of many tasks of 2 x 2 elements, 6 ranks: two workers die, two corrupt, the rest
               is stopped and continued.

Memory is the resident set of rank 0 and of the largest worker. Calls: the medians of the second and of the last tenth.
Tasks: after three tenths of the time and just before the end. The exit code is 0 only with nothing wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import SHARED, SharedMemory, resident
from benchmarks.soak_calls import CYCLE, LIMITS, error, matrices
from tests.mpi.launch import Launch, launch

HANG = 60.0  # seconds without a finished job, or for one launch
LONG = 30.0  # seconds that the many tasks must take for their memory to be judged


# ---- faults and figures ------------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What was done to the jobs."""

    counts: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def freezing(self, pids: list[int], seed: int, pause: float) -> Iterator[None]:
        """Meanwhile stop one of the processes after another at random moments and let it go on."""
        rng, stop = random.Random(seed), threading.Event()

        def work() -> None:
            while not stop.wait(rng.expovariate(1 / pause)):
                pid = rng.choice(pids)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self.counts["freezes"] += 1
                stop.wait(rng.uniform(0.02, 0.6))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@dataclass
class Part:
    """A line of the table."""

    name: str
    jobs: int = 0
    tasks: int = 0
    wrong: int = 0
    failed: int = 0
    hangs: int = 0
    orphans: int = 0
    memory: str = ""
    flat: bool = True
    files: str = ""
    seconds: float = 0.0
    faults: Faults = field(default_factory=Faults)
    leftovers: list[str] = field(default_factory=list)  # in shared memory
    notes: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        return (
            not (self.wrong or self.failed or self.hangs or self.orphans or self.leftovers)
            and self.flat
            and self.jobs > 0
        )

    def row(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.counts.items()))
        counts = (self.jobs, self.tasks, faults, self.wrong, self.failed, self.hangs, self.orphans)
        cells = (self.name, *counts, self.memory, self.files, f"{self.seconds:.0f}")
        return f"| {' | '.join(map(str, cells))} |"

    def learn(self, report: dict[str, Any], wrong: bool) -> None:
        """Count a finished job."""
        self.jobs += 1
        self.tasks += report["counts"]["tasks_sent"]
        self.wrong += wrong
        self.faults.counts["corrupt results"] += report["counts"]["results_rejected"]
        self.faults.counts["kills"] += sum(worker["status"] == "lost" for worker in report["workers"])


HEAD = ["| part | jobs | tasks sent | faults | wrong C | failed | hangs | orphans "
        "| memory MB, start → end: rank 0; worker | open files | seconds |",
        "|---|---:|---:|---|---:|---:|---:|---:|---|---|---:|"]  # fmt: skip


# ---- calls -------------------------------------------------------------------------------------------------------


def calls(jobs: int, seconds: float, seed: int) -> Part:
    part = Part("calls")
    with tempfile.TemporaryDirectory(prefix="cmm-soak-") as name:
        folder = Path(name)
        with launch(5, "-m", "benchmarks.soak_calls", folder, jobs, seconds) as job:
            pids = [pid for rank, pid in job.ranks().items() if rank]
            with part.faults.freezing(pids, seed, 0.7), SharedMemory(job.processes) as shared:
                part.hangs += not _progresses(job, folder / "calls0", jobs)
            if not part.hangs:
                done = job.wait(HANG + time.monotonic() - job.start)
                part.failed += done.returncode != 0
                part.orphans += len(done.leftovers)
                part.leftovers += shared.leftovers()
                part.notes += [str(done)] if done.returncode else []
            else:
                part.notes.append(f"calls: no progress\n{job.stdout}\n{job.stderr}")
        _read_calls(part, folder)
    return part


def _progresses(job: Launch, lines: Path, jobs: int) -> bool:
    """Wait for all lines, or the launcher's end; False when none comes for HANG seconds."""
    seen, since = 0, time.monotonic()
    while job.process.poll() is None and seen < jobs:
        now = lines.read_bytes().count(b"\n") if lines.exists() else 0
        if now > seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > HANG:
            return False
        time.sleep(0.05)
    return True


def _read_calls(part: Part, folder: Path) -> None:
    ranks = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.glob("calls*"))]
    for line in ranks[0] if ranks else ():
        part.learn(line, line["wrong"])
    late = sum(line["late"] for line in ranks[0]) if ranks else 0
    part.notes += [f"calls: the time was up, the last {late} calls were of 12 x 12 elements"] if late else []
    if not ranks or len(ranks[0]) < 2 * CYCLE:
        return
    start, end = _tenths(ranks[0], "memory")
    pairs = [_tenths(lines, "memory") for lines in ranks[1:]]
    worst = max(pairs, key=lambda pair: pair[1] - pair[0])
    part.memory = f"{start:.1f} → {end:.1f}; {worst[0]:.1f} → {worst[1]:.1f}"
    part.flat = max(end - start, worst[1] - worst[0]) <= 4 + 0.05 * start
    before, after = _tenths(ranks[0], "files")
    part.files = f"{before:.0f} → {after:.0f}"
    part.flat &= after <= before + 2


def _tenths(lines: list[dict[str, Any]], key: str) -> tuple[float, float]:
    """Medians of the second and the last tenth, each of a whole cycle at least."""
    size = max(CYCLE, len(lines) // 10)
    values = [line[key] for line in lines]
    return statistics.median(values[size : 2 * size]), statistics.median(values[-size:])


# ---- kinds -------------------------------------------------------------------------------------------------------


def kinds(jobs: int, seconds: float, seed: int) -> Part:
    part = Part("kinds", memory="–", files="–")
    with tempfile.TemporaryDirectory(prefix="cmm-soak-") as name:
        folder = Path(name)
        with launch(5, "-m", "benchmarks.soak_kinds", folder, jobs, seconds, seed) as job:
            if not _progresses(job, folder / "kinds0", jobs):
                part.hangs += 1
                part.notes.append(f"kinds: no progress\n{job.stdout}\n{job.stderr}")
            else:
                done = job.wait(HANG + time.monotonic() - job.start)
                part.failed += done.returncode != 0
                part.orphans += len(done.leftovers)
                part.notes += [str(done)] if done.returncode else []
        lines = (folder / "kinds0").read_text().splitlines() if (folder / "kinds0").exists() else []
    for line in map(json.loads, lines):
        if "failed" in line:
            part.failed += 1
            part.notes.append(f"kinds: {line['failed']}")
        elif "caught" in line:
            part.jobs += 1
            part.faults.counts["C refused by its check"] += 1
        else:
            part.learn(line, not line["share"] <= 1)
            part.notes += [f"kinds: wrong: {line}"] if not line["share"] <= 1 else []
    return part


# ---- launches ----------------------------------------------------------------------------------------------------


def launches(jobs: int, seconds: float, seed: int) -> Part:
    part, until = Part("launches"), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="cmm-soak-") as name:
        for number in range(jobs):
            if time.monotonic() > until:
                part.notes.append(f"launches: the time was up after {number} of {jobs}")
                break
            _launch_one(part, Path(name), seed + number)
    part.memory, part.files = "–", "–"
    return part


def _launch_one(part: Part, folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice(list(LIMITS))
    A, B = matrices((rng.randint(50, 600), rng.randint(20, 300), rng.randint(20, 300)), dtype, seed)
    for name, matrix in (("A", A), ("B", B)):
        np.save(folder / f"{name}.npy", matrix)
    moment = round(rng.uniform(0, 0.5), 3)
    faults = rng.sample([f"kill:1@{moment}", f"kill:2,3@{moment}", f"freeze:4@{moment}", "corrupt:3:0.5", "slow:2:5",
                         "exp:all:0.01"], rng.randint(1, 3))  # fmt: skip
    flags = [word for fault in faults for word in ("--inject", fault)]
    part.faults.counts["freezes"] += any(fault.startswith("freeze") for fault in faults)
    out, report = folder / "C.npy", folder / "report.json"
    for path in (out, report):
        path.unlink(missing_ok=True)
    words = ("-m", "cmm.run", "--a", folder / "A.npy", "--b", folder / "B.npy", "--out", out, "--report", report,
             "--grid", rng.choice(["4x4", "8x6"]), "--seed", seed, *flags)  # fmt: skip
    with launch(5, *words) as job:
        try:
            with SharedMemory(job.processes) as shared:
                done = job.wait(HANG)
        except subprocess.TimeoutExpired:
            part.hangs += 1
            part.notes.append(f"launch {seed} {faults}: no end after {HANG:.0f} s\n{job.stdout}\n{job.stderr}")
            return
    part.orphans += len(done.leftovers)
    part.leftovers += shared.leftovers()
    if done.returncode or not report.exists():
        part.failed += 1
        part.notes.append(f"launch {seed} {faults}: {done}")
        return
    part.learn(json.loads(report.read_text()), not error(np.load(out), A, B) <= LIMITS[dtype])


# ---- tasks -------------------------------------------------------------------------------------------------------


def tasks(count: int, seconds: float, seed: int) -> Part:
    part, side = Part("tasks"), max(2, round(count**0.5))
    with tempfile.TemporaryDirectory(prefix="cmm-soak-") as name:
        folder = Path(name)
        A, B = matrices((32, 2 * side, 2 * side), "float64", seed)
        for label, matrix in (("A", A), ("B", B)):
            np.save(folder / f"{label}.npy", matrix)
        expected = count * 1e-3
        faults = (f"kill:5@{0.2 * expected:.3f}", f"kill:4@{0.5 * expected:.3f}", f"corrupt:1,2:{6 / count:.3g}")
        words = ("-m", "cmm.run", "--a", folder / "A.npy", "--b", folder / "B.npy", "--out", folder / "C.npy",
                 "--report", folder / "r.json", "--grid", f"{side}x{side}", "--seed", seed,
                 *(word for fault in faults for word in ("--inject", fault)))  # fmt: skip
        with launch(6, *words) as job:
            pids = job.ranks()
            watch = _Memory(pids)
            stoppable = [pid for rank, pid in pids.items() if rank in (1, 2, 3)]
            shared = SharedMemory(lambda: pids.values())
            with part.faults.freezing(stoppable, seed, max(1.0, expected / 40)), watch, shared:
                try:
                    done = job.wait(seconds)
                except subprocess.TimeoutExpired:
                    part.hangs += 1
                    part.notes.append(f"tasks: no end after {seconds:.0f} s\n{job.stdout}\n{job.stderr}")
                    return part
        part.orphans += len(done.leftovers)
        part.leftovers += shared.leftovers()
        if done.returncode:
            part.failed += 1
            part.notes.append(f"tasks: {done}")
            return part
        report = json.loads((folder / "r.json").read_text())
        part.learn(report, not error(np.load(folder / "C.npy"), A, B) <= LIMITS["float64"])
        (start, end), (first, last) = watch.ends()
        part.files, part.memory = "–", "–"
        if report["seconds"]["total"] > LONG:
            grown = 1e6 * (end - start) / (0.7 * count)
            part.memory = f"{start:.0f} → {end:.0f} ({grown:.0f} B a task); {first:.1f} → {last:.1f}"
            part.flat = last - first <= 2 and grown <= 300  # rank 0 knows every task again
    return part


class _Memory:
    """Samples the resident sets of a job's ranks while it runs."""

    def __init__(self, pids: dict[int, int]) -> None:
        self._pids, self._samples = pids, list[list[float]]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.1):
            sample = [resident(self._pids[rank]) for rank in sorted(self._pids)]
            if sample[0]:
                self._samples.append(sample)

    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """(start, end) of rank 0, and of worker 3, which lives to the end."""
        first = self._samples[3 * len(self._samples) // 10]
        alive = [sample for sample in self._samples if sample[3]]
        last = alive[max(0, len(alive) - 1 - len(alive) // 20)]  # before rank 0 makes the report
        return (first[0], last[0]), (first[3], last[3])


# ---- the whole ---------------------------------------------------------------------------------------------------


def soak(jobs: int, various: int, count: int, minutes: float, seed: int) -> int:
    """Run all parts and print the table; 0 when everything was right."""
    start = time.monotonic()
    total, started = 60 * minutes, jobs // 8
    parts = []
    for work, number, share in ((calls, jobs - started, 0.3), (kinds, various, 0.2), (launches, started, 0.4),
                                (tasks, count, 1.0)):  # fmt: skip
        begin = time.monotonic()
        left = total - (begin - start)
        part = work(number, share * total if share < 1 else left, seed)
        part.seconds = time.monotonic() - begin
        parts.append(part)
        print(f"{part.name}: {part.seconds:.0f} s, {'fine' if part.fine else 'NOT FINE'}", flush=True)
    leftovers = [name for part in parts for name in part.leftovers]
    print("\n".join(["", *HEAD, *(part.row() for part in parts), ""]))
    print("\n".join(note for part in parts for note in part.notes))
    print(f"left in {SHARED}: {', '.join(leftovers) or 'nothing'}; seed {seed}, {time.monotonic() - start:.0f} s")
    return 0 if all(part.fine for part in parts) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--kinds", type=int, default=2000, help="jobs of random kinds")
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=10, help="an upper bound")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="50 jobs, 100 of random kinds, 4000 tasks")
    options = parser.parse_args()
    if options.short:
        options.jobs, options.kinds, options.tasks, options.minutes = 50, 100, 4000, 2
    return soak(options.jobs, options.kinds, options.tasks, options.minutes, options.seed)


if __name__ == "__main__":
    sys.exit(main())
