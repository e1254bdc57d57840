"""`python -m cmm.run` from MPI_Init on: one verdict for all ranks, then rank 0 leads and the others work.

Importing this module initialises MPI. It loads no more than a worker needs; what rank 0 needs is in `leader`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from types import TracebackType

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from cmm.core.errors import CmmError, ExitCode
from cmm.core.spec import JobSpec, check_ranks
from cmm.runtime import launch
from cmm.runtime.endpoint import Endpoint, endpoint
from cmm.runtime.injection import Injector
from cmm.runtime.worker import Worker

ABORT_WAIT = 5.0  # seconds that a rank waits to be ended by an Abort before it leaves by itself


def run_job(spec: JobSpec) -> int:
    """Run the job on all ranks of the world; returns the exit code, or ends the process by Abort when ranks are
    frozen (Finalize would wait for them)."""
    sys.excepthook = _abort_hook
    world = MPI.COMM_WORLD
    try:
        launch.check_world(world.size)
        check_ranks(spec.inject, world.size - 1)
    except CmmError as error:
        return launch.refuse(error)
    with threadpool_limits(limits=spec.threads, user_api="blas"):
        end = endpoint(world)
        end.next_job()
        if end.master:
            from cmm.runtime.leader import Leader  # loads what only rank 0 needs

            return Leader(spec, end).run()
        verdict = share_verdict(end, 0)
        if verdict:
            return verdict
        header, _ = Worker(end.comm, end.jobs, Injector(world.rank, spec.inject, spec.seed)).run()
        return header.value


def share_verdict(end: Endpoint, code: int) -> int:
    """Rank 0's verdict on files and parameters, on every rank."""
    verdict = np.array([code], dtype=np.int64)
    end.comm.Bcast([verdict, MPI.INT64_T], root=0)
    return int(verdict[0])


def abort(code: int) -> None:
    """End all ranks, the frozen ones too; everything of ours is flushed and synced."""
    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(code)
    time.sleep(ABORT_WAIT)
    os._exit(code)


def _abort_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception nobody caught would hang the other ranks: say it and end the job."""
    rank = MPI.COMM_WORLD.rank if MPI.Is_initialized() and not MPI.Is_finalized() else None
    text = "".join(traceback.format_exception(kind, error, trace))
    launch.say(f"cmm: uncaught exception on rank {rank}\n{text}")
    if rank is not None:
        abort(int(ExitCode.INTERNAL))
