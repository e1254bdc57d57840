"""What the launcher says about this process, before MPI starts. Standard library only.

Each MPI has its own variables, and a launcher inside a Slurm allocation leaves Slurm's (which then count daemons, not
ranks) in place: so the MPI's own come first and Slurm's count only when there are no others.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from cmm.core.errors import CmmError, ExitCode, UsageError

SILENT_WAIT = 1.0  # seconds that a silent rank waits before it exits, so that the speaking one is heard first

# rank variable, size variable, rank on the node, what started us; the first complete line wins
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI's mpirun"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "a PMI launcher (MPICH's mpiexec, or srun --mpi=pmi2)"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "a PMIx launcher (srun --mpi=pmix)"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "Slurm's srun without an MPI plugin"),
)


@dataclass(frozen=True)
class Launch:
    """Rank and size according to the launcher; None when it does not say. `launcher` names it, for messages."""

    rank: int | None
    size: int | None
    local_rank: int | None
    launcher: str

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank in (None, 0)


def detect(environ: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables."""
    mpi_size = any(_number(environ, name) is not None for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    for rank_name, size_name, local_name, launcher in _LAUNCHERS:
        rank, size = _number(environ, rank_name), _number(environ, size_name)
        slurm = size_name.startswith("SLURM_")
        if slurm and (mpi_size or "SLURM_PTY_PORT" in environ):  # in a shell of srun --pty only task 0 runs
            continue
        if rank is not None and (size is not None or rank_name == "PMIX_RANK"):
            return Launch(rank, size, _number(environ, local_name), launcher)
    return Launch(None, None, None, "no launcher")


def my_rank() -> int | None:
    """This process's rank according to the launcher; None without one."""
    return detect().rank


def world_size() -> int | None:
    """The number of ranks according to the launcher; None without one."""
    return detect().size


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def check_world(size: int) -> None:
    """Compare MPI's world size with the launcher's. Raises UsageError when a mismatched launcher made singletons."""
    launch = detect()
    if launch.size is not None and launch.size != size:
        raise UsageError("launcher", f"{launch.launcher} started {launch.size} ranks, but MPI sees {size}; "
                         "the launcher belongs to another MPI than mpi4py uses", f"a world of {size}",
                         f"Use the mpirun of the MPI in this environment ({os.path.dirname(sys.executable)}), "
                         "or srun with that MPI's plugin (--mpi=pmix for Open MPI, --mpi=pmi2 for MPICH).")  # fmt: skip


def open_streams() -> None:
    """Give a process that was started with stdin, stdout or stderr closed (`2>&-`) the null device there: the next file
    that is opened would take the place, and receive what is meant for people."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (to the end)


def say(text: str) -> None:
    """Write one message to stderr in one piece, so that messages of several ranks do not interleave. Where nothing can
    be written (a full disk) the job goes on in silence."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        forget_stderr()


def forget_stdout() -> None:
    """Its reader has left, or it is full: what is buffered must not fail once more at the interpreter's end."""
    _forget(sys.stdout)


def forget_stderr() -> None:
    """The same for stderr."""
    _forget(sys.stderr)


def _forget(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def interrupted() -> int:
    """For a KeyboardInterrupt before there was a job that could be ended in order. Returns the exit code; raises it
    again where a hook for uncaught exceptions waits for it, which ends the other ranks too."""
    if sys.excepthook is not sys.__excepthook__:
        raise
    say("cmm: interrupted before the job began")
    return int(ExitCode.STOPPED)


def refuse(error: CmmError, *, everywhere: bool = True) -> int:
    """Explain an error that every rank found by itself, once: the first rank prints, the others wait. Returns the
    exit code, with which all of them exit.

    everywhere : False when the error depends on the node (a job file that is not there): then the first rank on each
        other node prints too, after the wait, with the node's name
    """
    launch = detect()
    if launch.first:
        say(f"cmm: {error}")
        return int(error.exit_code)
    time.sleep(SILENT_WAIT)
    if not everywhere and launch.local_rank == 0:
        say(f"cmm: on {socket.gethostname()}: {error}")
    return int(error.exit_code)
