"""What each MPI and launcher does when a rank dies, and what must be set before MPI_Init. Standard library only.

Measured with Open MPI 5.0, MPICH 5.0 and Slurm 22.05; docs/failures.md has the table.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from cmm.runtime.launch import Launch

SHARED_OF_MPICH, SHARED_OF_OPEN_MPI = "/dev/shm/mpich_shm_", "/dev/shm/sm_segment."
SIGN_OFF_SECONDS = 1.0  # for mpiexec to answer

# Variables that let the surviving ranks communicate on; set unless the user has set them.
SURVIVAL = {
    # Open MPI: a dead peer's socket is an error of that peer's messages, and not the end of this process.
    "OMPI_MCA_mpi_ft_enable": "1",
    # UCX aborts the reader when the memory of a dead peer cannot be read (process_vm_readv); shared memory remains.
    "UCX_TLS": "^cma",
}


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what a surviving rank needs; before MPI is loaded."""
    for name, value in SURVIVAL.items():
        environ.setdefault(name, value)


def forget_shared_memory(alone: bool) -> None:
    """Remove the names of the shared memory that MPI would leave in the memory of the nodes for ever, some MB a job;
    what is mapped stays. To be called when all ranks of a node have left MPI_Init: nobody opens MPICH's after that.

    MPICH removes its file in MPI_Finalize only: not after an abort, or when the launcher is killed. Open MPI opens its
    files later, and its launcher removes them; a single rank without a launcher (`alone`) always leaves its own.
    """
    left = (SHARED_OF_MPICH, SHARED_OF_OPEN_MPI) if alone else (SHARED_OF_MPICH,)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            name = line.split(maxsplit=5)[-1]
            if name.startswith(left):
                with contextlib.suppress(OSError):
                    os.unlink(name)


def sign_off(environ: Mapping[str, str] = os.environ) -> None:
    """Tell MPICH's mpiexec, on behalf of a rank that has died at the end of the job, that it has finalized (PMI-1);
    otherwise the end of its supervisor is taken for a crash. Other launchers do not need it, or cannot be told."""
    text = environ.get("PMI_FD", "")
    if not text.isdigit() or "MPI_LOCALRANKID" not in environ:
        return
    fd = int(text)
    with contextlib.suppress(OSError):
        while select.select([fd], [], [], SIGN_OFF_SECONDS / 10)[0]:  # what the rank did not live to read
            said = os.read(fd, 1024)
            if not said or b"finalize" in said:  # it has finalized
                return
        os.write(fd, b"cmd=finalize\n")
        if select.select([fd], [], [], SIGN_OFF_SECONDS)[0]:  # mpiexec fails when nobody hears its answer
            os.read(fd, 1024)


def of_slurm(launch: Launch, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether srun itself started the ranks (mpirun inside an allocation has daemons of its own)."""
    return "srun" in launch.launcher and "SLURM_PROCID" in environ and "MPI_LOCALRANKID" not in environ


def unsurvivable(launch: Launch, environ: Mapping[str, str] = os.environ) -> str:
    """Why this launcher ends every job in which a rank dies; nothing when it can be kept from doing so."""
    if "OMPI_COMM_WORLD_RANK" not in environ and of_slurm(launch, environ) and "PMIX_RANK" in environ:
        return "srun --mpi=pmix ends the step when a rank dies; use mpirun inside the allocation"
    return ""


def abort_keeps_code(launch: Launch, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether MPI_Abort(code) ends the job with that code: mpirun does, srun makes it 137."""
    return not of_slurm(launch, environ)
