"""What a gradient job is, from flags and job file. Standard library only (read before NumPy and MPI).

One table, `OPTIONS`, drives flags, keys, --help, --show-config and the documentation; values are checked here, once,
whatever they come from. Flags win over the job file; relative paths are relative to the job file there.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, NoReturn

from cmm.core.errors import UsageError
from cmm.core.jobfile import Option, Parser, load_toml, toml_value
from cmm.core.spec import LARGEST, LONGEST, Injection, read_float, read_int, split_member

CODES = ("generalized-frc", "heterogeneous-frc", "frc", "cyclic", "polynomial", "uncoded")
LOSSES = ("least-squares", "logistic", "softmax", "huber")
OPTIMISERS = ("lbfgs", "nesterov", "backtracking", "fixed")

OPTIONS: tuple[Option, ...] = (
    Option("data", "path", "FILE", "features, a sample per row (.npy, .npz, HDF5, Matrix Market)"),
    Option("labels", "path", "FILE", "labels, one per row"),
    Option("out", "path", "FILE", "where theta goes"),
    Option("report", "path", "FILE", "where the report goes (default: OUT.report.json)"),
    Option("loss", "text", "NAME|MODULE:CALLABLE", "least-squares, logistic, softmax, huber, or "
           "grad(X_part, y_part, theta) by import path"),
    Option("delta", "float", "X", "where the Huber loss becomes linear"),
    Option("ridge", "float", "MU", "adds MU/2 |theta|^2"),
    Option("regulariser", "text", "MODULE:CALLABLE", "adds regulariser(theta) = (value, gradient)"),
    Option("code", "text", "NAME", "the gradient code, see --list-codes"),
    Option("stragglers", "int", "S", "workers that may stay away (default: a tenth of them, at least one)"),
    Option("parts", "int", "K", "parts the data are cut into; groups q with the code polynomial (default: the number "
           "of workers; 8 for each with heterogeneous-frc)"),
    Option("speeds", "text", "V,V,...", "relative speeds of the workers, for heterogeneous-frc (default: measured)"),
    Option("optimiser", "text", "NAME", "lbfgs, nesterov, backtracking or fixed"),
    Option("step", "float", "X", "step: of fixed; where backtracking and nesterov begin (default there: 1)"),
    Option("iterations", "int", "N", "at most so many"),
    Option("tolerance", "float", "X", "stop when the gradient's largest element has fallen to this part of the first "
           "one's"),
    Option("start", "path", "FILE", "theta to begin with (default: zeros)"),
    Option("checkpoint", "path", "FILE.npz", "where theta and the optimiser's state are kept"),
    Option("checkpoint_every", "float", "SECONDS", "how often"),
    Option("resume", "bool", "", "go on from the checkpoint if there is one"),
    Option("plot", "path", "FILE.png", "draw the loss and the seconds per evaluation"),
    Option("wait", "text", "first|all", "all: wait for every living worker even so (for measurements)"),
    Option("verify", "text", "full|none", "full: at the end the master computes loss and gradient itself, from the "
           "files, and compares"),
    Option("give_up", "float", "SECONDS", "end when so long no answer has come (default: wait)"),
    Option("inject", "injections", "SPEC", "make stragglers, for tests; may be repeated: slow:RANKS:FACTOR, "
           "sleep:RANKS:SECONDS, exp:RANKS:MEAN, freeze:RANKS[@SECONDS], kill:RANKS[@SECONDS], "
           "corrupt:RANKS:PROBABILITY"),
    Option("seed", "int", "N", "seed of coefficients and injections"),
    Option("threads", "int", "N", "BLAS threads per rank"),
    Option("overwrite", "bool", "", "replace an existing output"),
    Option("progress", "text", "auto|bar|lines|none", "a bar, lines, or nothing on stderr"),
)  # fmt: skip
BY_KEY = {option.key: option for option in OPTIONS}
ACTIONS = {
    "help": "print this help",
    "version": "print the version",
    "list-codes": "print the codes",
    "show-config": "print the merged job as a job file",
    "dry-run": "print the loads and the memory of every worker; compute nothing",
}


@dataclass(frozen=True)
class GradientSpec:
    """A gradient job. None means "chosen from the number of workers", "measured" or "not wanted"."""

    data: str
    labels: str
    out: str
    report: str
    loss: str = "least-squares"
    delta: float = 1.0
    ridge: float = 0.0
    regulariser: str | None = None
    code: str = "generalized-frc"
    stragglers: int | None = None
    parts: int | None = None
    speeds: str | None = None
    optimiser: str = "lbfgs"
    step: float | None = None
    iterations: int = 100
    tolerance: float = 1e-8
    start: str | None = None
    checkpoint: str | None = None
    checkpoint_every: float = 60.0
    resume: bool = False
    plot: str | None = None
    wait: str = "first"
    verify: str = "full"
    give_up: float | None = None
    inject: tuple[Injection, ...] = ()
    seed: int = 0
    threads: int = 1
    overwrite: bool = False
    progress: str = "auto"

    def speed_list(self) -> list[float] | None:
        return None if self.speeds is None else [read_float(text) for text in self.speeds.split(",")]


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(GradientSpec) if f.default is not MISSING}


@dataclass(frozen=True)
class Command:
    """`action`: run, help, version, list-codes, show-config or dry-run."""

    action: str
    spec: GradientSpec | None = None
    workers: int | None = None


# ---- values ------------------------------------------------------------------------------------------------------


def _whole(least: int, most: int = LARGEST) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most


def _number(holds: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) and holds(v)


def _choice(*names: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda v: v in names), "must be " + ", ".join(names[:-1]) + " or " + names[-1]


def _callable_path(value: Any) -> bool:
    module, colon, name = str(value).partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _loss(value: Any) -> bool:
    return value in LOSSES or _callable_path(value)


def _speeds(value: Any) -> bool:
    try:
        return all(read_float(text) > 0 for text in str(value).split(","))
    except ValueError:
        return False


def _path(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value and not value.endswith("/")


def _ends(*suffixes: str) -> Callable[[Any], bool]:
    return lambda v: _path(v) and v.lower().endswith(suffixes)


_PATH_RULE = (_path, "must name a file (not empty, no / at the end)")
_COUNT = "must be a whole number from"
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{option.name: _PATH_RULE for option in OPTIONS if option.kind == "path"},
    "loss": (_loss, f"must be {', '.join(LOSSES)} or MODULE:NAME"),
    "regulariser": (_callable_path, "must be MODULE:NAME"),
    "code": _choice(*CODES),
    "optimiser": _choice(*OPTIMISERS),
    "wait": _choice("first", "all"),
    "verify": _choice("full", "none"),
    "progress": _choice("auto", "bar", "lines", "none"),
    "speeds": (_speeds, "must be numbers above 0, separated by commas"),
    "plot": (
        lambda v: _path(v) and v.lower().endswith((".png", ".pdf", ".svg")),
        "must name a .png, .pdf or .svg file",
    ),
    "checkpoint": (_ends(".npz"), "must name a .npz file"),
    "stragglers": (_whole(0, 10**6), f"{_COUNT} 0 to 1000000"),
    "parts": (_whole(1, 10**6), f"{_COUNT} 1 to 1000000"),
    "iterations": (_whole(0), f"{_COUNT} 0"),
    "seed": (_whole(0), f"{_COUNT} 0"),
    "threads": (_whole(1, 4096), f"{_COUNT} 1 to 4096"),
    "workers": (_whole(0, 10**6), f"{_COUNT} 0 to 1000000"),
    "delta": (_number(lambda v: v > 0), "must be a finite number above 0"),
    "ridge": (_number(lambda v: v >= 0), "must be a finite number from 0"),
    "step": (_number(lambda v: v > 0), "must be a finite number above 0"),
    "tolerance": (_number(lambda v: 0 <= v < 1), "must be a number from 0 to below 1"),
    "checkpoint_every": (_number(lambda v: 0 <= v <= LONGEST), "must be seconds from 0"),
    "give_up": (_number(lambda v: 0 <= v <= LONGEST), "must be seconds from 0"),
    "resume": (lambda v: isinstance(v, bool), "must be true or false"),
    "overwrite": (lambda v: isinstance(v, bool), "must be true or false"),
}


def _check(name: str, value: Any, argument: str) -> None:
    holds, says = RULES[name]
    if not holds(value):
        near = get_close_matches(str(value), CODES + LOSSES + OPTIMISERS, n=1) if isinstance(value, str) else []
        raise UsageError(argument, says, repr(value), f"Did you mean {near[0]}?" if near else "See --help.")


def _from_text(option: Option, text: str, argument: str) -> Any:
    value: Any = text
    with contextlib.suppress(ValueError):  # the rule refuses the text itself
        value = {"int": read_int, "float": read_float}.get(option.kind, str)(text)
    _check(option.name, value, argument)
    return os.path.abspath(value) if option.kind == "path" else value


def _from_toml(option: Option, raw: Any, argument: str, base: str) -> Any:
    if option.kind == "injections":
        texts = raw if isinstance(raw, list) else [raw]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(argument, "must be a list of texts", repr(raw), 'Use for example ["freeze:2"].')
        return tuple(Injection.parse(text, argument) for text in texts)
    if option.name == "speeds" and isinstance(raw, list):
        raw = ",".join(map(str, raw))
    _check(option.name, raw, argument)
    if option.kind == "path":
        return os.path.abspath(os.path.join(base, os.path.expanduser(raw)))
    return float(raw) if option.kind == "float" else raw


# ---- command line and job file -----------------------------------------------------------------------------------


def make_parser() -> Parser:
    """The parser of `python -m cmm.gradient`; values stay text."""
    parser = Parser(prog="cmm.gradient", add_help=False, allow_abbrev=False,
                    usage="python -m cmm.gradient [JOB.toml] [flags]",
                    description="Distributed gradient descent that does not wait for stragglers.",
                    epilog="Flags win over the job file. Exit codes: 0 complete, 3 not verified, 4 too many "
                           "workers lost, 64 usage, 65 bad data, 66 no such input, 70 internal error, 73 cannot "
                           "write, 75 stopped but resumable.")  # fmt: skip
    parser.add_argument("job", nargs="*", metavar="JOB.toml", help="a job file (TOML)")
    job = parser.add_argument_group("the job (every flag is also a key of the job file)")
    for option in OPTIONS:
        default = _DEFAULTS.get(option.name)
        meaning = option.meaning + (f" (default: {default})" if default not in (None, (), False) else "")
        if option.kind == "bool":
            job.add_argument(option.flag, dest=option.name, action=argparse.BooleanOptionalAction, help=meaning)
        else:
            action = "append" if option.kind == "injections" else "store"
            job.add_argument(option.flag, dest=option.name, action=action, metavar=option.metavar, help=meaning)
    other = parser.add_argument_group("instead of computing")
    for name, meaning in ACTIONS.items():
        other.add_argument(*(["-h"] if name == "help" else []), f"--{name}", action="store_true", help=meaning)
    other.add_argument("--workers", metavar="W", help="with --dry-run: plan for W workers")
    return parser


def parse(argv: Sequence[str]) -> Command:
    """Read flags and the job file they name. Raises UsageError or InputMissingError."""
    parser = make_parser()
    if {"-h", "--help"} & set(argv):
        return Command("help")
    given, unknown = parser.parse_known_args(list(argv))
    strangers = [text for text in unknown if text.startswith("-")]
    if strangers:
        flags = [*(option.flag for option in OPTIONS), *(f"--{name}" for name in ACTIONS), "--workers"]
        _refuse("command line", "a flag", strangers[0].partition("=")[0], flags)
    jobs = given.job + unknown
    if len(jobs) > 1:
        raise UsageError("JOB.toml", "must be one job file", " ".join(jobs), "Start one job at a time.")
    action = next((name for name in ACTIONS if getattr(given, name.replace("-", "_"))), "run")
    if action in ("version", "list-codes"):
        return Command(action)
    workers = (
        None if given.workers is None else _from_text(Option("workers", "int", "W", ""), given.workers, "--workers")
    )
    if workers is not None and action != "dry-run":
        raise UsageError("--workers", "goes with --dry-run only", workers, "Start W + 1 ranks with mpirun -n instead.")
    values = read_job(jobs[0]) if jobs else {}
    for option in OPTIONS:
        raw = getattr(given, option.name)
        if option.kind == "injections" and raw is not None:
            values[option.name] = tuple(Injection.parse(text, "--inject") for text in raw)
        elif raw is not None:
            values[option.name] = raw if option.kind == "bool" else _from_text(option, raw, option.flag)
    return Command(action, build(values, outputs=action == "run"), workers)


def read_job(path: str) -> dict[str, Any]:
    """The checked values of a job file. Raises InputMissingError or UsageError."""
    base = os.path.dirname(os.path.abspath(path))
    values: dict[str, Any] = {}
    for key, raw in load_toml(path).items():
        if key not in BY_KEY:
            _refuse(path, "a key", key, list(BY_KEY))
        values[BY_KEY[key].name] = _from_toml(BY_KEY[key], raw, f"{key} in {path}", base)
    return values


def _refuse(argument: str, what: str, name: str, known: Sequence[str]) -> NoReturn:
    near = get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
    raise UsageError(argument, f"must be {what} of cmm.gradient", repr(name), remedy)


def build(values: Mapping[str, Any], *, outputs: bool = True) -> GradientSpec:
    """The job of checked values. Raises UsageError for what is missing or does not go together."""
    for name in ("data", "labels", "out") if outputs else ("data", "labels"):
        if not values.get(name):
            raise UsageError(f"--{name}", "is required", "nothing", f"Give --{name} FILE, or {name} in a job file.")
    filled: dict[str, Any] = {"out": "", **values}
    filled.setdefault("report", f"{filled['out']}.report.json" if filled["out"] else "")
    spec = GradientSpec(**filled)
    if spec.resume and spec.checkpoint is None:
        raise UsageError("--resume", "needs --checkpoint", "nothing", "Name the file to go on from.")
    if spec.code == "polynomial" and spec.loss != "least-squares":
        raise UsageError("--code polynomial", "is for --loss least-squares only", spec.loss,
                         "Use generalized-frc for other losses.")  # fmt: skip
    if spec.speeds is not None and spec.code != "heterogeneous-frc":
        raise UsageError("--speeds", "goes with --code heterogeneous-frc", spec.code, "Leave it out.")
    if spec.verify == "none" and any(item.kind == "corrupt" for item in spec.inject):
        raise UsageError("--inject corrupt", "needs --verify full", spec.verify, "Leave --verify out.")
    _refuse_same_file(spec)
    return spec


def _refuse_same_file(spec: GradientSpec) -> None:
    taken: dict[str, str] = {}
    for name in ("data", "labels", "start", "out", "report", "checkpoint", "plot"):
        path = getattr(spec, name)
        file = os.path.realpath(split_member(path)[0]) if path else ""
        if not file or (name in ("labels", "start") and taken.get(file) == "--data"):
            continue  # one container may hold all inputs
        if taken.setdefault(file, f"--{name}") != f"--{name}":
            raise UsageError(f"--{name}", f"must not be the file of {taken[file]}", repr(path), "Choose another name.")


def as_mapping(spec: GradientSpec) -> dict[str, Any]:
    """The job by key, JSON-ready; None where cmm chooses."""
    values = {option.key: getattr(spec, option.name) for option in OPTIONS}
    return {**values, "inject": [str(item) for item in spec.inject]}


def to_toml(spec: GradientSpec) -> str:
    """The job as a job file. What is chosen stands as a comment."""
    return "".join(
        f"# {key} =\n" if value in (None, "") else f"{key} = {toml_value(value)}\n"
        for key, value in as_mapping(spec).items()
    )


def option_table() -> str:
    """The options as a Markdown table, for the documentation."""
    lines = ["| flag | key | meaning | default |", "|---|---|---|---|"]
    for option in OPTIONS:
        shown, default = f"{option.flag} {option.metavar}".strip().replace("|", "\\|"), _DEFAULTS.get(option.name)
        said = f"`{default}`" if default not in (None, (), False) else ""
        lines.append(f"| `{shown}` | `{option.key}` | {option.meaning} | {said} |")
    return "\n".join(lines) + "\n"
