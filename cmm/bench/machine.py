"""The machine's profile, measured: products, copies, messages, disk. Written as the simulator reads it."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cmm.bench.measure import machine
from cmm.bench.processes import launcher, run
from cmm.core.errors import InternalError
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.simulate.profile import MachineProfile

ROUNDS = 7
COPY_BYTES = 1 << 28  # beyond the caches of today's processors
DISK_BYTES = 1 << 28
LIMIT = 120.0  # seconds of the message test


@dataclass(frozen=True)
class Disk:
    """bytes/s of a file in the scratch folder: written and synced; read again, most likely from the page cache."""

    write: float
    read: float


def measure(folder: Path, given: str | None, size: int, name: str) -> tuple[MachineProfile, dict[str, Any]]:
    """(profile, how it was measured and what else was).

    Parameters
    ----------
    folder : for the file of the disk test
    given : the launcher, see `launcher`
    size : of the product, size^3

    Raises
    ------
    InternalError : no messages could be measured
    UsageError : a launcher that cannot be started
    """
    launcher(2, given)
    one = gemm(size, 1)
    cores = len(os.sched_getaffinity(0))
    messages = pingpong(given)
    profile = MachineProfile(one, copy_bandwidth(), messages["latency"], messages["bandwidth"], name)
    more = {
        **machine(),
        "host": socket.gethostname(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gemm_size": size, "gemm_all_cores": gemm(size, cores), "disk": asdict(disk(folder)), "mpi": messages["mpi"],
    }  # fmt: skip
    return profile, more


def to_json(profile: MachineProfile, more: Mapping[str, Any]) -> str:
    """What `MachineProfile.load` reads."""
    return json.dumps({**asdict(profile), "measured": more}, indent=1) + "\n"


def best(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median seconds of an action, after one that warms up."""
    action()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def gemm(size: int, threads: int) -> float:
    """flop/s of a float64 product of size^3 with so many BLAS threads."""
    A, B = generator(0, "profile").standard_normal((2, size, size))
    C = np.empty((size, size))
    with threadpool_limits(limits=threads, user_api="blas"):
        return 2.0 * size**3 / best(lambda: np.matmul(A.T, B, out=C))


def copy_bandwidth() -> float:
    """bytes/s, read plus written, of NumPy's copy of a large array onto a touched one."""
    source: Array = np.ones(COPY_BYTES // 8)
    target = np.zeros_like(source)
    return 2.0 * source.nbytes / best(lambda: np.copyto(target, source))


def disk(folder: Path) -> Disk:
    """Of one file, written as `cmm.run` writes C."""
    data = np.ones(DISK_BYTES // 8)
    path, view = folder / "disk.bin", data.view(np.uint8).data

    def write() -> None:
        with open(path, "wb") as file:
            file.write(view)
            file.flush()
            os.fsync(file.fileno())

    written = data.nbytes / best(write, 3)
    read = data.nbytes / best(lambda: np.fromfile(path), 3)
    path.unlink()
    return Disk(written, read)


def pingpong(given: str | None) -> dict[str, Any]:
    """Latency, bandwidth and the MPI library, between two ranks under the launcher. Raises InternalError."""
    words, variables = launcher(2, given)
    ended = run([*words, sys.executable, "-m", "cmm.runtime.pingpong"], LIMIT, variables)
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    lines = ended.stderr.strip().splitlines() or ["no message"]
    raise InternalError(f"messages could not be measured with {' '.join(words)}: exit code {ended.code}: {lines[-1]}")


def profile_lines(profile: MachineProfile, more: Mapping[str, Any]) -> list[str]:
    """For people."""
    disk = more["disk"]
    return [
        f"{more['host']}, {more['processor']}, {more['cores']} cores, load average {more.get('load_average', '–')}",
        f"product   {profile.gemm / 1e9:8.1f} Gflop/s on one core, {more['gemm_all_cores'] / 1e9:.1f} on all "
        f"({more['gemm_size']}^3, float64)",
        f"copy      {profile.copy / 1e9:8.1f} GB/s read plus written",
        f"messages  {profile.latency * 1e6:8.1f} µs, {profile.bandwidth / 1e9:.1f} GB/s one way ({more['mpi'][:40]})",
        f"disk      {disk['write'] / 1e9:8.2f} GB/s written and synced, {disk['read'] / 1e9:.2f} GB/s read again",
    ]  # fmt: skip
