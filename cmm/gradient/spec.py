"""What a gradient job is, from flags and job file. Standard library only (read before NumPy and MPI)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cmm.core.errors import UsageError
from cmm.core.options import Option, OptionTable, default_report, require
from cmm.core.rules import (
    LARGEST,
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
from cmm.core.spec import Injection, split_member

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
    Option("speeds", "numbers", "V,V,...", "relative speeds of the workers, for heterogeneous-frc (default: measured)"),
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


@dataclass(frozen=True)
class Command:
    """`action`: run, help, version, list-codes, show-config or dry-run."""

    action: str
    spec: GradientSpec | None = None
    workers: int | None = None


# ---- values ------------------------------------------------------------------------------------------------------


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


_POSITIVE = real("must be a finite number above 0", lambda v: v > 0, "Use for example 0.1.")
RULES: dict[str, Rule] = {
    **{option.name: PATH for option in OPTIONS if option.kind == "path"},
    "loss": Rule(f"must be {', '.join(LOSSES)} or MODULE:NAME", _loss, "See --help.", LOSSES),
    "regulariser": Rule("must be MODULE:NAME", _callable_path, "See docs/gradient.md."),
    "code": choice(*CODES),
    "optimiser": choice(*OPTIMISERS),
    "wait": choice("first", "all"),
    "verify": choice("full", "none"),
    "progress": PROGRESS,
    "speeds": Rule("must be numbers above 0, separated by commas", _speeds, "Use for example 1,1,2.5."),
    "plot": file_ending(".png", ".pdf", ".svg", remedy="Use for example --plot loss.png."),
    "checkpoint": file_ending(".npz", remedy="Use for example --checkpoint theta.npz."),
    "stragglers": whole(0, RANKS, "Use for example --stragglers 1."),
    "parts": whole(1, RANKS, "Use for example --parts 8."),
    "iterations": whole(0, LARGEST, "Use for example --iterations 100."),
    "seed": SEED,
    "threads": THREADS,
    "workers": WORKERS,
    "delta": _POSITIVE,
    "ridge": real("must be a finite number from 0", lambda v: v >= 0, "Use for example 1e-3."),
    "step": _POSITIVE,
    "tolerance": real("must be a number from 0 to below 1", lambda v: 0 <= v < 1, "Use for example 1e-8."),
    "checkpoint_every": seconds("Use for example --checkpoint-every 60."),
    "give_up": seconds("Use for example --give-up 60."),
    "resume": SWITCH,
    "overwrite": SWITCH,
}

TABLE = OptionTable(
    "cmm.gradient", OPTIONS, RULES, GradientSpec, actions=ACTIONS,
    description="Distributed gradient descent that does not wait for stragglers.",
    epilog="Flags win over the job file. Exit codes: 0 complete, 3 not verified, 4 too many workers lost, 64 usage, "
           "65 bad data, 66 no such input, 70 internal error, 73 cannot write, 75 stopped but resumable.",
)  # fmt: skip


# ---- command line and job file -----------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> Command:
    """Read flags and the job file they name. Raises UsageError or InputMissingError."""
    given = TABLE.read(argv)
    if given.action in ("help", "version", "list-codes"):
        return Command(given.action)
    return Command(given.action, build({**given.file, **given.flags}, outputs=given.action == "run"), given.workers)


def build(values: Mapping[str, Any], *, outputs: bool = True) -> GradientSpec:
    """The job of checked values. Raises UsageError for what is missing or does not go together."""
    require(values, ("data", "labels", "out") if outputs else ("data", "labels"))
    filled: dict[str, Any] = {"out": "", **values}
    filled.setdefault("report", default_report(filled["out"]))
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
