"""What is measured: one job of a sweep (`Point`) and what one run of it showed (`Run`), a row of the CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product

from cmm.codes.defaults import choose
from cmm.codes.registry import check_name
from cmm.core.errors import Refusal, UsageError
from cmm.core.grid import Grid
from cmm.core.jobfile import parse
from cmm.core.rules import read_float, read_int
from cmm.core.spec import Injection, check_ranks
from cmm.runtime.report import Record, Status
from cmm.simulate.latency import Latency, split_scheme

PHASES = ("read", "scale", "encode", "send", "compute", "wait", "decode", "verify", "write")


@dataclass(frozen=True)
class Point:
    """One job.

    Attributes
    ----------
    ranks : of the launcher; one of them is the master unless it is the only one
    s, r, t : A is s x r, B is s x t
    scheme : NAME[/DISPATCH][:KEY=VALUE,...], as in the simulator; grid= and tasks= among the pairs
    inject : "none", or injections joined by +
    scaling : "strong" (the size is given) or "weak:N" (N^3 products a worker)
    """

    ranks: int
    s: int
    r: int
    t: int
    scheme: str
    inject: str = "none"
    scaling: str = "strong"

    def __post_init__(self) -> None:
        check_name(split_scheme(self.scheme)[0])
        self.injections()

    @property
    def workers(self) -> int:
        """W; a single rank works itself."""
        return max(1, self.ranks - 1)

    @property
    def flops(self) -> float:
        return 2.0 * self.s * self.r * self.t

    def injections(self) -> tuple[Injection, ...]:
        """What is injected. Raises UsageError."""
        if self.inject == "none":
            return ()
        return tuple(Injection.parse(text) for text in self.inject.split("+"))

    def flags(self) -> list[str]:
        """Of cmm.run: code, dispatch, parameters, injections."""
        name, dispatch, params = split_scheme(self.scheme)
        words = ["--code", name, "--dispatch", dispatch]
        for key in ("grid", "tasks"):
            if key in params:
                words += [f"--{key}", params.pop(key)]
        words += [word for key, value in params.items() for word in ("--param", f"{key}={value}")]
        return words + [word for item in self.injections() for word in ("--inject", str(item))]


@dataclass(frozen=True)
class Run:
    """One run of a point: what it was, then what its report says. Times in seconds; nan where there was no report.

    Attributes
    ----------
    time : from the start of the job on rank 0 until C was on disk
    total : of the report: with leaving, which waits a moment for workers that do not answer
    command : of the launcher, start and end of the ranks included
    gflops : 2srt / time
    time, gflops, load : nan where there is no C
    check : PASSED, FAILED, or "not checked"
    load : share of `time` that the master was not waiting
    remark : why it failed
    """

    s: int
    r: int
    t: int
    ranks: int
    scheme: str
    inject: str
    scaling: str
    repeat: int
    grid: str = ""
    K: int = 0
    P: int = 0
    N: int = 0
    code: str = ""
    dispatch: str = ""
    time: float = math.nan
    total: float = math.nan
    command: float = math.nan
    gflops: float = math.nan
    read: float = math.nan
    scale: float = math.nan
    encode: float = math.nan
    send: float = math.nan
    compute: float = math.nan
    wait: float = math.nan
    decode: float = math.nan
    verify: float = math.nan
    write: float = math.nan
    load: float = math.nan
    residual: float = math.nan
    check: str = "FAILED"
    outcome: str = "no report"
    missing: int = 0
    block_operations: int = 0
    tasks_sent: int = 0
    repairs: int = 0
    copies: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    late: str = ""
    remark: str = ""

    @property
    def point(self) -> Point:
        return Point(self.ranks, self.s, self.r, self.t, self.scheme, self.inject, self.scaling)

    @property
    def key(self) -> tuple[Point, int]:
        return self.point, self.repeat

    @property
    def passed(self) -> bool:
        return self.check == "PASSED"


def judge_row(run: Run) -> None:
    """Whether a row that was read can be one of a sweep. Raises ValueError; its key, UsageError."""
    for name in ("s", "r", "t", "ranks"):
        if getattr(run, name) < 1:
            raise ValueError(f"{name} must be 1 or more; got {getattr(run, name)}")
    for name, pattern, rule in (("check", "PASSED|FAILED|not checked", "PASSED, FAILED or not checked"),
                                ("scaling", r"strong|weak:\d+(x\d+x\d+)?", "strong or weak:SIZE")):  # fmt: skip
        if not re.fullmatch(pattern, getattr(run, name), re.ASCII):
            raise ValueError(f"{name} must be {rule}; got {getattr(run, name)!r}")
    if run.passed and not run.time > 0:
        raise ValueError(f"time must be above 0 in a run that passed; got {run.time}")


def time_to_c(record: Record) -> float:
    """Seconds from the start of the job until C was on disk; nan when the report does not say."""
    try:
        between = datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started)
    except ValueError:
        return math.nan
    return max(between.total_seconds(), 1e-3)  # the report's resolution


def run_of(point: Point, repeat: int, record: Record, command: float) -> Run:
    """The row of a job that has written its report."""
    seconds, used, counts = record.seconds, record.decoding, record.counts
    complete = record.outcome.value == "complete"
    time = time_to_c(record) if complete else math.nan
    verdict = {True: "PASSED", False: "FAILED", None: "not checked"}[record.verification.passed]
    residual = record.verification.residual
    late = [f"{worker.rank} {worker.status.value}" for worker in record.workers if worker.status is not Status.OK]
    return Run(
        point.s, point.r, point.t, point.ranks, point.scheme, point.inject, point.scaling, repeat,
        record.code.grid, record.code.K, record.code.P, used.results_used, record.code.name, record.code.dispatch,
        time=time, total=seconds.total, command=command, gflops=point.flops / time / 1e9,
        **{name: float(getattr(seconds, name)) for name in PHASES},
        load=1 - seconds.wait / time, residual=math.nan if residual is None else residual,
        check=verdict if complete else "FAILED", outcome=record.outcome.value,
        missing=used.missing_blocks, block_operations=used.block_operations, tasks_sent=counts.tasks_sent,
        repairs=counts.repairs, copies=counts.copies, bytes_sent=record.bytes_sent,
        bytes_received=record.bytes_received, late=", ".join(late), remark=record.message,
    )  # fmt: skip


# ---- lists on the command line -----------------------------------------------------------------------------------


def split_list(text: str, goes_on: str) -> list[str]:
    """Split at commas; a part that matches `goes_on` belongs to the one before: "freeze:1,2,none" has two."""
    found: list[str] = []
    for part in text.split(","):
        if found and re.match(goes_on, part.strip()):
            found[-1] += "," + part.strip()
        else:
            found.append(part.strip())
    return [part for part in found if part]


def split_injections(text: str) -> list[str]:
    """Rank lists hold commas, and begin with a digit after each."""
    return split_list(text, r"\d")


def split_schemes(text: str) -> list[str]:
    """Parameters hold commas, and an = before any colon."""
    return split_list(text, r"[^:/]*=")


def read_counts(flag: str, text: str, least: int = 1, most: int = 10**6) -> list[int]:
    """Whole numbers, "1,2,4". Raises UsageError."""
    try:
        values = [read_int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(least <= value <= most for value in values):
        raise UsageError(flag, f"must be whole numbers from {least} to {most}", repr(text), "For example 2,4,6.")
    return values


def read_sizes(text: str) -> list[tuple[int, int, int]]:
    """N or SxRxT, several with commas. Raises UsageError."""
    found = []
    for part in text.lower().split(","):
        sides = [read_counts("--size", side)[0] for side in part.split("x")]
        if len(sides) not in (1, 3):
            raise UsageError("--size", "must be N or SxRxT", repr(part), "For example 2048 or 4096x1000x1000.")
        found.append((sides[0], sides[0], sides[0]) if len(sides) == 1 else (sides[0], sides[1], sides[2]))
    return found


def weak_size(base: tuple[int, int, int], workers: int) -> tuple[int, int, int]:
    """Sides with `workers` times the products of `base`, in its proportions."""
    s, r, t = (max(1, round(side * workers ** (1 / 3))) for side in base)
    return s, r, t


@dataclass(frozen=True)
class Wanted:
    """The lists of a sweep, read."""

    ranks: Sequence[int]
    sizes: Sequence[tuple[int, int, int]]
    schemes: Sequence[str]
    injections: Sequence[str] = ("none",)
    grids: Sequence[str] = ("auto",)
    redundancies: Sequence[str] = ("auto",)
    scalings: Sequence[str] = ("strong",)


def points(wanted: Wanted) -> list[Point]:
    """Every combination, once. Raises UsageError for what a job would refuse before it computes."""
    found: dict[Point, None] = {}
    for grid in (grid for grid in wanted.grids if grid != "auto"):
        Grid.parse(grid)
    for redundancy in (text for text in wanted.redundancies if text != "auto"):
        _ratio(redundancy)
    lists = (wanted.scalings, wanted.sizes, wanted.ranks, wanted.schemes, wanted.grids, wanted.redundancies,
             wanted.injections)  # fmt: skip
    for scaling, base, ranks, scheme, grid, redundancy, inject in product(*lists):
        weak = scaling == "weak"
        s, r, t = weak_size(base, max(1, ranks - 1)) if weak else base
        label = f"weak:{'x'.join(map(str, base))}" if weak else "strong"
        try:
            full = _with_sizes(scheme, grid, redundancy, max(1, ranks - 1), (s, r, t))
            point = Point(ranks, s, r, t, full, inject, label)
            if point not in found:
                judge(point)
        except Refusal as error:
            raise _as_typed(error, scheme, redundancy) from None
        found[point] = None
    return list(found)


def judge(point: Point) -> None:
    """Raise the UsageError with which the job would end before it computes; by the parsers and codes of the job."""
    spec = parse(["--a", "A.npy", "--b", "B.npy", "--out", "C.npy", *point.flags()]).spec
    assert spec is not None
    check_ranks(spec.inject, point.ranks - 1)
    Latency(point.scheme, point.workers, "none", (point.s, point.r, point.t)).build(0)


def _as_typed(error: Refusal, scheme: str, redundancy: str) -> UsageError:
    """The refusal in the name of the flag of cmm.bench that the value came from."""
    params = split_scheme(scheme)[2]
    if error.argument == "--inject" and "smaller rank" in error.remedy:
        return UsageError("--inject", error.rule, error.value, "Name a smaller rank, or give larger --ranks only.")
    if error.argument in ("--inject", "--redundancy") or (error.argument == "--grid" and "grid" not in params):
        return UsageError(error.argument, error.rule, error.value, error.remedy)
    if error.argument == "--tasks" and "tasks" not in params and redundancy != "auto":
        return UsageError("--redundancy", f"P {error.rule}", f"{redundancy}, P = {error.value}",
                          "Use a larger one, or a smaller grid.")  # fmt: skip
    remedy = error.remedy.replace("--tasks ", "tasks=").replace("--grid", "grid")
    return UsageError("--code", f"{error.argument.removeprefix('--')} {error.rule}", f"{error.value} in {scheme!r}",
                      remedy)  # fmt: skip


def _with_sizes(scheme: str, grid: str, redundancy: str, workers: int, size: tuple[int, int, int]) -> str:
    """The scheme with grid= and tasks= where a list of grids or of redundancies asks for them."""
    name, dispatch, params = split_scheme(scheme)
    extra: dict[str, str] = {}
    if grid != "auto" and "grid" not in params:
        extra["grid"] = str(Grid.parse(grid))
    if redundancy != "auto" and "tasks" not in params:
        own = {key: value for key, value in params.items() if key != "grid"}
        asked = extra.get("grid", params.get("grid"))
        chosen, _ = choose(workers, *size, code=name, grid=Grid.parse(asked) if asked else None, dispatch=dispatch,
                           params=own)  # fmt: skip
        extra |= {"grid": str(chosen), "tasks": str(math.ceil(_ratio(redundancy) * chosen.K))}
    pairs = [f"{key}={value}" for key, value in {**params, **extra}.items()]
    return f"{name}/{dispatch}" + (":" + ",".join(pairs) if pairs else "")


def _ratio(text: str) -> float:
    try:
        value = read_float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1000:
        raise UsageError("--redundancy", "must be P/K, from 1 to 1000", repr(text), "For example 1.25,1.5, or auto.")
    return value


def share(found: Sequence[Point], array: str | None) -> Iterator[Point]:
    """The points of member I of an array of N, "I/N" with I from 0 to N - 1: every N-th. Raises UsageError."""
    member, count = read_array(array) if array else (0, 1)
    return (point for number, point in enumerate(found) if number % count == member)


def read_array(text: str) -> tuple[int, int]:
    """(I, N) of "I/N". Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    if match is None or not int(match[1]) < int(match[2]):
        raise UsageError("--array", "must be I/N with I from 0 to N - 1", repr(text),
                         "With #SBATCH --array=0-3: --array $SLURM_ARRAY_TASK_ID/4.")  # fmt: skip
    return int(match[1]), int(match[2])


def grouped(runs: Iterable[Run]) -> Mapping[Point, list[Run]]:
    """Runs by point, in order of their first appearance."""
    found: dict[Point, list[Run]] = {}
    for run in runs:
        found.setdefault(run.point, []).append(run)
    return found
