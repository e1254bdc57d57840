"""Rank 0 of `python -m cmm.run`: judges files, runs the session, puts C and the report on disk, ends the job."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TypeVar

from mpi4py import MPI

from cmm.core.errors import (
    CmmError,
    ExitCode,
    InUseError,
    Outcome,
    OutputError,
    RemoteError,
    StoppedError,
    UnverifiedError,
)
from cmm.core.jobfile import TABLE
from cmm.core.spec import JobSpec
from cmm.core.task import Array
from cmm.engine.forecast import results_bytes
from cmm.matrices.files import MatrixSource, check_output, open_matrix, write_matrix
from cmm.matrices.room import check_room
from cmm.runtime import launch, resume, stopping
from cmm.runtime.api import drain, part
from cmm.runtime.checkpoint import Checkpoint, identity_digest
from cmm.runtime.clock import Clock
from cmm.runtime.endpoint import Endpoint
from cmm.runtime.failures import Failures
from cmm.runtime.leaving import end_job, finalize
from cmm.runtime.memory import check_memory
from cmm.runtime.progress import Progress
from cmm.runtime.records import Form
from cmm.runtime.report import Record, Status, environment, summary_lines
from cmm.runtime.session import Options, Session
from cmm.runtime.timeline import check_plotting, draw

T = TypeVar("T")


class Leader:
    """Rank 0's part of the command."""

    def __init__(self, spec: JobSpec, end: Endpoint, failures: Failures, record: Record | None = None) -> None:
        self.spec, self.end, self.failures = spec, end, failures
        self.clock, self.record = Clock(), Record(job=TABLE.mapping(spec)) if record is None else record
        self.record.seed = spec.seed
        self.record.environment = environment(MPI.Get_library_version(), spec.threads)
        for warning in failures.warnings:
            self.warn(warning)
        if end.link is not None:
            end.link.failures = failures
        self.progress: Progress | None = None
        self.may_report = False
        self.checkpoint: Checkpoint | None = None
        self.spoiled = False  # what is in the checkpoint is not to be trusted
        self.finished = False  # by an earlier run

    def run(self) -> int:
        """Judge, run, write, leave; returns the exit code."""
        session = self._guarded(self._begin)
        if session is None:
            return self._leave(speak=self.finished)
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
            text = f"{error}{self._what_is_kept(error)}"
            self.record.end(error.outcome, error.exit_code, text)
            launch.say(f"cmm: {text}")
        except Exception as error:  # a fault of ours: told with its traceback, reported, and all ranks end
            kept = self._what_is_kept(error)
            self.record.end(Outcome.ERROR, ExitCode.INTERNAL, f"{type(error).__name__}: {error}{kept}")
            launch.say(f"cmm: internal error on rank 0{kept}\n{traceback.format_exc()}")
        return None

    def _what_is_kept(self, error: Exception) -> str:
        """For the end of a message: what the checkpoint has, and how to go on."""
        held, folder = self.checkpoint, self.spec.checkpoint
        self.spoiled |= isinstance(error, UnverifiedError)
        stop = "" if str(error).endswith(".") else "."
        if held is not None and held.kept and self.spoiled:
            return f"{stop} The checkpoint in {folder} is removed: its results are not to be trusted."
        if held is not None and (held.kept or (isinstance(error, StoppedError) and not held.fresh)):
            what = f"{held.kept} results" if held.kept else "The results"
            flag = "" if self.spec.resume else " and --resume"
            return f"{stop} {what} in {folder} are kept: go on with the same command{flag}."
        if isinstance(error, StoppedError):
            why = "" if folder else ", for want of --checkpoint"
            return f"{stop} C was not written and nothing is kept{why}: the same command starts again."
        return ""

    def warn(self, text: str) -> None:
        """Into the report and to stderr."""
        self.record.warnings.append(text)
        launch.say(f"cmm: warning: {text}")

    # ---- before ----------------------------------------------------------------------------------------------

    def _begin(self) -> Session | None:
        with stopping.interruptible():
            return self._prepare()

    def _prepare(self) -> Session | None:
        spec = self.spec
        a, b = self._sources()
        past = self._earlier()
        finished = past if past is not None and past.outcome is Outcome.COMPLETE else None
        if finished is None:
            self._check_outputs(a, b, past)
        names = {item.name for item in fields(Options)}
        options = Options(**{name: getattr(spec, name) for name in names})
        kept = self.checkpoint.plan["identity"] if self.checkpoint is not None and self.checkpoint.plan else None
        if finished is not None:
            kept = {"code": vars(finished.code)}
        session = Session(a, b, options, self.end.link, self.record, self.clock, self._show, resume.planned(kept, spec))
        if finished is None:
            check_memory(session, self.end.hosts)
        if spec.checkpoint is not None:
            with self.clock.phase("checkpoint", self.record):
                self._identify(session, finished)
        return None if self.finished else session

    def _earlier(self) -> Record | None:
        """What an earlier run of this job has reported: a failure or, resumed, that it is complete. It is read once the
        checkpoint is held, so that whoever had it until now has said all.
        """
        spec = self.spec
        past = resume.earlier_report(spec) if spec.resume or not spec.overwrite else None
        complete = past is not None and past.outcome is Outcome.COMPLETE
        if spec.checkpoint is not None and not (spec.resume and complete and not os.path.lexists(spec.checkpoint)):
            self._hold(past)
            past = resume.earlier_report(spec) if spec.resume or not spec.overwrite else None
        return None if past is not None and past.outcome is Outcome.COMPLETE and not spec.resume else past

    def _hold(self, past: Record | None) -> None:
        """Open the checkpoint, which one job at a time can. Where another has it, the report is that job's too."""
        spec = self.spec
        if spec.checkpoint is None or self.checkpoint is not None:
            return
        try:
            self.checkpoint = Checkpoint(spec.checkpoint, resume=spec.resume, every=spec.checkpoint_every,
                                         warn=self.warn, tell=lambda text: launch.say(f"cmm: {text}"))  # fmt: skip
        except InUseError:
            raise
        except OutputError:
            self._judge_report(past)
            raise

    def _judge_report(self, past: Record | None) -> None:
        """Whether the report may be written; that of a failure of this job may be replaced."""
        failed = past is not None and past.outcome is not Outcome.COMPLETE
        check_output(self.spec.report, [self.spec.a, self.spec.b], self.spec.overwrite or failed,
                     argument="--report", matrix=False)  # fmt: skip
        self.may_report = True

    def _check_outputs(self, a: MatrixSource, b: MatrixSource, past: Record | None) -> None:
        """Whether all outputs can be written, the checkpoint among them. What an earlier run of this job has left does
        not count as existing: `past`, its report of a failure, and, resumed, C that it was just putting in its place.
        """
        spec, inputs = self.spec, [self.spec.a, self.spec.b]
        self._hold(past)
        self._judge_report(past)
        size = a.shape[1] * b.shape[1] * max(8, a.dtype.itemsize, b.dtype.itemsize)
        check_room(size, "--a, --b", f"C, {a.shape[1]} x {b.shape[1]}")
        mine = self.checkpoint is not None and self.checkpoint.delivering() == spec.out
        check_output(spec.out, inputs, spec.overwrite or mine, size=size)
        if spec.timeline:
            check_plotting()
            check_output(spec.timeline, inputs, spec.overwrite or mine, argument="--timeline", matrix=False)

    def _identify(self, session: Session, finished: Record | None) -> None:
        """Begin the checkpoint for this very job, or find that the job is complete already, as `finished` says."""
        spec, kept = self.spec, self.checkpoint.plan if self.checkpoint is not None else None
        identity = resume.identity(session)
        if kept is not None and finished is None:
            resume.refuse_differences(kept["identity"], identity)  # what is cheap to compare first
        identity = resume.add_contents(identity, session)
        form = Form(identity_digest(identity), *session.form)
        if finished is not None:
            if resume.proves(finished, form.plan, spec.out):
                self._nothing_to_do(finished)
                return
            self._check_outputs(*session.sources, None)  # they were not looked at yet
        assert self.checkpoint is not None, "opened with the outputs"
        kept = self.checkpoint.plan
        if kept is not None:
            resume.refuse_differences(kept["identity"], identity)
        need = results_bytes(session.code, session.partition, session.worker_dtype.itemsize)
        self.checkpoint.check_room(need)
        self.checkpoint.begin(identity, form, out=spec.out)
        session.checkpoint = self.checkpoint
        used = self.record.checkpoint
        used.directory, used.plan = spec.checkpoint or "", form.plan.hex()
        used.resumed_from = "" if self.checkpoint.fresh else self.checkpoint.begun

    def _nothing_to_do(self, past: Record) -> None:
        """An earlier run has completed this job: its report stands."""
        self.record, self.finished = past, True
        launch.say("cmm: an earlier run has completed this job: nothing is left to do")
        held, self.checkpoint = self.checkpoint, None
        if held is not None:  # the earlier run had no time to clear up
            held.remove()

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
            self._check_unchanged(session)

    def _check_unchanged(self, session: Session) -> None:
        """A file that changed explains whatever else went wrong."""
        try:
            for source in session.sources:
                source.check_unchanged()
        except CmmError:
            self.spoiled = True
            raise

    def _deliver(self, C: Array) -> None:
        if self.checkpoint is not None:
            self.checkpoint.deliver(self.spec.out)
        with self.clock.phase("write", self.record):
            write_matrix(self.spec.out, C)
        if self.checkpoint is not None:
            self.record.checkpoint.output = resume.stamp(self.spec.out)
        self.record.end(Outcome.COMPLETE, ExitCode.COMPLETE)

    # ---- after -----------------------------------------------------------------------------------------------

    def _leave(self, *, speak: bool = True) -> int:
        """C is on disk (or will not be): end the job in bounded time, with the report written first."""
        self._finish_checkpoint()
        if self.record.outcome is Outcome.INTERRUPTED:
            self._write_report()  # some launchers kill within moments
        heard = drain(self.end, self.record) and self.failures.may_finalize()
        self.record.leaving = "finalize" if heard else "abort"
        self._write_report()
        self._remove_checkpoint()
        if speak:
            self._tell()
        code = int(self.record.exit_code)
        if part(self.end, self.record) and heard and self.failures.may_finalize():
            finalize(code, self.failures, self._died_at_the_end)
            return code
        end_job(code, self.failures)

    def _finish_checkpoint(self) -> None:
        if self.checkpoint is None:
            return
        with self.clock.phase("checkpoint"):
            self.checkpoint.finish(sync=self.record.outcome is not Outcome.COMPLETE)
        used = self.record.checkpoint
        used.restored, used.written, used.bytes = (
            self.checkpoint.restored,
            self.checkpoint.written,
            self.checkpoint.bytes,
        )
        used.seconds = round(self.clock.seconds["checkpoint"], 6)

    def _remove_checkpoint(self) -> None:
        """When C and the report are on disk, and when there is nothing in it, or nothing to be trusted."""
        if self.checkpoint is None:
            return
        empty = self.checkpoint.fresh and not self.checkpoint.kept
        if self.record.exit_code is ExitCode.COMPLETE or empty or self.spoiled:
            self.checkpoint.remove()
        else:  # held until this process ends: the report may still be corrected
            self.checkpoint.finish()

    def _tell(self) -> None:
        """The summary on stdout; where that cannot be written, C and the report are there all the same."""
        try:
            print("\n".join(self._summary()), flush=True)
        except OSError as error:
            launch.say(f"cmm: the summary cannot be printed ({error.strerror}); the report has it")
            launch.forget_stdout()

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
        if self.finished:  # its report stays
            return
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
