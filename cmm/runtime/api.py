"""`cmm.matmul`: the product as a collective call on a user's communicator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from cmm.core.errors import (
    CmmError,
    DataError,
    ExitCode,
    InaccurateError,
    IncompleteError,
    InputMissingError,
    InternalError,
    Outcome,
    OutputError,
    UnverifiedError,
    UsageError,
)
from cmm.core.grid import Grid
from cmm.core.rules import message_limit
from cmm.core.spec import OPTIONAL, Injection, check_ranks, check_value
from cmm.core.task import Array
from cmm.runtime.endpoint import Endpoint, endpoint
from cmm.runtime.injection import Injector
from cmm.runtime.report import Record, Status, environment
from cmm.runtime.worker import Worker

if TYPE_CHECKING:
    from cmm.matrices.files import MatrixSource
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
    if comm is not None and (not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL):
        raise UsageError("comm", "must be an MPI communicator", repr(comm), "Pass for example MPI.COMM_WORLD.")
    message_limit()  # and inject: what every rank finds by itself, before any is committed
    injections = tuple(Injection.parse(text, "inject") for text in ([inject] if isinstance(inject, str) else inject))
    end = endpoint(comm if comm is not None else MPI.COMM_WORLD)
    end.next_job()  # from here on no rank may leave without the others: what is refused is refused by rank 0 for all
    seed, threads = _plain(seed), _plain(threads)
    given = {"op": op, "code": code, "grid": grid, "tasks": tasks, "params": params, "dispatch": dispatch, "seed": seed,
             "tolerance": tolerance, "verify": verify, "give_up": give_up}  # fmt: skip
    with threadpool_limits(limits=threads if isinstance(threads, int) and threads > 0 else None, user_api="blas"):
        if end.master:
            return _lead(end, A, B, given, threads, injections)
        return None, _work(end, injections, seed)


def _work(end: Endpoint, injections: Sequence[Injection], seed: int) -> dict[str, Any]:
    usable = seed if isinstance(seed, int) and seed >= 0 else 0  # rank 0 refuses any other
    injector = Injector(end.comm.rank, injections, usable)
    try:
        header, text = Worker(end.comm, end.jobs, injector, end.spare).run()
    finally:
        injector.cancel()
    report: dict[str, Any] = json.loads(text) if text else {}
    if header.value != ExitCode.COMPLETE:
        raise _error(header.value, f"the master ended the job: {report.get('message', 'no message')}")
    return report


KINDS: dict[int, type[CmmError]] = {
    ExitCode.UNVERIFIED: UnverifiedError, ExitCode.INCOMPLETE: IncompleteError, ExitCode.INACCURATE: InaccurateError,
    ExitCode.USAGE: UsageError, ExitCode.DATA: DataError, ExitCode.NO_INPUT: InputMissingError,
    ExitCode.CANNOT_WRITE: OutputError,
}  # fmt: skip


def _error(code: int, message: str) -> CmmError:
    """The error that rank 0 raised, on a worker: same class and exit code, its text told."""
    kind = KINDS.get(code, InternalError)
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.exit_code = ExitCode(code)
    return error


def _options(given: Mapping[str, Any], threads: int | None) -> Options:
    """The options by the rules of the command's flags. Raises UsageError."""
    from cmm.runtime.session import Options  # loads what only the master needs

    values = {name: _plain(value) for name, value in given.items()}
    if isinstance(values["grid"], str):
        values["grid"] = Grid.parse(values["grid"])
    params = values["params"] if values["params"] is not None else {}
    if not isinstance(params, Mapping):
        raise UsageError("params", "must be a mapping of names to values", repr(params), "Use a dict.")
    values["params"] = {str(key): str(value) for key, value in params.items()}
    for name, value in values.items():
        if value is not None or name not in OPTIONAL:
            check_value(name, value, name)
    if threads is not None:
        check_value("threads", threads, "threads")
    return Options(**values)


def _plain(value: Any) -> Any:
    """Python's own number for one of NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def _source(matrix: Any, name: str) -> MatrixSource:
    from cmm.runtime.session import as_source

    try:
        return as_source(matrix, name)
    except (ValueError, TypeError) as error:
        raise DataError(name, "must be a matrix or vector of numbers", f"{type(matrix).__name__} ({error})",
                        "Pass a NumPy array.") from error  # fmt: skip


def _lead(end: Endpoint, A: Any, B: Any, given: Mapping[str, Any], threads: int | None,
          injections: Sequence[Injection]) -> tuple[Array, dict[str, Any]]:  # fmt: skip
    from cmm.runtime.session import Clock, Session

    record, clock = Record(), Clock()
    record.environment = environment(MPI.Get_library_version(), threads if isinstance(threads, int) else 0)
    if end.link is not None and end.link.failures.watch is None:
        record.warnings.append(UNSUPERVISED)
    try:
        options = _options(given, threads)
        check_ranks(injections, end.comm.size - 1)
        if A is None or B is None:
            raise UsageError("A, B", "must be given on rank 0 of the communicator", "None", "Pass both matrices there.")
        session = Session(_source(A, "A"), _source(B, "B"), options, end.link, record, clock)
        C = session.run()
        record.end(Outcome.COMPLETE, ExitCode.COMPLETE)
    except CmmError as error:
        record.end(error.outcome, error.exit_code, str(error))
        raise
    except BaseException as error:
        record.end(Outcome.ERROR, ExitCode.INTERNAL, f"{type(error).__name__}: {error}")
        raise
    finally:
        drain(end, record, without_stragglers=True)  # MPI goes on: a late acknowledgement is as good in the next call
        clock.into(record.seconds)
        part(end, record, without_stragglers=True)
    return C, json.loads(record.to_json())


def drain(end: Endpoint, record: Record, *, without_stragglers: bool = False) -> bool:
    """Stop the workers and wait a little for their acknowledgements; those that stay silent are stragglers in the
    record. True when all of them answered.

    without_stragglers : not for those of workers that the record does not call ok
    """
    if end.link is None:
        return True
    if not end.link.boxes:  # the job ended before it began
        end.link.open((0, 0), end.link.pool.dtype)
    late = [x.rank for x in record.workers if without_stragglers and x.status is not Status.OK]
    heard = end.link.drain(GRACE_SECONDS, late)
    for rank, how in end.link.lost.items():
        entry = record.worker(rank)
        entry.host, entry.status, entry.reason = end.link.hosts[rank], Status.LOST, how
    for rank in end.link.owing:
        entry = record.worker(rank)
        entry.host = entry.host or end.link.hosts[rank]
        if entry.status is Status.OK:
            entry.status, entry.reason = Status.STRAGGLER, "did not answer at the end of the job"
    return heard


def part(end: Endpoint, record: Record, *, without_stragglers: bool = False) -> bool:
    """End the job for the workers. True when all of them heard it and MPI can be finalized."""
    heard = drain(end, record, without_stragglers=without_stragglers)
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
