"""The doctor under a launcher: every rank runs it, rank 0 speaks. Is it one world, and how is it laid out?"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cmm.doctor import site
from cmm.doctor.findings import Finding, note, ok, wrong
from cmm.doctor.launching import INSTALL, judge_world
from cmm.runtime.launch import Launch


def examine(launch: Launch) -> list[Finding] | None:
    """The findings, on rank 0; None on the others. Collective over what MPI takes for the world."""
    from cmm.runtime import probe
    from cmm.runtime.library import library

    found, mpi = probe.world(), library()
    if launch.size is not None and not launch.first:
        return None
    assert found is not None or launch.size is None
    if found is None:
        return None
    findings = [ok("mpi", f"{mpi['version']}, from {mpi['path'] or 'an unknown file'}"),
                *judge_world([found], launch.size or found["size"], launch.launcher)]  # fmt: skip
    return [*findings, *layout(found), *here(found, mpi["vendor"])]


def layout(found: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Ranks per node against cores, with the threads that each rank may start."""
    per_host = Counter(found["hosts"])
    threads = int(environ.get("OMP_NUM_THREADS", "1")) if environ.get("OMP_NUM_THREADS", "1").isdigit() else 1
    cores = {
        host: max(n for h, n in zip(found["hosts"], found["cores"], strict=True) if h == host) for host in per_host
    }
    text = f"{found['size']} ranks on {len(per_host)} host(s), at most {max(per_host.values())} on one"
    if found["shared_core"]:
        return [wrong("layout", f"{text}; several are bound to the same core", "Open MPI: mpirun --bind-to none; srun: "
                      "--cpu-bind=none, or --cpus-per-task for each rank.")]  # fmt: skip
    crowded = [host for host, ranks in per_host.items() if ranks * threads > cores[host]]
    if crowded:
        host = crowded[0]
        return [note("layout", f"{text}; {host}: {per_host[host]} rank(s) with {threads} thread(s) on {cores[host]} "
                     "core(s)", "Start fewer ranks per node, or fewer threads (--threads).")]  # fmt: skip
    return [ok("layout", f"{text}, {threads} BLAS thread(s) each")]


def here(found: Mapping[str, Any], vendor: str) -> list[Finding]:
    """The machine of rank 0."""
    ranks = Counter(found["hosts"])[found["hosts"][0]]
    return [site.versions(), site.blas(found["cores"][0]), site.shared_memory(ranks), site.scratch()]


def broken(error: Exception) -> list[Finding]:
    """MPI could not be loaded under the launcher."""
    first = (str(error).splitlines() or ["no message"])[0]
    return [wrong("mpi", f"mpi4py cannot load an MPI library: {first} ({sys.executable})", INSTALL)]  # fmt: skip
