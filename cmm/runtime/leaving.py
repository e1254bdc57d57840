"""How a rank leaves MPI when others may be dead or frozen. Nothing here waits for them longer than a stated time.

MPI_Finalize waits for every rank, so it is used only when all of them are there, and even then under guard: a rank
that dies inside it would hold the job for ever. Otherwise the job is aborted with its own exit code, which is 0 when C
is complete.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from mpi4py import MPI

from cmm.runtime import launch, stopping
from cmm.runtime.failures import Failures
from cmm.runtime.habits import abort_keeps_code
from cmm.runtime.handshake import Frame
from cmm.runtime.supervisor import Tie

ABORT_WAIT = 5.0  # a rank waits this long to be ended by an abort before it leaves by itself
LEAVE_WAIT = 0.5  # for the supervisors to end their ranks where an abort is of no use
FINALIZE_SECONDS = 8.0  # longer than this nobody waits for the others in MPI_Finalize

OnDeath = Callable[[Mapping[int, str], bool], None]


def finalize(code: int, failures: Failures, on_death: OnDeath = lambda dead, aborting: None) -> None:
    """Finalize MPI; the exit code will be `code`. On rank 0 under guard: when a rank dies and the others do not get
    past it, or nothing happens for FINALIZE_SECONDS, the job ends here with that code.

    on_death : told who died, and whether the job is aborted for it
    """
    stopping.ignore()
    if failures.tie is None:
        return  # nobody hides deaths: the launcher ends the job, and mpi4py finalizes when Python ends
    failures.tie.farewell(code)
    library = _library("libmpi.so") if failures.watch is not None else None
    if library is None:
        MPI.Finalize()
        return
    assert failures.watch is not None
    failures.watch.tell_all(Frame.FAREWELL, code)
    done = threading.Event()
    guard = threading.Thread(target=_guard, args=(code, failures, on_death, done), daemon=True)
    guard.start()
    library.MPI_Finalize()  # mpi4py's Finalize would keep the guard from running
    done.set()
    guard.join()
    failures.watch.close()


def _guard(code: int, failures: Failures, on_death: OnDeath, done: threading.Event) -> None:
    until = time.monotonic() + FINALIZE_SECONDS
    dead: dict[int, str] = {}
    while not done.wait(0.01) and time.monotonic() < until:
        dead |= failures.poll()
        if dead and not done.wait(0.1):  # what is nearly finished may finish
            break
    dead |= failures.poll()
    if dead:
        on_death(dead, not done.is_set())
    if not done.is_set():
        _end_without_mpi(code, failures)


def _end_without_mpi(code: int, failures: Failures) -> None:
    """End all ranks while this one is inside MPI_Finalize, where MPI_Abort is not allowed: ask the launcher."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not abort_keeps_code(launch.detect()):
        _end_by_supervisors(code, failures)
    fd = os.environ.get("PMI_FD", "")
    if fd.isdigit():  # PMI-1, as spoken by MPICH's mpiexec and its relatives
        os.write(int(fd), f"cmd=abort exitcode={code}\n".encode())
    elif (pmix := _library("libpmix.so")) is not None:
        pmix.PMIx_Abort(code, b"", None, ctypes.c_size_t(0))
    time.sleep(ABORT_WAIT)
    os._exit(code)


def end_job(code: int, failures: Failures | None = None) -> NoReturn:
    """End all ranks with this exit code, the frozen ones too. Everything of ours has been flushed and synced."""
    sys.stdout.flush()
    sys.stderr.flush()
    if failures is not None and failures.tie is not None:
        failures.tie.farewell(code)
    if failures is not None and failures.watch is not None:
        if not abort_keeps_code(launch.detect()):
            _end_by_supervisors(code, failures)
        failures.watch.tell_all(Frame.FAREWELL, code)
    MPI.COMM_WORLD.Abort(code)
    time.sleep(ABORT_WAIT)
    os._exit(code)


def _end_by_supervisors(code: int, failures: Failures) -> NoReturn:
    """srun turns every abort into 137; so each supervisor ends its rank and exits with the code."""
    if failures.watch is not None:
        failures.watch.tell_all(Frame.LEAVE, code)
    time.sleep(LEAVE_WAIT)
    os._exit(code)


def drop_out(text: str, tie: Tie | None) -> NoReturn:
    """This rank cannot reach rank 0 any more: end it. With a supervisor the job goes on; without one it ends."""
    launch.say(f"cmm: rank {MPI.COMM_WORLD.rank} leaves: {text}")
    if tie is None:
        MPI.COMM_WORLD.Abort(70)
    os._exit(70)


def _library(name: str) -> ctypes.CDLL | None:
    """The library of that name that this process has loaded already."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        path = next((line.split(maxsplit=5)[5] for line in lines if name in line), None)
        return None if path is None else ctypes.CDLL(path)
    except OSError:
        return None
