"""What a job ran on: versions, BLAS, machine, memory. Loads neither NumPy nor MPI."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from typing import Any

import cmm


def version_line(mpi: str) -> str:
    """An MPI library's own text in one line: it has line ends, and a NUL at its end."""
    return " ".join(mpi.replace("\0", " ").split())


def environment(mpi: str = "", threads: int = 1) -> dict[str, Any]:
    """Versions and the machine. `mpi`: the library's version text; `threads`: BLAS threads per rank."""
    return {
        "versions": {"python": platform.python_version(), "cmm": cmm.__version__,
                     **{name: _version(name) for name in ("numpy", "scipy", "mpi4py")}},
        "mpi": version_line(mpi)[:200],
        "blas": _blas(),
        "threads": threads,
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }  # fmt: skip


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    """The BLAS libraries that are loaded, with version and threads."""
    from threadpoolctl import threadpool_info

    found = {f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} thread(s)"
             for pool in threadpool_info() if pool.get("user_api") == "blas"}  # fmt: skip
    return "; ".join(sorted(found))


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
