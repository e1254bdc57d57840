"""The report of a job: what was asked, what happened, and whether C is right. Versioned JSON, written atomically.

The master fills one `Record` while the job runs; every field has a default, so a report can be written at any moment
and for any outcome. The report, not the exit code, is the proof that C is complete. docs/report.md explains the fields.

Importing this module loads neither NumPy nor MPI.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from bisect import insort
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import cmm
from cmm.core.errors import DataError, ExitCode, InputMissingError, Outcome, Status
from cmm.runtime.surroundings import environment, peak_memory

__all__ = ["CheckpointUsed", "CodeUsed", "Counts", "Decoding", "Event", "Problem", "Record", "Seconds", "Status",
           "Verification", "WorkerReport", "environment", "load", "peak_memory", "summary_lines"]  # fmt: skip

SCHEMA = 1
MOST_EVENTS = 50_000  # kept for the timeline; the rest is only counted


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass
class Problem:
    """A is s x r, B is s x t, C is r x t; `dtype` is what is computed in."""

    s: int = 0
    r: int = 0
    t: int = 0
    dtype: str = ""
    op: str = "T"


@dataclass
class CodeUsed:
    """The code as it was built; `CodeUsed(**code.describe())`."""

    name: str = ""
    grid: str = ""
    K: int = 0
    P: int = 0
    seed: int = 0
    dispatch: str = ""
    params: dict[str, Any] = field(default_factory=dict)


@dataclass
class Decoding:
    """What the decoder did. N = results_used; overhead = N - K; condition and error_estimate None when unknown."""

    method: str = ""
    reason: str = ""
    results_used: int = 0
    overhead: int = 0
    missing_blocks: int = 0
    rank: int | None = None
    deficiency: int | None = None
    inactivations: int = 0
    condition: float | None = None
    error_estimate: float | None = None
    tolerance: float | None = None
    refinement: int = 0
    block_operations: int = 0


@dataclass
class Verification:
    """What was checked. `passed` None: not checked. `smallest_detected`: relative size of error that would be seen."""

    mode: str = ""
    passed: bool | None = None
    residual: float | None = None
    limit: float | None = None
    smallest_detected: float | None = None
    checked_results: int = 0
    rejected_results: int = 0


@dataclass
class CheckpointUsed:
    """`restored` results of an earlier run, which began at `resumed_from`; `plan`: identity of the job; `output`: size
    and time of change (ns) of C's file once it is there."""

    directory: str = ""
    restored: int = 0
    written: int = 0
    bytes: int = 0
    seconds: float = 0.0
    resumed_from: str = ""
    plan: str = ""
    output: list[int] | None = None


@dataclass
class Seconds:
    """Seconds of the master per phase. Phases overlap with the workers' computing; `total` is wall time."""

    read: float = 0.0
    scale: float = 0.0
    encode: float = 0.0
    send: float = 0.0
    compute: float = 0.0  # tasks that the master computed itself
    wait: float = 0.0
    decode: float = 0.0
    verify: float = 0.0
    write: float = 0.0
    checkpoint: float = 0.0  # identity, restoring and saving
    total: float = 0.0

    def add(self, phase: str, seconds: float) -> None:
        """Count `seconds` for a phase."""
        setattr(self, phase, getattr(self, phase) + seconds)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the time spent inside for a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - start)


@dataclass
class WorkerReport:
    """One worker. `task_seconds`: computing time of every accepted result, in order of arrival."""

    rank: int
    host: str = ""
    tasks_done: int = 0
    task_seconds: list[float] = field(default_factory=list)
    rejected_results: int = 0
    status: Status = Status.OK
    reason: str = ""


@dataclass
class Counts:
    """Messages and tasks of the whole job."""

    tasks_sent: int = 0
    repairs: int = 0
    copies: int = 0
    results_accepted: int = 0
    results_discarded: int = 0  # late, double, or of another job
    results_rejected: int = 0
    master_computed: int = 0


Event = tuple[float, int, str, int | None, float | None]


@dataclass
class Record:
    """Everything the report says, in the order in which it says it.

    events : (seconds since the start, rank, what, task, lasted), for the timeline. `what` is one of systematic, coded,
        repair, copy, local (a task that ended then, after `lasted` seconds), unanswered (a task that was out for
        `lasted` seconds at the end), rejected, discarded, straggler, lost, retired (marks), or a phase of `Seconds` on
        rank 0
    subject : what the job makes
    leaving : "finalize", or "abort" when ranks do not answer any more: then some launchers print a banner
    """

    version: int = SCHEMA
    cmm_version: str = cmm.__version__
    outcome: Outcome = Outcome.ERROR
    exit_code: ExitCode = ExitCode.INTERNAL
    message: str = ""
    started: str = field(default_factory=_now)
    finished: str = ""
    host: str = field(default_factory=socket.gethostname)
    leaving: str = "finalize"
    subject: str = "C"
    job: dict[str, Any] = field(default_factory=dict)
    problem: Problem = field(default_factory=Problem)
    code: CodeUsed = field(default_factory=CodeUsed)
    seed: int = 0
    decoding: Decoding = field(default_factory=Decoding)
    verification: Verification = field(default_factory=Verification)
    seconds: Seconds = field(default_factory=Seconds)
    counts: Counts = field(default_factory=Counts)
    checkpoint: CheckpointUsed = field(default_factory=CheckpointUsed)
    bytes_sent: int = 0
    bytes_received: int = 0
    peak_memory_bytes: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    workers: list[WorkerReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    events_dropped: int = 0

    def worker(self, rank: int) -> WorkerReport:
        """The entry of worker `rank`, made when it is first asked for."""
        entry = next((entry for entry in self.workers if entry.rank == rank), None)
        if entry is None:
            entry = WorkerReport(rank)
            insort(self.workers, entry, key=lambda other: other.rank)
        return entry

    def event(self, at: float, rank: int, what: str, task: int | None = None, lasted: float | None = None) -> None:
        """Note an event for the timeline."""
        if len(self.events) >= MOST_EVENTS:
            self.events_dropped += 1
        else:
            self.events.append((round(at, 6), rank, what, task, None if lasted is None else round(lasted, 6)))

    def end(self, outcome: Outcome, exit_code: ExitCode, message: str = "") -> None:
        """State how the job ended and when; also takes the peak memory."""
        self.outcome, self.exit_code, self.message = outcome, exit_code, message
        self.finished = _now()
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory())

    def to_json(self) -> str:
        """Strict JSON: keys in the order of the fields, None for what is not finite, one worker and event a line."""
        lines = []
        for item in fields(self):
            value = _plain(getattr(self, item.name))
            if item.name in ("workers", "events") and value:
                inner = ",\n".join("    " + _dump(entry) for entry in value)
                lines.append(f'  "{item.name}": [\n{inner}\n  ]')
            else:
                lines.append(f'  "{item.name}": ' + _dump(value, indent=2).replace("\n", "\n  "))
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the report under a temporary name, sync, rename. Raises OutputError."""
        from cmm.matrices.files import write_atomic  # loads NumPy

        write_atomic(path, self.to_json(), argument="--report")


def _dump(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)  # _plain has removed what is not


def _plain(value: Any) -> Any:
    """JSON's own types; not finite becomes None, anything unknown its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # NumPy's scalars
        return _plain(value.item())
    return str(value)


# ---- reading -----------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Record:
    """Read a report. Raises InputMissingError (66), or DataError (65) when it is no report of this version."""
    try:
        table = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputMissingError("FILE", "must be a readable report", path, f"{error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise DataError("FILE", "must be JSON", path, f"{error}.") from None
    if not isinstance(table, dict) or not {"version", "outcome", "exit_code"} <= table.keys():
        raise DataError("FILE", "must be a report of cmm", path, "Pass the file that --report names.")
    if table["version"] != SCHEMA:
        raise DataError("FILE", f"must be a report of version {SCHEMA}", f"version {table['version']!r} in {path}",
                        "Read it with the cmm that wrote it.")  # fmt: skip
    try:
        return _record({"checkpoint": {}, **table})  # reports before there were checkpoints
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError("FILE", "must be a complete report", path, f"{type(error).__name__}: {error}.") from None


def _record(table: Mapping[str, Any]) -> Record:
    parts = {"problem": Problem, "code": CodeUsed, "decoding": Decoding, "verification": Verification,
             "seconds": Seconds, "counts": Counts, "checkpoint": CheckpointUsed}  # fmt: skip
    values = _known(Record, table)
    values |= {key: part(**_known(part, table[key])) for key, part in parts.items()}
    values["outcome"], values["exit_code"] = Outcome(table["outcome"]), ExitCode(table["exit_code"])
    values["workers"] = [WorkerReport(**{**_known(WorkerReport, entry), "status": Status(entry["status"])})
                         for entry in table["workers"]]  # fmt: skip
    values["events"] = [(at, rank, what, task, lasted) for at, rank, what, task, lasted in table["events"]]
    return Record(**values)


def _known(part: type[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys that a later cmm has added."""
    names = {item.name for item in fields(part)}
    return {key: value for key, value in table.items() if key in names}


# ---- the summary -------------------------------------------------------------------------------------------------


def summary_lines(record: Record) -> list[str]:
    """A few lines for stdout; the last says that C is complete, or why there is none."""
    lines = []
    if record.problem.dtype:
        lines.append(_shape_line(record.problem))
    if record.code.name:
        lines.append(_code_line(record))
    if record.checkpoint.restored:
        lines.append(f"resumed  {record.checkpoint.restored} results were there from an earlier run")
    trouble = _trouble(record)
    if trouble:
        lines.append(f"workers  {trouble}")
    if record.seconds.total:
        lines.append(_time_line(record.seconds))
    if record.verification.mode:
        lines.append(_check_line(record))
    if record.job.get("report"):
        lines.append(f"report   {record.host}:{record.job['report']}")
    lines.append(_last_line(record))
    return lines


def _shape_line(p: Problem) -> str:
    return f"product  C = A^{p.op} B, {p.r} x {p.t}, from A {p.s} x {p.r} and B {p.s} x {p.t}, {p.dtype}"


def _code_line(record: Record) -> str:
    code, used = record.code, record.decoding
    params = "".join(f" {key}={value}" for key, value in code.params.items() if value is not None)
    text = f"code     {code.name}{params}, {code.dispatch}, grid {code.grid}: K = {code.K} blocks"
    if used.results_used:
        there = record.outcome in (Outcome.COMPLETE, Outcome.UNVERIFIED)
        done = "decoded from N =" if there else "not decoded; accepted"
        text += f", {done} {used.results_used} results of {len(record.workers)} workers"
    return text


def _trouble(record: Record) -> str:
    groups: dict[Status, list[str]] = {}
    for entry in record.workers:
        if entry.status != Status.OK:
            groups.setdefault(entry.status, []).append(
                f"{entry.rank} ({entry.host})" if entry.host else str(entry.rank)
            )
    said = []
    for status, ranks in groups.items():
        more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        said.append(f"{status.value}: rank {', '.join(ranks[:8])}{more}")
    return "; ".join(said)


def _time_line(seconds: Seconds) -> str:
    phases = [(item.name, getattr(seconds, item.name)) for item in fields(seconds) if item.name != "total"]
    parts = ", ".join(f"{name} {value:.3g}" for name, value in phases if value >= 0.0005)
    return f"seconds  {seconds.total:.3g}" + (f" ({parts})" if parts else "")


def _check_line(record: Record) -> str:
    check, estimate = record.verification, record.decoding.error_estimate
    verdict = {True: "PASSED", False: "FAILED", None: "NOT CHECKED"}[check.passed]
    text = f"check    {verdict}"
    if check.residual is not None and check.limit is not None:
        text += f": residual {check.residual:.2g}, limit {check.limit:.2g}"
    if check.rejected_results:
        text += f", {check.rejected_results} results rejected"
    return text + (f", estimated error {estimate:.2g}" if estimate is not None else "")


def _last_line(record: Record) -> str:
    if record.outcome != Outcome.COMPLETE:
        reason = f": {record.message}" if record.message else ""
        return f"{record.subject} is NOT there, {record.outcome.value} (exit code {int(record.exit_code)}){reason}"
    where = f"{record.subject} is complete" + (f": {record.host}:{record.job['out']}" if record.job.get("out") else "")
    banner = ("; a message about MPI_ABORT below is expected: it ends the ranks that do not answer any more"
              if record.leaving == "abort" else "")  # fmt: skip
    return where + banner
