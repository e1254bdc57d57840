"""Rank 0 of `python -m cmm.gradient`: judges data and outputs, descends, writes theta and the report, ends the job."""

from __future__ import annotations

import hashlib
import io
import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from cmm.core.errors import CmmError, DataError, ExitCode, Outcome, StoppedError, UnverifiedError, UsageError
from cmm.core.spec import JobSpec
from cmm.core.task import Array
from cmm.gradient import checkpoint
from cmm.gradient.data import DataSet
from cmm.gradient.descent import Descent, Limits, Point, make_descent
from cmm.gradient.judge import Judge
from cmm.gradient.losses import Loss, make_loss
from cmm.gradient.master import CodedGradient, LocalGradient
from cmm.gradient.objective import find_regulariser
from cmm.gradient.picture import check_plotting, draw
from cmm.gradient.planning import describe, make_encoding, plan_lines, worker_bytes
from cmm.gradient.report import GradientRecord, describe_theta
from cmm.gradient.spec import TABLE, GradientSpec
from cmm.matrices.files import check_output, open_matrix, write_atomic, write_matrix
from cmm.runtime import launch, stopping
from cmm.runtime.endpoint import Endpoint
from cmm.runtime.failures import Failures
from cmm.runtime.leader import Leader

NOTE_SECONDS = 30.0  # of waiting for one evaluation before the user is told whom for


class Prepared:
    """A job that has passed all checks."""

    def __init__(self, spec: GradientSpec) -> None:
        self.data = DataSet(spec.data, spec.labels)
        self.loss: Loss = make_loss(spec.loss, spec.delta)
        labels = self.data.all_labels()
        self.loss.check_labels(labels)
        self.method: Descent = make_descent(spec.optimiser, spec.step)
        self.theta = _start(spec, self.loss.shape(self.data.features, labels))
        self.fingerprint = _fingerprint(spec, self.data, labels, self.theta)
        self.curve: list[list[Any]] = []
        self.regulariser = find_regulariser(spec.regulariser)
        self.limits = Limits(spec.iterations, spec.tolerance)
        if spec.resume and spec.checkpoint and os.path.exists(spec.checkpoint):
            state, self.curve = checkpoint.load(spec.checkpoint, self.fingerprint)
            self.limits.scale = float(state.pop("scale"))
            self.method.restore(state)


def _start(spec: GradientSpec, shape: tuple[int, ...]) -> Array:
    if spec.start is None:
        return np.zeros(shape)
    source = open_matrix(spec.start, "--start")
    theta = np.array(source.array[:, :], dtype=np.float64, order="C")
    theta = theta[:, 0].copy() if theta.shape[1] == 1 else theta
    if ":" not in spec.loss and theta.shape != shape:
        raise DataError("--start", f"must have the shape {shape}", f"{theta.shape} in {source.name}", "Correct it.")
    if not np.all(np.isfinite(theta)):
        raise DataError("--start", "must be finite", f"NaN or infinity in {source.name}", "Correct it.")
    return theta


def _fingerprint(spec: GradientSpec, data: DataSet, labels: Array, theta: Array) -> dict[str, Any]:
    """What must be equal when a checkpoint is resumed: the problem and the method, not the code or the workers."""
    return {"rows": data.rows, "features": data.features, "labels": hashlib.sha256(labels.tobytes()).hexdigest()[:16],
            "theta": list(theta.shape), "loss": spec.loss, "delta": spec.delta, "ridge": spec.ridge,
            "regulariser": spec.regulariser, "optimiser": spec.optimiser}  # fmt: skip


class GradientLeader(Leader):
    """The matrix job's rank 0 with another middle part."""

    record: GradientRecord

    def __init__(self, spec: GradientSpec, end: Endpoint, failures: Failures) -> None:
        super().__init__(cast(JobSpec, spec), end, failures, GradientRecord(job=TABLE.mapping(spec)))
        self.job = spec
        self.method: Descent | None = None
        self.keeper: checkpoint.Keeper | None = None
        self.waiting = (0, time.monotonic())  # evaluations there are, and since when

    # ---- before ----------------------------------------------------------------------------------------------

    def _prepare(self) -> Any:
        spec = self.job
        inputs = [path for path in (spec.data, spec.labels, spec.start) if path]
        check_output(spec.report, inputs, spec.overwrite, argument="--report", matrix=False)
        self.may_report = True
        with self.clock.phase("read", self.record):
            prepared = Prepared(spec)
        check_output(spec.out, inputs, spec.overwrite, size=prepared.theta.nbytes)
        if spec.plot:
            check_plotting()
            check_output(spec.plot, inputs, spec.overwrite, argument="--plot", matrix=False)
        if spec.checkpoint:
            check_output(spec.checkpoint, inputs, spec.overwrite or spec.resume, argument="--checkpoint", matrix=False)
        if self.end.link is not None:  # judged now, before a worker reads anything
            encoding = make_encoding(spec, self.end.link.workers, prepared.data.rows)
            self.record.encoding = describe(encoding)
        self.record.data = {"rows": prepared.data.rows, "features": prepared.data.features, "loss": spec.loss,
                            "theta": describe_theta(prepared.theta)}  # fmt: skip
        return prepared

    # ---- the work --------------------------------------------------------------------------------------------

    def _compute(self, session: Any) -> Array:
        """The descent; the checkpoint is written when it is interrupted, whatever by."""
        prepared: Prepared = session
        method, record = prepared.method, self.record
        record.curve, record.resumed_at = prepared.curve, method.iteration
        coded = self._workers(prepared)
        judge = Judge(prepared, coded, self)
        first = self._first(prepared, judge)
        self.method = method
        try:
            while True:
                record.stopped = prepared.method.run(prepared.theta, first, prepared.limits,
                                                     lambda at: self._after(at, coded))  # fmt: skip
                if judge.passes(prepared.method.theta) and not judge.misled(record.stopped):
                    break
                judge.start_again()
                self.method = prepared.method
        except CmmError as error:
            if not isinstance(error, UnverifiedError):
                self._keep_last(prepared)
            raise
        finally:
            record.iterations = prepared.method.iteration
            if self.progress is not None:
                self.progress.close()
            self._account()
        self._keep_last(prepared)
        return prepared.method.theta

    def _workers(self, prepared: Prepared) -> CodedGradient | LocalGradient:
        """Whatever evaluates; says what the workers will need."""
        spec, data, link = self.job, prepared.data, self.end.link
        if link is None:
            return LocalGradient(data, prepared.loss, self.record, self._between)
        link.open((1 + prepared.theta.size, 1), np.dtype(np.float64))
        coded = CodedGradient(link, prepared.theta.shape, self.record, give_up=spec.give_up,
                              everybody=spec.wait == "all", between=self._between)  # fmt: skip
        encoding = make_encoding(spec, link.workers, data.rows)
        speeds = None
        if spec.code == "heterogeneous-frc" and spec.speeds is None:
            speeds = coded.measure(encoding.k, encoding.n - encoding.stragglers, prepared.theta)
            encoding = make_encoding(spec, link.workers, data.rows, speeds)
        self.record.encoding = {**describe(encoding), "speeds": spec.speed_list() if speeds is None else speeds}
        self.record.data["largest_worker_bytes"] = max(worker_bytes(encoding, data))
        for line in plan_lines(encoding, data):
            launch.say(f"cmm: {line}")
        coded.assign(encoding)
        return coded

    def _first(self, prepared: Prepared, objective: Judge) -> Any:
        """The objective, which sets the scale of the tolerance at its first value and keeps the checkpoint."""
        spec = self.job
        if spec.checkpoint:
            self.keeper = checkpoint.Keeper(lambda: self._checkpoint(prepared), spec.checkpoint_every)

        def evaluate(theta: Array) -> tuple[float | None, Array]:
            self._between()
            loss, gradient = objective.evaluate(theta)
            prepared.limits.note(gradient)
            if loss is None and prepared.method.needs_loss:
                raise UsageError("--optimiser", f"must do without loss values, and {prepared.method.name} needs them: "
                                 "the callable returns gradients only", spec.loss,
                                 "Return (loss, gradient), or use fixed or nesterov.")  # fmt: skip
            return loss, gradient

        return evaluate

    def _after(self, at: Point, coded: CodedGradient | LocalGradient) -> None:
        record = self.record
        record.loss, record.gradient_norm, coded.iteration = at.loss, at.norm, at.iteration
        record.curve.append([at.iteration, at.loss, at.norm, round(self.clock.now(), 6)])
        self._show(at.iteration, self.job.iterations)
        if self.keeper is not None:
            self.keeper.tick()
        self.check_stop()

    def _what_is_kept(self, error: Exception) -> str:
        """The message of an interruption says it already."""
        return ""

    def check_stop(self) -> None:
        """Raise StoppedError when a stop is asked for."""
        if signal := stopping.requested():
            where = f"; go on with --resume --checkpoint {self.job.checkpoint}" if self.job.checkpoint else ""
            raise StoppedError(f"stopped on request ({signal}) after iteration {self._iteration}{where}")

    @property
    def _iteration(self) -> int:
        return self.method.iteration if self.method is not None else 0

    def _between(self) -> None:
        """While answers are awaited."""
        self.check_stop()
        now, done = time.monotonic(), len(self.record.evaluations)
        if self.waiting[0] != done:
            self.waiting = (done, now)
        elif now - self.waiting[1] > NOTE_SECONDS and self.job.progress != "none":
            self.waiting = (done, now)
            launch.say(f"cmm: still waiting for enough answers in evaluation {done + 1}")

    def _checkpoint(self, prepared: Prepared) -> None:
        assert self.job.checkpoint is not None
        state = {**prepared.method.state(), "scale": np.asarray(prepared.limits.scale)}
        try:
            checkpoint.save(self.job.checkpoint, prepared.fingerprint, state, self.record.curve)
        except CmmError as error:  # the descent is worth more than its checkpoint
            if str(error) not in self.record.warnings:
                self.warn(str(error))
        else:
            self.record.checkpoints += 1

    def _keep_last(self, prepared: Prepared) -> None:
        """A last checkpoint, if anything is worth keeping."""
        if self.keeper is not None and prepared.method.iteration:
            self.keeper.now()

    def _account(self) -> None:
        link, record = self.end.link, self.record
        if link is None:
            return
        record.bytes_sent, record.bytes_received = link.bytes_sent, link.bytes_received
        record.counts.results_discarded = link.discarded
        for rank in range(1, link.workers + 1):
            record.worker(rank).host = link.hosts[rank]
        promised = record.encoding.get("stragglers", 0)
        if len(link.lost) > promised:
            record.warnings.append(f"{len(link.lost)} workers were lost, more than the {promised} stragglers that the "
                                   "code promises to bear")  # fmt: skip
        link.stop()

    # ---- after -----------------------------------------------------------------------------------------------

    def _summary(self) -> list[str]:
        return self.record.lines()

    def _deliver(self, C: Array) -> None:
        with self.clock.phase("write", self.record):
            if C.ndim == 1 and Path(self.job.out).suffix.lower() == ".npy":
                content = io.BytesIO()
                np.save(content, C, allow_pickle=False)
                write_atomic(self.job.out, content.getvalue(), argument="--out")
            else:
                write_matrix(self.job.out, C.reshape(len(C), -1))
        self.record.end(Outcome.COMPLETE, ExitCode.COMPLETE)

    def _write_report(self) -> None:
        self.clock.into(self.record.seconds)
        if not self.may_report:
            return
        try:
            if self.job.plot and self.record.curve:
                draw(self.record, self.job.plot)  # takes a second: before the report, which says that all is done
        except CmmError as error:
            launch.say(f"cmm: {error}")
        try:
            self.record.write(self.job.report)
        except CmmError as error:
            launch.say(f"cmm: {error}")
