"""Rank 0 of `python -m cmm.run`: judges files, runs the session, puts C and the report on disk, ends the job."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TypeVar

from mpi4py import MPI

from cmm.core.errors import CmmError, ExitCode, Outcome, RemoteError
from cmm.core.jobfile import as_mapping
from cmm.core.spec import JobSpec
from cmm.core.task import Array
from cmm.matrices.files import MatrixSource, check_output, open_matrix, write_matrix
from cmm.matrices.room import check_room
from cmm.runtime import launch
from cmm.runtime.api import drain, part
from cmm.runtime.endpoint import Endpoint
from cmm.runtime.failures import Failures
from cmm.runtime.leaving import end_job, finalize
from cmm.runtime.master import Clock
from cmm.runtime.progress import Progress
from cmm.runtime.report import Record, Status, environment, summary_lines
from cmm.runtime.session import Options, Session
from cmm.runtime.timeline import check_plotting, draw

T = TypeVar("T")


class Leader:
    """Rank 0's part of the command."""

    def __init__(self, spec: JobSpec, end: Endpoint, failures: Failures, record: Record | None = None) -> None:
        self.spec, self.end, self.failures = spec, end, failures
        self.clock, self.record = Clock(), Record(job=as_mapping(spec)) if record is None else record
        self.record.seed = spec.seed
        self.record.environment = environment(MPI.Get_library_version(), spec.threads)
        self.record.warnings += failures.warnings
        for warning in failures.warnings:
            launch.say(f"cmm: warning: {warning}")
        if end.link is not None:
            end.link.failures = failures
        self.progress: Progress | None = None
        self.may_report = False

    def run(self) -> int:
        """Judge, run, write, leave; returns the exit code."""
        session = self._guarded(self._prepare)
        if session is None:
            return self._leave(speak=False)
        C = self._guarded(lambda: self._compute(session))
        if C is not None:
            self._guarded(lambda: self._deliver(C))
        return self._leave()

    def _guarded(self, action: Callable[[], T]) -> T | None:
        """The action's value; None when it failed, and then the record says why and the user has been told."""
        try:
            return action()
        except CmmError as error:
            if isinstance(error, RemoteError):
                launch.say(f"cmm: traceback of rank {error.rank} on {error.host}:\n{error.traceback}")
            self.record.end(error.outcome, error.exit_code, str(error))
            launch.say(f"cmm: {error}")
        except KeyboardInterrupt:
            self.record.end(Outcome.INTERRUPTED, ExitCode.STOPPED, "interrupted by the user; C was not written")
            launch.say("cmm: interrupted; C was not written. The same command starts again.")
        except Exception as error:  # a fault of ours: told with its traceback, reported, and all ranks end
            self.record.end(Outcome.ERROR, ExitCode.INTERNAL, f"{type(error).__name__}: {error}")
            launch.say(f"cmm: internal error on rank 0\n{traceback.format_exc()}")
        return None

    # ---- before ----------------------------------------------------------------------------------------------

    def _prepare(self) -> Session:
        spec = self.spec
        a, b = self._sources()
        inputs = [spec.a, spec.b]
        check_output(spec.report, inputs, spec.overwrite, argument="--report", matrix=False)
        self.may_report = True
        size = a.shape[1] * b.shape[1] * max(8, a.dtype.itemsize, b.dtype.itemsize)
        check_room(size, "--a, --b", f"C, {a.shape[1]} x {b.shape[1]}")
        check_output(spec.out, inputs, spec.overwrite, size=size)
        if spec.timeline:
            check_plotting()
            check_output(spec.timeline, inputs, spec.overwrite, argument="--timeline", matrix=False)
        names = {item.name for item in fields(Options)}
        options = Options(**{name: getattr(spec, name) for name in names})
        return Session(a, b, options, self.end.link, self.record, self.clock, self._show)

    def _sources(self) -> tuple[MatrixSource, MatrixSource]:
        with self.clock.phase("read", self.record):
            return open_matrix(self.spec.a, "--a"), open_matrix(self.spec.b, "--b")

    def _show(self, done: int, total: int) -> None:
        if self.progress is None:
            self.progress = Progress(self.spec.progress, total)
        self.progress.update(done, total=total)

    # ---- the work --------------------------------------------------------------------------------------------

    def _compute(self, session: Session) -> Array:
        try:
            return session.run()
        finally:
            if self.progress is not None:
                self.progress.close()
            for source in session.sources:  # a file that changed explains whatever else went wrong
                source.check_unchanged()

    def _deliver(self, C: Array) -> None:
        with self.clock.phase("write", self.record):
            write_matrix(self.spec.out, C)
        self.record.end(Outcome.COMPLETE, ExitCode.COMPLETE)

    # ---- after -----------------------------------------------------------------------------------------------

    def _leave(self, *, speak: bool = True) -> int:
        """C is on disk (or will not be): end the job in bounded time, with the report written first."""
        heard = drain(self.end, self.record) and self.failures.may_finalize()
        self.record.leaving = "finalize" if heard else "abort"
        self._write_report()
        if speak:
            self._tell()
        code = int(self.record.exit_code)
        if part(self.end, self.record) and heard and self.failures.may_finalize():
            finalize(code, self.failures, self._died_at_the_end)
            return code
        end_job(code, self.failures)

    def _tell(self) -> None:
        """The summary on stdout; where that cannot be written, C and the report are there all the same."""
        try:
            print("\n".join(self._summary()), flush=True)
        except OSError as error:
            launch.say(f"cmm: the summary cannot be printed ({error.strerror}); the report has it")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again at exit

    def _summary(self) -> list[str]:
        return summary_lines(self.record)

    def _died_at_the_end(self, dead: Mapping[int, str], aborting: bool) -> None:
        """Ranks died while MPI was being finalized, with everything else done: correct the report."""
        for rank, how in dead.items():
            entry = self.record.worker(rank)
            entry.status, entry.reason = Status.LOST, how
            entry.host = self.end.hosts[rank]
        self.record.leaving = "abort" if aborting else self.record.leaving
        if self.may_report:
            self.record.write(self.spec.report)

    def _write_report(self) -> None:
        self.clock.into(self.record.seconds)
        if not self.may_report:
            return
        if self.spec.timeline and self.record.outcome is Outcome.COMPLETE:
            try:
                draw(self.record, self.spec.timeline)
            except CmmError as error:
                self.record.warnings.append(f"the timeline was not drawn: {error}")
                launch.say(f"cmm: {error}")
        try:
            self.record.write(self.spec.report)  # last: it is the proof that everything else is there
        except CmmError as error:
            self.record.job.pop("report", None)
            self.record.exit_code = ExitCode.CANNOT_WRITE
            launch.say(f"cmm: {error} There is no report of this job.")
