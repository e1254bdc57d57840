"""Checks of one machine that need no MPI: versions, BLAS threads, shared memory, scratch, root, Slurm."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cmm.doctor.findings import Finding, note, ok, wrong
from cmm.engine.forecast import size_text
from cmm.runtime.surroundings import environment

# What an MPI keeps in /dev/shm for each rank of a node: 5.5 MB measured with 8 ranks (MPICH 5.0); others take more.
SHARED_PER_RANK = 16 << 20
SCRATCH = 64 << 20  # bytes that should be free for sessions of the launcher
LONGEST_SCRATCH = 60  # characters: sockets below it have paths of at most 107
SESSIONS = 4  # left-over sessions that are named
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def versions() -> Finding:
    found = environment()["versions"]
    missing = [name for name, version in found.items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)
    if missing:
        return wrong("versions", f"{text}; missing: {', '.join(missing)}", f"{sys.executable} -m pip install cmm")
    return ok("versions", f"{text} ({sys.executable})")


def blas(cores: int, environ: Mapping[str, str] = os.environ) -> Finding:
    """BLAS libraries and threads: cmm.run sets the threads of each rank itself; other programs need the variable."""
    import numpy  # noqa: F401  loads its BLAS, which is what is looked at

    libraries = environment()["blas"]
    if not libraries:
        return note("blas", "NumPy has no BLAS that threadpoolctl knows", "cmm.run --threads N has no effect then; set "
                    "the threads with the library's own variable.")  # fmt: skip
    said = [f"{name}={environ[name]}" for name in THREAD_VARIABLES if name in environ]
    text = f"{libraries} on {cores} core(s)" + (f"; {', '.join(said)}" if said else "")
    if cores > 1 and not said:
        return note("blas", text, "cmm.run uses one thread per rank unless --threads N says otherwise; for "
                    "cmm.matmul in a program of your own set OMP_NUM_THREADS=1.")  # fmt: skip
    return ok("blas", text)


def shared_memory(ranks: int, folder: str = "/dev/shm") -> Finding:
    """Room for so many ranks on this node."""
    if not os.path.isdir(folder):
        return note("shm", f"{folder} does not exist", "MPI falls back to files or TCP on one node, which is slower.")
    usage, needed = shutil.disk_usage(folder), ranks * SHARED_PER_RANK
    text = (
        f"{folder}: {size_text(usage.free)} of {size_text(usage.total)} free; {ranks} rank(s) need {size_text(needed)}"
    )
    if usage.free < needed:
        return wrong("shm", text, "Containers: --shm-size=1g (Docker) or --ipc=host; else remove old files there.")
    return ok("shm", text)


def scratch(folder: str | None = None) -> Finding:
    """TMPDIR: where launchers keep their sessions."""
    folder = folder or os.environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return wrong("scratch", f"{folder} cannot be written: {error.strerror}", "Set TMPDIR to a folder of yours.")
    free = shutil.disk_usage(folder).free
    if free < SCRATCH:
        return wrong("scratch", f"{folder}: {size_text(free)} free", f"Make room, {size_text(SCRATCH)} at least.")
    if len(folder) > LONGEST_SCRATCH:
        return note("scratch", f"{folder} is a long path", "Launchers make sockets below it, whose paths are limited "
                    "to 107 characters: set TMPDIR to a shorter one.")  # fmt: skip
    return ok("scratch", f"{folder} can be written, {size_text(free)} free")


def sessions(folder: str | None = None) -> list[Finding]:
    """What a killed launcher of Open MPI leaves: ompi.PID. The launcher that gets the same PID next ends with 213."""
    place = Path(folder or os.environ.get("TMPDIR") or tempfile.gettempdir())
    dead = [path.name for path in place.glob("ompi.*") if _is_left_over(path)]
    if not dead:
        return []
    names = f"{', '.join(sorted(dead)[:SESSIONS])}{', ...' if len(dead) > SESSIONS else ''}"
    text = f"{len(dead)} session folder(s) of killed launchers in {place}: {names}"
    remedy = (
        "Remove them when none of your jobs runs on this node: an mpirun that happens to get one of these numbers "
        'fails ("PMIx server\'s listener thread failed to start", exit code 213).'
    )
    return [note("sessions", text, remedy)]


def _is_left_over(path: Path) -> bool:
    number = path.name.removeprefix("ompi.")
    try:
        return number.isdigit() and path.stat().st_uid == os.geteuid() and not Path("/proc", number).exists()
    except OSError:  # gone meanwhile
        return False


def root(vendor: str, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Open MPI refuses root unless two variables are set."""
    if os.geteuid() != 0 or vendor != "openmpi":
        return []
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    if all(environ.get(name) == "1" for name in names):
        return [ok("root", "this is root, and Open MPI is told that it may be")]
    return [wrong("root", "this is root, and Open MPI's mpirun refuses to run", f"export {names[0]}=1 {names[1]}=1 (in "
                  "containers), or use another account.")]  # fmt: skip


def slurm(vendor: str, plugins: str | None, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Slurm, its MPI plugins, and the allocation. plugins: what `srun --mpi=list` says, None where it does not work."""
    if shutil.which("srun") is None:
        return []
    if plugins is None:
        return [note("slurm", "srun finds no configuration", "Set SLURM_CONF, or start scripts/slurm-local up.")]
    wanted = "pmi2" if vendor == "mpich" else "pmix"
    inside = f"inside job {environ['SLURM_JOB_ID']}, {environ.get('SLURM_JOB_NUM_NODES', '?')} node(s)" \
        if "SLURM_JOB_ID" in environ else "outside an allocation"  # fmt: skip
    text = f"{inside}; srun can start MPI by {', '.join(plugins.split())}"
    if wanted not in plugins.split():
        return [note("slurm", text, f"No plugin {wanted} for this MPI: use mpirun inside the allocation, not srun.")]
    if vendor == "openmpi":
        return [note("slurm", text, "Use mpirun --bind-to none inside the allocation: srun --mpi=pmix ends a job in "
                     "which a rank dies.")]  # fmt: skip
    return [ok("slurm", f"{text}; mpiexec and srun --mpi={wanted} both survive a killed worker")]
