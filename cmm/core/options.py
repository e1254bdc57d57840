"""The options of a command: one table drives flags, keys of the job file, help, --show-config and the documentation.

A key is the flag without its dashes; `--param` fills the table [params]. Flags win over the job file; a flag that may
be repeated replaces the file's list. Relative paths are relative to the job file there, and to the current directory
on the command line. Everything is judged from text alone, so that every rank judges alike before MPI starts. Standard
library only.
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
from cmm.core.rules import WORKERS, Rule, read_float, read_int
from cmm.core.spec import Injection, flag, split_member

LARGEST_FILE = 1 << 20  # bytes; a job file is a page of text


@dataclass(frozen=True)
class Option:
    """One line of a table: field of the spec, how its value is written, and what it means."""

    name: str
    kind: str  # path, text, numbers, grid, int, float, bool, injections, params
    metavar: str
    meaning: str

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def key(self) -> str:
        """The key in a job file."""
        return self.name.replace("_", "-")


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing and exiting; options are not to be abbreviated."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        if stranger := re.match(r"unrecognized arguments: (\S+)", message):
            refuse_unknown(
                "command line",
                "an option",
                self.prog.removeprefix("python -m "),
                stranger[1].partition("=")[0],
                self._names(),
            )
        match = re.match(r"argument (\S+?)(?:/\S+)?: (.*)", message, re.DOTALL)
        argument, rule = (match[1], match[2]) if match else ("command line", message)
        absent = rule.startswith("expected") or "are required" in rule
        raise UsageError(argument, rule, "nothing" if absent else "something else", "See --help.")

    def _names(self) -> list[str]:
        """All options, those of commands too."""
        names: list[str] = []
        for action in self._actions:
            names += action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                names += [name for parser in action.choices.values() for name in parser._names()]
        return list(dict.fromkeys(names))


def refuse_unknown(argument: str, what: str, program: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise UsageError for a name that is not among the known ones, with the nearest of them or all."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."
    raise UsageError(argument, f"must be {what} of {program}", repr(name), remedy)


@dataclass(frozen=True)
class Given:
    """What a command line gave: what is to be done, values by field from the job file and from flags, --workers."""

    action: str
    file: Mapping[str, Any]
    flags: Mapping[str, Any]
    workers: int | None = None


class OptionTable:
    """The options of one command.

    Parameters
    ----------
    program : module to run, as "cmm.run"
    options, rules : the table, and the rule of every option (and of "workers")
    spec : the dataclass that the values are for; its defaults are the options'
    actions : what can be asked for instead of computing, by flag, and what it means
    description, epilog : of --help
    """

    def __init__(self, program: str, options: Sequence[Option], rules: Mapping[str, Rule], spec: type, *,
                 actions: Mapping[str, str], description: str, epilog: str) -> None:  # fmt: skip
        self.program, self.options, self.rules, self.actions = program, tuple(options), rules, actions
        self.description, self.epilog = description, epilog
        self.by_key = {option.key: option for option in options}
        self.defaults = {entry.name: entry.default for entry in fields(spec) if entry.default is not MISSING}
        self.flags = [*(option.flag for option in options),
                      *(f"--no-{option.key}" for option in options if option.kind == "bool"),
                      *(f"--{name}" for name in actions), "--workers"]  # fmt: skip

    # ---- the command line ------------------------------------------------------------------------------------

    def parser(self) -> Parser:
        """Its values stay text; they are read with the table."""
        parser = Parser(prog=self.program, add_help=False, description=self.description,
                        epilog=self.epilog, usage=f"python -m {self.program} [JOB.toml] [flags]")  # fmt: skip
        parser.add_argument("job", nargs="*", metavar="JOB.toml", help="a job file (TOML)")
        job = parser.add_argument_group("the job (every flag is also a key of the job file)")
        for option in self.options:
            meaning = option.meaning + (f" (default: {said})" if (said := self._default(option)) else "")
            if option.kind == "bool":
                job.add_argument(option.flag, dest=option.name, action=argparse.BooleanOptionalAction, help=meaning)
            else:
                action = "append" if option.kind in ("injections", "params") else "store"
                job.add_argument(option.flag, dest=option.name, action=action, metavar=option.metavar, help=meaning)
        other = parser.add_argument_group("instead of computing")
        for name, meaning in self.actions.items():
            names = ["-h", "--help"] if name == "help" else [f"--{name}"]
            other.add_argument(*names, action="store_true", help=meaning)
        other.add_argument("--workers", metavar="W", help="with --dry-run: plan for W workers")
        return parser

    def read(self, argv: Sequence[str]) -> Given:
        """Flags and the job file they name. Raises UsageError or InputMissingError."""
        if {"-h", "--help"} & set(argv):
            return Given("help", {}, {})
        given, unknown = self.parser().parse_known_args(list(argv))
        strangers = [text for text in unknown if text.startswith("-")]
        if strangers:
            refuse_unknown("command line", "a flag", self.program, strangers[0].partition("=")[0], self.flags)
        jobs = given.job + unknown  # argparse takes a positional that follows flags for an unknown one
        if len(jobs) > 1:
            raise UsageError("JOB.toml", "must be one job file", " ".join(jobs), "Start one job at a time.")
        action = next((name for name in self.actions if getattr(given, name.replace("-", "_"))), "run")
        workers = _workers(given.workers, action)
        if action in ("version", "list-codes"):
            return Given(action, {}, {})
        return Given(action, self.read_job(jobs[0]) if jobs else {}, self._from_flags(given), workers)

    def _from_flags(self, given: argparse.Namespace) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for option in self.options:
            raw = getattr(given, option.name)
            if raw is None:
                continue
            if option.kind == "params":
                values[option.name] = _read_pairs(raw)
            elif option.kind == "injections":
                values[option.name] = tuple(Injection.parse(text) for text in raw)
            else:
                values[option.name] = raw if option.kind == "bool" else self._from_text(option, raw, option.flag)
        return values

    def _from_text(self, option: Option, text: str, argument: str, base: str = "") -> Any:
        """A value from its text, checked. `base`: what relative paths are relative to."""
        value = _read_grid(text, argument) if option.kind == "grid" else _read_number(option.kind, text)
        self.rules[option.name].check(argument, value)
        return os.path.abspath(os.path.join(base, text)) if option.kind == "path" else value

    # ---- job files -------------------------------------------------------------------------------------------

    def read_job(self, path: str) -> dict[str, Any]:
        """The checked values of a job file, by field. Raises InputMissingError or UsageError."""
        base = os.path.dirname(os.path.abspath(path))
        values: dict[str, Any] = {}
        for key, raw in load_toml(path).items():
            if key not in self.by_key:
                refuse_unknown(path, "a key", self.program, key, self.by_key)
            option = self.by_key[key]
            values[option.name] = self._from_toml(option, raw, f"{key} in {path}", base)
        return values

    def _from_toml(self, option: Option, raw: Any, argument: str, base: str) -> Any:
        if option.kind == "params":
            return _toml_params(raw, argument)
        if option.kind == "injections":
            texts = raw if isinstance(raw, list) else [raw]
            if not all(isinstance(text, str) for text in texts):
                raise UsageError(argument, "must be a list of texts", repr(raw), 'Use for example ["freeze:2"].')
            return tuple(Injection.parse(text, argument) for text in texts)
        if option.kind in ("path", "grid"):
            if not isinstance(raw, str):
                example = "4x4" if option.kind == "grid" else "results/C.npy"
                raise UsageError(argument, "must be a text in quotes", repr(raw), f'Write it as in "{example}".')
            text = os.path.expanduser(raw) if option.kind == "path" else raw
            return self._from_text(option, text, argument, base)
        if option.kind == "numbers" and isinstance(raw, list):
            raw = ",".join(map(str, raw))
        self.rules[option.name].check(argument, raw)
        return float(raw) if option.kind == "float" else raw

    # ---- printing --------------------------------------------------------------------------------------------

    def _default(self, option: Option) -> str:
        value = self.defaults.get(option.name)
        absent = value is None or value is False or value in ((), "")
        return "" if absent or option.kind == "params" else str(value)

    def mapping(self, spec: Any) -> dict[str, Any]:
        """The job as JSON- and TOML-ready values by key, in the order of the table; None where cmm chooses."""
        mapping: dict[str, Any] = {}
        for option in self.options:
            value = getattr(spec, option.name)
            if option.kind == "injections":
                value = [str(injection) for injection in value]
            elif option.kind == "params":
                value = dict(value)
            elif option.kind == "grid" and value is not None:
                value = str(value)
            mapping[option.key] = value
        return mapping

    def to_toml(self, spec: Any) -> str:
        """The job as a job file that builds an equal spec. What cmm chooses stands as a comment."""
        lines, params = [], ""
        for key, value in self.mapping(spec).items():
            if key == "params":
                params = "".join(f"{toml_value(k)} = {toml_value(v)}\n" for k, v in value.items())
            elif value is None or value == "" or (key == "report" and value == default_report(spec.out)):
                lines.append(f"# {key} =")
            else:
                lines.append(f"{key} = {toml_value(value)}")
        return "\n".join(lines) + "\n" + (f"\n[params]\n{params}" if params else "")

    def markdown(self) -> str:
        """The options as a Markdown table, for the documentation."""
        lines = ["| flag | key | meaning | default |", "|---|---|---|---|"]
        for option in self.options:
            shown = f"{option.flag} {option.metavar}".strip().replace("|", "\\|")
            key = "[params]" if option.kind == "params" else option.key
            said = f"`{default}`" if (default := self._default(option)) else ""
            lines.append(f"| `{shown}` | `{key}` | {option.meaning.replace('|', chr(92) + '|')} | {said} |")
        return "\n".join(lines) + "\n"


def require(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise UsageError for a file that is not named."""
    for name in names:
        if not values.get(name):
            raise UsageError(flag(name), "is required", "nothing", f"Give {flag(name)} FILE, or {name} in a job file.")


def default_report(out: str) -> str:
    """Where the report goes when the user does not say: next to the output."""
    return split_member(out)[0] + ".report.json" if out else ""


def load_toml(path: str) -> dict[str, Any]:
    """A job file, not judged. Raises InputMissingError, or UsageError for what is no TOML or too large."""
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


def toml_value(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # JSON's escapes are TOML's, except that TOML wants DEL escaped too
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


def _workers(text: str | None, action: str) -> int | None:
    if text is None:
        return None
    value = _read_number("int", text)
    WORKERS.check("--workers", value)
    if action != "dry-run":
        raise UsageError("--workers", "goes with --dry-run only", text, "Start W + 1 ranks with mpirun -n instead.")
    return int(value)


def _read_number(kind: str, text: str) -> Any:
    """The number; any other text as it is, for the rule to refuse."""
    try:
        return read_int(text) if kind == "int" else read_float(text) if kind == "float" else text
    except ValueError:
        return text


def _read_pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", key):
        raise UsageError("--param", "must be KEY=VALUE", repr(text), "Use for example construction=systematic.")
    return key, value


def _read_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Raises UsageError for a key that is given twice."""
    found: dict[str, str] = {}
    for key, value in map(_read_pair, texts):
        if found.setdefault(key, value) != value:
            raise UsageError(f"--param {key}", "must be given once", f"{found[key]!r} and {value!r}", "Choose one.")
    return found


def _read_grid(text: str, argument: str) -> Grid:
    try:
        return Grid.parse(text)
    except UsageError as error:
        raise UsageError(argument, error.rule, error.value, error.remedy) from None


def _toml_params(raw: Any, argument: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise UsageError(argument, "must be a table", repr(raw), "Write [params] and KEY = VALUE lines below it.")
    for key, value in raw.items():
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError(argument, "must hold texts, numbers, true or false", f"{key} = {value!r}",
                             "Write the value as a text in quotes.")  # fmt: skip
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in raw.items()}
