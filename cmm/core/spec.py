"""What a job is: the merged flags and TOML keys, checked for syntax. Standard library only (read before NumPy).

`JobSpec` is checked when it is built, by the same rules (`RULES`) with which the command line checks flags and keys.
Whether files exist and whether a code likes its parameters is judged later, by those who know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.rules import (
    FOLDER,
    LONGEST,
    PATH,
    PROGRESS,
    RANKS,
    SEED,
    SWITCH,
    THREADS,
    WORKERS,
    Rule,
    choice,
    file_ending,
    read_float,
    real,
    seconds,
    whole,
)

MOST_TASKS = 10**7  # each has a number and a holder in the master's books

# ---- places ------------------------------------------------------------------------------------------------------

# Files of these kinds hold several matrices; FILE::NAME is one of them.
_CONTAINER = re.compile(r"(?P<file>.*?\.(?:npz|h5|hdf5|hdf))::(?P<member>.*)", re.IGNORECASE | re.DOTALL)


def split_member(path: str) -> tuple[str, str | None]:
    """(file, name of the matrix in it): "d/x.h5::/g/A" -> ("d/x.h5", "/g/A"); None where no name is given."""
    match = _CONTAINER.fullmatch(path)
    if match is None:
        return path, None
    return match["file"], match["member"] if match["member"].strip("/") else None


# ---- injections --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InjectionKind:
    """What the value of an injection means: its separator and name in SPEC, its default (None: required), its range."""

    separator: str
    metavar: str
    default: float | None
    least: float
    most: float
    meaning: str

    @property
    def tail(self) -> str:
        text = self.separator + self.metavar
        return text if self.default is None else f"[{text}]"


INJECTIONS: dict[str, InjectionKind] = {
    "slow": InjectionKind(":", "FACTOR", None, 1, LONGEST, "every task takes FACTOR times as long"),
    "sleep": InjectionKind(":", "SECONDS", None, 0, LONGEST, "sleeps SECONDS before every task"),
    "exp": InjectionKind(":", "MEAN", None, 0, LONGEST, "exponential delay of mean MEAN seconds per task"),
    "freeze": InjectionKind("@", "SECONDS", 0, 0, LONGEST, "stops itself (SIGSTOP) SECONDS after the start"),
    "kill": InjectionKind("@", "SECONDS", 0, 0, LONGEST, "kills itself (SIGKILL) SECONDS after the start"),
    "corrupt": InjectionKind(":", "PROBABILITY", 1, 0, 1, "changes one element of a result by a relative 1e-3 or more"),
}


@dataclass(frozen=True)
class Injection:
    """One straggler injection: `kind` slow|sleep|exp|freeze|kill|corrupt, on worker ranks.

    value : FACTOR of slow, SECONDS of sleep, MEAN (seconds) of exp, PROBABILITY of corrupt, SECONDS after start for
        freeze and kill
    ranks : worker ranks (>= 1), increasing; None means all workers
    """

    kind: str
    ranks: tuple[int, ...] | None
    value: float

    def hits(self, rank: int) -> bool:
        return rank >= 1 and (self.ranks is None or rank in self.ranks)

    @classmethod
    def parse(cls, text: str, argument: str = "--inject") -> Injection:
        """Read `KIND:RANKS[:VALUE]`, or `KIND:RANKS[@SECONDS]` for freeze and kill.

        Raises UsageError, in the name of `argument`, with the rule that `text` breaks.
        """
        kind, _, rest = text.strip().partition(":")
        form = INJECTIONS.get(kind)
        if form is None:
            _refuse_spec(argument, text, "must start with " + ", ".join(f"{name}:" for name in INJECTIONS))
        ranks, separator, value = _split_value(rest, form.separator)
        if not separator and form.default is None:
            _refuse_spec(argument, text, f"{kind} needs a {form.metavar}: {kind}:RANKS{form.tail}")
        number = float(form.default or 0) if not separator else _read_value(argument, text, kind, form, value)
        return cls(kind, _read_ranks(argument, text, ranks), number)

    def __str__(self) -> str:
        """The SPEC that gives this injection again."""
        ranks = "all" if self.ranks is None else ",".join(map(str, self.ranks))
        return f"{self.kind}:{ranks}{INJECTIONS[self.kind].separator}{self.value:.17g}"


def _refuse_spec(argument: str, text: str, rule: str) -> NoReturn:
    raise UsageError(argument, rule, repr(text), "For example freeze:2@1, sleep:1-3:0.5, slow:all:5 or corrupt:4:0.1.")


def _split_value(rest: str, separator: str) -> tuple[str, str, str]:
    """(ranks, separator found, value). A separator that this kind does not use stays in the ranks and is refused."""
    head, found, tail = rest.partition(separator)
    return head, found, tail


def _read_value(argument: str, text: str, kind: str, form: InjectionKind, value: str) -> float:
    try:
        number = read_float(value)
    except ValueError:
        _refuse_spec(argument, text, f"{form.metavar} of {kind} must be a number")
    if not form.least <= number <= form.most:
        _refuse_spec(argument, text, f"{form.metavar} of {kind} must be between {form.least:g} and {form.most:g}")
    return number


def _read_ranks(argument: str, text: str, ranks: str) -> tuple[int, ...] | None:
    if ranks.strip() == "all":
        return None
    found: set[int] = set()
    for part in ranks.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            _refuse_spec(argument, text, "RANKS must be like 2, 2,5, 1-3 or all")
        first, last = int(match[1]), int(match[2] or match[1])
        if first == 0:
            _refuse_spec(argument, text, "rank 0 is the master, not a worker; RANKS start at 1")
        if last < first:
            _refuse_spec(argument, text, "a range of RANKS must not descend")
        if last > RANKS:
            _refuse_spec(argument, text, f"RANKS must be at most {RANKS}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def check_ranks(injections: Sequence[Injection], workers: int) -> None:
    """Raise UsageError when an injection names a rank beyond the last worker. `workers`: W, ranks 1..W."""
    for injection in injections:
        beyond = [rank for rank in injection.ranks or () if rank > workers]
        if beyond:
            have = f"the workers are ranks 1 to {workers}" if workers else "this job has no workers (a single rank)"
            raise UsageError("--inject", f"must name workers only; {have}", f"rank {beyond[0]} in {str(injection)!r}",
                             "Name a smaller rank or start more ranks (mpirun -n).")  # fmt: skip


# ---- rules of single values --------------------------------------------------------------------------------------


_PICTURE = file_ending(".png", ".pdf", ".svg", remedy="Use for example --timeline timeline.png.")

RULES: dict[str, Rule] = {
    "a": PATH,
    "b": PATH,
    "out": PATH,
    "report": PATH,
    "op": choice("T", "H"),
    "code": Rule("must be the name of a code", lambda v: isinstance(v, str) and bool(v), "See --list-codes."),
    "grid": Rule("must be MxN or PxMxN", lambda v: isinstance(v, Grid), "Use for example 4x4, or 2x4x4."),
    "tasks": whole(1, MOST_TASKS, "Use at least as many as the grid has blocks, M times N."),
    "params": Rule(
        "must be KEY=VALUE pairs",
        lambda v: all(isinstance(x, str) for kv in v.items() for x in kv),
        "Use for example --param construction=systematic.",
    ),
    "dispatch": choice("pull", "oneshot"),
    "inject": Rule(
        "must be injections", lambda v: all(isinstance(x, Injection) for x in v), "Use for example --inject freeze:2."
    ),
    "seed": SEED,
    "tolerance": real("must be a finite number above 0", lambda v: v > 0, "Use for example 1e-9."),
    "verify": choice("none", "final", "all"),
    "threads": THREADS,
    "give_up": seconds("Use for example --give-up 60."),
    "overwrite": SWITCH,
    "checkpoint": FOLDER,
    "checkpoint_every": seconds("Use for example --checkpoint-every 5."),
    "resume": SWITCH,
    "timeline": _PICTURE,
    "progress": PROGRESS,
    "workers": WORKERS,
}

# May be None: chosen by cmm, or not wanted.
OPTIONAL = frozenset({"grid", "tasks", "tolerance", "give_up", "checkpoint", "timeline"})


def check_value(name: str, value: Any, argument: str | None = None) -> None:
    """Raise UsageError, in the name of `argument` (default: the flag), when a value breaks its rule."""
    RULES[name].check(argument or flag(name), value)


def flag(name: str) -> str:
    """The flag of a field: give_up -> --give-up; params -> --param."""
    return "--param" if name == "params" else "--" + name.replace("_", "-")


# ---- the job -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobSpec:
    """A matrix job. None means "chosen from the number of workers and the data" for grid, tasks and tolerance.

    Paths are absolute when they come from the command line or a job file; an empty path means "not given" (allowed
    only where nothing is computed). Raises UsageError when built from values that break `RULES`.
    """

    a: str
    b: str
    out: str
    report: str  # default <out>.report.json
    op: str = "T"  # T or H
    code: str = "fr"
    grid: Grid | None = None
    tasks: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    dispatch: str = "pull"
    inject: tuple[Injection, ...] = ()
    seed: int = 0
    tolerance: float | None = None
    verify: str = "all"  # none, final, all
    threads: int = 1  # BLAS threads per rank
    give_up: float | None = None  # seconds
    overwrite: bool = False
    timeline: str | None = None
    progress: str = "auto"  # auto, bar, lines, none
    checkpoint: str | None = None  # folder
    checkpoint_every: float = 5.0  # seconds between two syncs
    resume: bool = False

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            absent = name in OPTIONAL if value is None else value == "" and name in ("a", "b", "out", "report")
            if not absent:
                check_value(name, value)

    def refuse_contradictions(self) -> None:
        """Raise UsageError for what does not go together."""
        if self.resume and self.checkpoint is None:
            raise UsageError("--resume", "needs --checkpoint", "nothing", "Name the folder to go on from.")
        self.refuse_same_file()
        folder = os.path.realpath(self.checkpoint) if self.checkpoint else ""
        for name in ("a", "b", "out", "report", "timeline"):
            path = os.path.realpath(split_member(getattr(self, name) or "")[0]) if getattr(self, name) else ""
            if folder and path and os.path.commonpath([folder, path]) == folder:
                raise UsageError("--checkpoint", f"must not be, or hold, the file of {flag(name)}", repr(folder),
                                 "Choose a folder of its own: it is removed at the end.")  # fmt: skip

    def refuse_same_file(self) -> None:
        """Raise UsageError when an output would replace an input or another output."""
        inputs = (("a", self.a), ("b", self.b))
        taken = {os.path.realpath(split_member(path)[0]): flag(name) for name, path in inputs if path}
        for name in ("out", "report", "timeline"):
            path = getattr(self, name)
            file = os.path.realpath(split_member(path)[0] if name == "out" else path) if path else ""
            other = taken.setdefault(file, flag(name)) if file else flag(name)
            if other != flag(name):
                raise UsageError(flag(name), f"must not be the file of {other}", repr(path), "Choose another name.")
