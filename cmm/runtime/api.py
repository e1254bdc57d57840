"""`cmm.matmul`: the product as a collective call on a user's communicator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from cmm.core.errors import (
    CmmError,
    ExitCode,
    InaccurateError,
    IncompleteError,
    Outcome,
    UnverifiedError,
    UsageError,
)
from cmm.core.grid import Grid
from cmm.core.spec import Injection, check_ranks
from cmm.core.task import Array
from cmm.runtime.endpoint import Endpoint, endpoint
from cmm.runtime.injection import Injector
from cmm.runtime.report import Record, Status, environment
from cmm.runtime.worker import Worker

if TYPE_CHECKING:
    from cmm.runtime.session import Options

UNSUPERVISED = ("the death of a rank would end the whole program: only python -m cmm.run supervises its ranks "
                "(slow and frozen workers are survived here too)")  # fmt: skip
GRACE_SECONDS = 0.3  # how long the master waits for acknowledgements once it has C


def matmul(A: npt.ArrayLike | None = None, B: npt.ArrayLike | None = None, comm: MPI.Comm | None = None, *,
           op: str = "T", code: str = "fr", grid: Grid | str | None = None, tasks: int | None = None,
           params: Mapping[str, Any] | None = None, dispatch: str = "pull", seed: int = 0,
           tolerance: float | None = None, verify: str = "all", threads: int | None = 1,
           give_up: float | None = None, inject: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """Compute C = A^T B (op "T") or A^H B (op "H") over the ranks of `comm`; done when enough of them have answered.

    Collective on `comm` (default: the world): rank 0, the master, passes A (s x r) and B (s x t), 1-D counts as one
    column; the workers pass nothing. Never aborts and never finalizes MPI: with a frozen worker the master returns,
    and the next call on that communicator treats the worker as a straggler. The other parameters mean what the flags
    of `python -m cmm.run` mean; `inject` must be the same on all ranks. `threads=None` leaves BLAS threads alone.

    Returns
    -------
    (C, report) on rank 0, (None, report) on the workers; C is r x t in the working dtype (float32, float64, complex64
    or complex128), report a dict like the command's report file (without events on the workers).

    Raises
    ------
    CmmError : on every rank that can be reached, of the class that says why (see cmm.core.errors)
    """
    injections = tuple(Injection.parse(text) for text in inject)
    end = endpoint(comm if comm is not None else MPI.COMM_WORLD)
    check_ranks(injections, end.comm.size - 1)
    end.next_job()
    with threadpool_limits(limits=threads, user_api="blas"):
        if not end.master:
            return None, _work(end, injections, seed)
        from cmm.runtime.session import Options  # loads what only the master needs

        options = Options(op, code, Grid.parse(grid) if isinstance(grid, str) else grid, tasks, params or {}, dispatch,
                          seed, tolerance, verify, give_up)  # fmt: skip
        return _lead(end, A, B, options, threads or 0)


def _work(end: Endpoint, injections: Sequence[Injection], seed: int) -> dict[str, Any]:
    worker = Worker(end.comm, end.jobs, Injector(end.comm.rank, injections, seed))
    header, text = worker.run()
    report: dict[str, Any] = json.loads(text) if text else {}
    if header.value != ExitCode.COMPLETE:
        raise _error(header.value, f"the master ended the job: {report.get('message', 'no message')}")
    return report


def _error(code: int, message: str) -> CmmError:
    kinds: dict[int, type[CmmError]] = {3: UnverifiedError, 4: IncompleteError, 5: InaccurateError}
    error = kinds.get(code, CmmError)(message)
    error.exit_code = ExitCode(code)
    return error


def _lead(end: Endpoint, A: Any, B: Any, options: Options, threads: int) -> tuple[Array, dict[str, Any]]:
    from cmm.runtime.session import Clock, Session, as_source

    record, clock = Record(), Clock()
    record.environment = environment(MPI.Get_library_version(), threads)
    if end.link is not None and end.link.failures.watch is None:
        record.warnings.append(UNSUPERVISED)
    try:
        if A is None or B is None:
            raise UsageError("A, B", "must be given on rank 0 of the communicator", "None", "Pass both matrices there.")
        session = Session(as_source(A, "A"), as_source(B, "B"), options, end.link, record, clock)
        C = session.run()
        record.end(Outcome.COMPLETE, ExitCode.COMPLETE)
    except CmmError as error:
        record.end(error.outcome, error.exit_code, str(error))
        raise
    except BaseException as error:
        record.end(Outcome.ERROR, ExitCode.INTERNAL, f"{type(error).__name__}: {error}")
        raise
    finally:
        drain(end, record)
        clock.into(record.seconds)
        part(end, record)
    return C, json.loads(record.to_json())


def drain(end: Endpoint, record: Record) -> bool:
    """Stop the workers and wait a little for their acknowledgements; those that stay silent are stragglers in the
    record. True when all of them answered."""
    if end.link is None:
        return True
    if not end.link.boxes:  # the job ended before it began
        end.link.open((0, 0), end.link.pool.dtype)
    heard = end.link.drain(GRACE_SECONDS)
    for rank, how in end.link.lost.items():
        entry = record.worker(rank)
        entry.host, entry.status, entry.reason = end.link.hosts[rank], Status.LOST, how
    for rank in end.link.owing:
        entry = record.worker(rank)
        entry.host = entry.host or end.link.hosts[rank]
        if entry.status is Status.OK:
            entry.status, entry.reason = Status.STRAGGLER, "did not answer at the end of the job"
    return heard


def part(end: Endpoint, record: Record) -> bool:
    """End the job for the workers. True when all of them heard it and MPI can be finalized."""
    heard = drain(end, record)
    return end.link is None or (end.link.goodbye(int(record.exit_code), short_report(record)) and heard)


def short_report(record: Record) -> bytes:
    """The report without what grows with the number of tasks, as it is sent to the workers."""
    table = json.loads(record.to_json())
    table["events"] = []
    for entry in table["workers"]:
        entry["task_seconds"] = []
    text: bytes = json.dumps(table).encode()
    if len(text) > 1 << 19:
        text = json.dumps({key: table[key] for key in ("version", "outcome", "exit_code", "message")}).encode()
    return text
