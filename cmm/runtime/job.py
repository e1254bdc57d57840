"""`python -m cmm.run` from MPI_Init on: rank 0 leads, the others work.

Importing this module initialises MPI. It loads no more than a worker needs; what rank 0 needs is in `leader`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

from mpi4py import MPI
from threadpoolctl import threadpool_limits

from cmm.core.errors import CmmError, ExitCode
from cmm.core.spec import Injection, JobSpec, check_ranks
from cmm.runtime import failures, launch, leaving, stopping
from cmm.runtime.endpoint import Endpoint, endpoint
from cmm.runtime.injection import Injector
from cmm.runtime.supervisor import Tie
from cmm.runtime.worker import MasterLostError, Worker


def run_job(spec: JobSpec, tie: Tie | None = None) -> int:
    """Run the job on all ranks of the world; returns the exit code, or ends the process by Abort when ranks are
    frozen or dead (Finalize would wait for them). `tie`: to this rank's supervisor."""

    def lead(end: Endpoint, watched: failures.Failures) -> int:
        from cmm.runtime.leader import Leader  # loads what only rank 0 needs

        return Leader(spec, end, watched).run()

    def work(end: Endpoint) -> int:
        return Worker(end.comm, end.jobs, Injector(end.comm.rank, spec.inject, spec.seed)).run()[0].value

    return run_ranks(spec.inject, spec.threads, lead, work, tie)


def run_ranks(inject: Sequence[Injection], threads: int, lead: Callable[[Endpoint, failures.Failures], int],
              work: Callable[[Endpoint], int], tie: Tie | None = None) -> int:  # fmt: skip
    """Let rank 0 `lead` and the others `work`; returns the exit code, or ends the process as `run_job` does.

    inject : checked against the ranks there are
    threads : of BLAS
    """
    sys.excepthook = _abort_hook
    world = MPI.COMM_WORLD
    try:
        launch.check_world(world.size)
        check_ranks(inject, world.size - 1)
    except CmmError as error:
        return launch.refuse(error)
    with threadpool_limits(limits=threads, user_api="blas"):
        end = endpoint(world)
        end.next_job()
        watched = failures.meet(end.comm, tie)  # the last collective call: from here on a rank may die
        stopping.listen_to_all()
        if end.master:
            return lead(end, watched)
        try:
            code = work(end)
        except MasterLostError as error:
            leaving.drop_out(str(error), tie)
    leaving.finalize(code, watched)
    return code


def _abort_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception nobody caught would hang the other ranks: say it and end the job."""
    rank = MPI.COMM_WORLD.rank if MPI.Is_initialized() and not MPI.Is_finalized() else None
    if issubclass(kind, KeyboardInterrupt):
        launch.say("cmm: interrupted; C was not written")
        code = ExitCode.STOPPED
    else:
        launch.say(
            f"cmm: uncaught exception on rank {rank}\n" + "".join(traceback.format_exception(kind, error, trace))
        )
        code = ExitCode.INTERNAL
    if rank is not None:
        leaving.end_job(int(code))
