"""From what the user types to a `JobSpec`: flags, job files (TOML) and the merge of both. Standard library only.

One table, `OPTIONS`, drives the flags, the keys, `--help`, `--show-config` and the documentation. A key is the flag
without its dashes; `--param` fills the table [params]. Flags win over the job file; a flag that may be repeated
replaces the file's list; `--param` replaces single keys, and the whole table when `--code` changes the code. Relative
paths are relative to the job file there, and to the current directory on the command line.

Everything here is judged from text alone, so that every rank judges alike before MPI starts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, NoReturn

from cmm.core.errors import InputMissingError, UsageError
from cmm.core.grid import Grid
from cmm.core.spec import Injection, JobSpec, check_value, flag, read_float, read_int, split_member

LARGEST_FILE = 1 << 20  # bytes; a job file is a page of text


@dataclass(frozen=True)
class Option:
    """One line of the table: field of JobSpec, how its value is written, and what it means."""

    name: str
    kind: str  # path, text, grid, int, float, bool, injections, params
    metavar: str
    meaning: str

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def key(self) -> str:
        """The key in a job file."""
        return self.name.replace("_", "-")


OPTIONS: tuple[Option, ...] = (
    Option("a", "path", "FILE", "the matrix A, s x r (a 1-D file is one column)"),
    Option("b", "path", "FILE", "the matrix B, s x t"),
    Option("out", "path", "FILE", "where C = A^T B (r x t) goes"),
    Option("report", "path", "FILE", "where the report goes (default: OUT.report.json)"),
    Option("op", "text", "T|H", "T: C = A^T B; H: C = A^H B"),
    Option("code", "text", "NAME", "the erasure code, see --list-codes"),
    Option("grid", "grid", "MxN", "cut A into M and B into N column chunks; PxMxN also splits the shared dimension "
           "(default: chosen from the number of workers)"),
    Option("tasks", "int", "P", "number of tasks (oneshot), or the most that are issued (pull)"),
    Option("params", "params", "KEY=VALUE", "a parameter of the code; may be repeated"),
    Option("dispatch", "text", "pull|oneshot", "pull: workers ask for work; oneshot: all tasks are dealt at the start"),
    Option("inject", "injections", "SPEC", "make stragglers, for tests; may be repeated: slow:RANKS:FACTOR, "
           "sleep:RANKS:SECONDS, exp:RANKS:MEAN, freeze:RANKS[@SECONDS], kill:RANKS[@SECONDS], "
           "corrupt:RANKS[:PROBABILITY]; RANKS like 2, 2,5, 1-3 or all"),
    Option("seed", "int", "N", "seed of all coefficients and injections"),
    Option("tolerance", "float", "X", "largest estimated error of C_ij relative to |A_i||B_j| "
           "(default: 1e-9; 1e-3 for float32)"),
    Option("verify", "text", "none|final|all", "check nothing, C, or every result and C"),
    Option("threads", "int", "N", "BLAS threads per rank"),
    Option("give_up", "float", "SECONDS", "when no worker answers any more: give up after SECONDS instead of "
           "computing the missing blocks on the master"),
    Option("checkpoint", "path", "FOLDER", "keep every accepted result there until C is complete"),
    Option("checkpoint_every", "float", "SECONDS", "how often they are synced: what a power cut can lose at most"),
    Option("resume", "bool", "", "go on from the checkpoint if there is one"),
    Option("overwrite", "bool", "", "replace an existing output"),
    Option("timeline", "path", "FILE.png", "draw who did what when"),
    Option("progress", "text", "auto|bar|lines|none", "a bar, lines, or nothing on stderr"),
)  # fmt: skip
BY_KEY = {option.key: option for option in OPTIONS}

ACTIONS = {
    "help": "print this help",
    "version": "print the version",
    "list-codes": "print the codes: name, paper, recovery threshold, what each is good for",
    "show-config": "print the merged job as a job file",
    "dry-run": "print the plan and the memory each rank will need; compute nothing",
}

FLAGS = [*(option.flag for option in OPTIONS), *(f"--no-{option.name}" for option in OPTIONS if option.kind == "bool"),
         *(f"--{name}" for name in ACTIONS), "--workers"]  # fmt: skip


@dataclass(frozen=True)
class Command:
    """What the command line asks for. `action`: run, help, version, list-codes, show-config or dry-run.

    spec : None for help, version and list-codes
    workers : --workers of a dry run, or None
    """

    action: str
    spec: JobSpec | None = None
    workers: int | None = None


# ---- the command line --------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        match = re.match(r"argument (\S+?)(?:/\S+)?: (.*)", message, re.DOTALL)
        argument, rule = (match[1], match[2]) if match else ("command line", message)
        raise UsageError(argument, rule, "nothing" if rule.startswith("expected") else "something else", "See --help.")


def make_parser() -> argparse.ArgumentParser:
    """The parser of `python -m cmm.run`; values stay text, they are read with the table."""
    parser = Parser(prog="cmm.run", add_help=False, allow_abbrev=False, usage="python -m cmm.run [JOB.toml] [flags]",
                     description="Compute C = A^T B over MPI ranks with an erasure code over the reals.",
                     epilog="Flags win over the job file. Exit codes: 0 complete and verified, 3 verification failed, "
                            "4 too many workers lost, 5 tolerance out of reach, 64 usage, 65 bad data, 66 no such "
                            "input, 70 internal error, 73 cannot write, 75 stopped but resumable.")  # fmt: skip
    parser.add_argument("job", nargs="*", metavar="JOB.toml", help="a job file (TOML)")
    job = parser.add_argument_group("the job (every flag is also a key of the job file)")
    for option in OPTIONS:
        meaning = option.meaning + _default_text(option)
        if option.kind == "bool":
            job.add_argument(option.flag, dest=option.name, action=argparse.BooleanOptionalAction, help=meaning)
        else:
            action = "append" if option.kind in ("injections", "params") else "store"
            job.add_argument(option.flag, dest=option.name, action=action, metavar=option.metavar, help=meaning)
    other = parser.add_argument_group("instead of computing")
    for name, meaning in ACTIONS.items():
        names = ["-h", "--help"] if name == "help" else [f"--{name}"]
        other.add_argument(*names, action="store_true", help=meaning)
    other.add_argument("--workers", metavar="W", help="with --dry-run: plan for W workers")
    return parser


def _default_text(option: Option) -> str:
    value = _DEFAULTS.get(option.name)
    return f" (default: {value})" if value not in (None, (), False, "") and option.kind != "params" else ""


def parse(argv: Sequence[str]) -> Command:
    """Read flags and the job file they name. Raises UsageError or InputMissingError."""
    parser = make_parser()
    if {"-h", "--help"} & set(argv):
        return Command("help")
    given, unknown = parser.parse_known_args(list(argv))
    strangers = [text for text in unknown if text.startswith("-")]
    if strangers:
        _refuse_unknown("command line", "a flag", strangers[0].partition("=")[0], FLAGS)
    jobs = given.job + unknown  # argparse takes a positional that follows flags for an unknown one
    if len(jobs) > 1:
        raise UsageError("JOB.toml", "must be one job file", " ".join(jobs), "Start one job at a time.")
    action = next((name for name in ACTIONS if getattr(given, name.replace("-", "_"))), "run")
    workers = _workers(given.workers, action)
    if action in ("version", "list-codes"):
        return Command(action)
    values = read_job(jobs[0]) if jobs else {}
    spec = build(_merge(values, _from_flags(given)), needs=_NEEDS[action])
    return Command(action, spec, workers)


_NEEDS = {"run": ("a", "b", "out"), "dry-run": ("a", "b"), "show-config": ()}


def _workers(text: str | None, action: str) -> int | None:
    if text is None:
        return None
    value: int = _read_text("int", text, "workers", "--workers")
    if action != "dry-run":
        raise UsageError("--workers", "goes with --dry-run only", text, "Start W + 1 ranks with mpirun -n instead.")
    return value


def _refuse_unknown(argument: str, what: str, name: str, known: Iterable[str]) -> NoReturn:
    names = list(known)
    near = get_close_matches(name, names, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."
    raise UsageError(argument, f"must be {what} of cmm.run", repr(name), remedy)


def _from_flags(given: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in OPTIONS:
        raw = getattr(given, option.name)
        if raw is None:
            continue
        if option.kind == "params":
            values[option.name] = dict(_read_pair(text) for text in raw)
        elif option.kind == "injections":
            values[option.name] = tuple(Injection.parse(text) for text in raw)
        elif option.kind == "bool":
            values[option.name] = raw
        else:
            values[option.name] = _read_text(option.kind, raw, option.name, option.flag)
    return values


def _read_pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", key):
        raise UsageError("--param", "must be KEY=VALUE", repr(text), "Use for example construction=systematic.")
    return key, value


def _read_text(kind: str, text: str, name: str, argument: str, base: str = "") -> Any:
    """A value from its text, checked by the rule of its field. `base`: what relative paths are relative to."""
    value: Any = text
    try:
        if kind == "int":
            value = read_int(text)
        elif kind == "float":
            value = read_float(text)
    except ValueError:
        pass  # the rule refuses the text itself
    if kind == "grid":
        value = _read_grid(text, argument)
    check_value(name, value, argument)
    return os.path.abspath(os.path.join(base, text)) if kind == "path" else value


def _read_grid(text: str, argument: str) -> Grid:
    try:
        return Grid.parse(text)
    except UsageError as error:
        raise UsageError(argument, error.rule, error.value, error.remedy) from None


# ---- job files ---------------------------------------------------------------------------------------------------


def read_job(path: str) -> dict[str, Any]:
    """The checked values of a job file, by field of JobSpec. Raises InputMissingError or UsageError."""
    table = load_toml(path)
    base = os.path.dirname(os.path.abspath(path))
    values: dict[str, Any] = {}
    for key, raw in table.items():
        if key not in BY_KEY:
            _refuse_unknown(path, "a key", key, BY_KEY)
        option = BY_KEY[key]
        values[option.name] = _from_toml(option, raw, f"{key} in {path}", base)
    return values


def load_toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputMissingError("JOB.toml", "must be a readable file", repr(path), f"{reason}.") from None
    if len(content) > LARGEST_FILE:
        raise UsageError("JOB.toml", f"must be a TOML file of at most {LARGEST_FILE} bytes", repr(path),
                         "Matrices are given with --a and --b.")  # fmt: skip
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        detail = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error) or "nested too deeply"
        raise UsageError("JOB.toml", "must be valid TOML", repr(path), f"{detail}.") from None


def _from_toml(option: Option, raw: Any, argument: str, base: str) -> Any:
    if option.kind == "params":
        return _toml_params(raw, argument)
    if option.kind == "injections":
        texts = raw if isinstance(raw, list) else [raw]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(argument, "must be a list of texts", repr(raw), 'Use for example ["freeze:2"].')
        return tuple(Injection.parse(text, argument) for text in texts)
    if option.kind in ("path", "grid"):
        if not isinstance(raw, str):
            raise UsageError(argument, "must be a text in quotes", repr(raw), 'Use for example "4x4" for a grid.')
        text = os.path.expanduser(raw) if option.kind == "path" else raw
        return _read_text(option.kind, text, option.name, argument, base)
    check_value(option.name, raw, argument)
    return float(raw) if option.kind == "float" else raw


def _toml_params(raw: Any, argument: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise UsageError(argument, "must be a table", repr(raw), "Write [params] and KEY = VALUE lines below it.")
    for key, value in raw.items():
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(argument, "must hold texts, numbers, true or false", f"{key} = {value!r}",
                             "Write the value as a text in quotes.")  # fmt: skip
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in raw.items()}


# ---- merging and printing ----------------------------------------------------------------------------------------

_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(JobSpec) if f.default is not MISSING}


def _merge(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**values, **flags}
    code = values.get("code", _DEFAULTS["code"])
    kept = values.get("params", {}) if flags.get("code", code) == code else {}
    merged["params"] = {**kept, **flags.get("params", {})}
    return merged


def build(values: Mapping[str, Any], needs: Iterable[str] = ("a", "b", "out")) -> JobSpec:
    """The JobSpec of checked values. Raises UsageError for a missing file name, or one file in two places."""
    for name in needs:
        if not values.get(name):
            raise UsageError(flag(name), "is required", "nothing", f"Give {flag(name)} FILE, or {name} in a job file.")
    filled: dict[str, Any] = {"a": "", "b": "", "out": "", **values}
    filled.setdefault("report", default_report(filled["out"]))
    spec = JobSpec(**filled)
    spec.refuse_contradictions()
    return spec


def as_mapping(spec: JobSpec) -> dict[str, Any]:
    """The job as JSON- and TOML-ready values by key, in the order of the table; None where cmm chooses."""
    mapping: dict[str, Any] = {}
    for option in OPTIONS:
        value = getattr(spec, option.name)
        if option.kind == "injections":
            value = [str(injection) for injection in value]
        elif option.kind == "params":
            value = dict(value)
        elif option.kind == "grid" and value is not None:
            value = str(value)
        mapping[option.key] = value
    return mapping


def default_report(out: str) -> str:
    """Where the report goes when the user does not say: next to the output."""
    return split_member(out)[0] + ".report.json" if out else ""


def to_toml(spec: JobSpec) -> str:
    """The job as a job file that builds an equal spec. What cmm chooses stands as a comment."""
    lines, params = [], ""
    for key, value in as_mapping(spec).items():
        if key == "params":
            params = "".join(f"{toml_value(k)} = {toml_value(v)}\n" for k, v in value.items())
        elif value is None or value == "" or (key == "report" and value == default_report(spec.out)):
            lines.append(f"# {key} =")
        else:
            lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n" + (f"\n[params]\n{params}" if params else "")


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # JSON's escapes are TOML's, except that TOML wants DEL escaped too
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


def option_table() -> str:
    """The options as a Markdown table, for the documentation."""
    lines = ["| flag | key | meaning | default |", "|---|---|---|---|"]
    for option in OPTIONS:
        shown = f"{option.flag} {option.metavar}".strip().replace("|", "\\|")
        key = "[params]" if option.kind == "params" else option.key
        default = _DEFAULTS.get(option.name)
        said = f"`{default}`" if default not in (None, (), "") and option.kind not in ("params", "bool") else ""
        lines.append(f"| `{shown}` | `{key}` | {option.meaning.replace('|', chr(92) + '|')} | {said} |")
    return "\n".join(lines) + "\n"
