"""What the user types after `python -m cmm.slurm`, judged from text alone. Standard library only.

Every value that ends in the script is held against a rule here: what stands in an #SBATCH line has no character that
could end it or start another option, and everything else is quoted for the shell by cmm.slurm.script.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from cmm.core.errors import UsageError
from cmm.core.jobfile import TABLE, parse
from cmm.core.options import Option, Parser
from cmm.core.spec import JobSpec, flag, split_member
from cmm.slurm.rules import LAUNCHERS, MOST_RANKS, MOST_TASKS, RULES, WARN, instead, refuse_odd_time, time_limit


@dataclass(frozen=True)
class Sweep:
    """An array of jobs over the values of one key: element i computes `values[i]` and writes `outs[i]`."""

    option: Option
    values: tuple[str, ...]
    outs: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """Everything that the script depends on. Numbers are checked, texts are as RULES wants them.

    job : path of the job file; empty when the job is given by flags alone
    flags : for cmm.run, after a --
    specs : the job, or the job of each element of the array
    memory : --mem of a node with rank 0, and of one without, in MB (2**20 bytes); memory_note says how they came about
    folder : where the job runs; empty: where it is submitted
    origin : the command that asked for it, for the script's head
    """

    job: str
    flags: tuple[str, ...]
    specs: tuple[JobSpec, ...]
    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    launcher: str = "mpirun"
    name: str = "cmm"
    time: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    sbatch: tuple[str, ...] = ()
    mem: str = ""
    memory: tuple[int, int] = (0, 0)
    memory_note: str = ""
    modules: tuple[str, ...] = ()
    venv: str = ""
    checkpoint: str = ""
    requeue: bool = False
    warn: int = WARN
    array: Sweep | None = None
    master_apart: bool = False
    log: str = ""
    folder: str = ""
    root: bool = False
    origin: str = ""

    @property
    def ranks(self) -> int:
        """The world's size: with rank 0 apart it has a node of its own."""
        return 1 + (self.nodes - 1) * self.tasks_per_node if self.master_apart else self.nodes * self.tasks_per_node


@dataclass(frozen=True)
class Command:
    """What is to be done with the script: printed, written to `script`, submitted, waited for."""

    given: argparse.Namespace
    flags: tuple[str, ...]
    script: str
    submit: bool
    wait: bool


# ---- the command line --------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cmm.slurm", add_help=False, allow_abbrev=False,
                    usage="python -m cmm.slurm [JOB.toml] --nodes N --tasks-per-node N [options] [-- flags of cmm.run]",
                    description="Write the Slurm batch script of a job. Nothing is submitted without --submit.",
                    epilog="Exit codes: 0 done; with --wait, the job's own (docs/cluster.md), 128 + the signal that "
                           "ended it, or 1 when Slurm ended it without one; 130 when --wait was interrupted; 64 usage, "
                           "66 no such input, 73 cannot write.")  # fmt: skip
    parser.add_argument("job", nargs="?", metavar="JOB.toml", help="a job file of cmm.run")
    size = parser.add_argument_group("size")
    size.add_argument("--nodes", metavar="N", help="nodes")
    size.add_argument("--tasks-per-node", metavar="N", help="ranks on each; rank 0 of the whole job is the master")
    size.add_argument("--cpus-per-task", metavar="N", help="cores and BLAS threads of a rank (default: the job's)")
    size.add_argument("--mem", metavar="SIZE", help="memory per node (default: computed from the plan of the job); "
                      "with --master-apart also SIZE,SIZE: of rank 0's node, of the others")  # fmt: skip
    size.add_argument("--master-apart", action="store_true", help="a heterogeneous job: rank 0 on a node of its own, "
                      "with the memory it needs, workers on the others; with srun launchers")  # fmt: skip
    site = parser.add_argument_group("site")
    site.add_argument("--time", metavar="LIMIT", help="time limit")
    for name in ("partition", "account", "qos", "constraint"):
        site.add_argument(f"--{name}", metavar=name.upper(), help="as sbatch has it")
    site.add_argument("--sbatch", metavar="OPTION", action="append", help="another option of sbatch; may be repeated")
    site.add_argument("--module", metavar="NAME", action="append", help="module to load; may be repeated")
    site.add_argument("--venv", metavar="PATH", help="virtual environment (default: the one this runs in)")
    site.add_argument("--launcher", metavar="|".join(LAUNCHERS), help="how the ranks start (default: mpirun)")
    site.add_argument("--name", metavar="NAME", help="of the job (default: of the job file)")
    site.add_argument("--log", metavar="PATTERN", help="what sbatch calls --output (default: %%x-%%j.out)")
    more = parser.add_argument_group("more than one run")
    more.add_argument("--checkpoint", metavar="DIR", help="keep results there, and go on from what is there")
    more.add_argument("--requeue", action="store_true", help="pre-emptible: before its time limit, or when preempted, "
                      "the job saves its results, stops, and is queued again; needs --checkpoint")  # fmt: skip
    more.add_argument("--warn", metavar="SECONDS", help="with --requeue: how long before the limit it stops (120)")
    more.add_argument("--array", metavar="KEY=V1,V2", help="an array of jobs, one for each value of a key of the job "
                      "file; separate values that contain commas by ;")  # fmt: skip
    then = parser.add_argument_group("the script")
    then.add_argument("-o", metavar="FILE", help="write it there (default: print it)")
    then.add_argument("--submit", action="store_true", help="submit it")
    then.add_argument("--wait", action="store_true", help="with --submit: follow the job and exit with its exit code")
    then.add_argument("-h", "--help", action="store_true", help="print this help")
    return parser


def read(argv: Sequence[str]) -> Command | None:
    """The command line; None for --help. Raises UsageError."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    own, flags = joined(argv[:cut]), tuple(argv[cut + 1 :])
    if {"-h", "--help"} & set(own):
        return None
    parser = make_parser()
    given, unknown = parser.parse_known_args(own)
    if unknown:
        _refuse_unknown(unknown[0], parser)
    for name, rule in RULES.items():
        value = getattr(given, name)
        for text in value if isinstance(value, list) else [] if value is None else [value]:
            rule.check("-o" if name == "o" else flag(name), text)
    for text in [*flags, given.job or "", given.array or ""]:
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise UsageError("command line", "must have no control characters", repr(text), "Use a job file for it.")
    for text in given.sbatch or ():
        remedy = instead(text[2:].partition("=")[0])
        if remedy:
            raise UsageError("--sbatch", "must be an option that cmm.slurm does not write itself", repr(text), remedy)
    _check_together(given)
    _check_flags(given, flags)
    return Command(given, flags, given.o or "", given.submit, given.wait)


def joined(words: Sequence[str]) -> list[str]:
    """`--sbatch --exclusive` as `--sbatch=--exclusive`: argparse takes no value that begins with dashes."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == "--sbatch" and word.startswith("--"):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _refuse_unknown(text: str, parser: argparse.ArgumentParser) -> NoReturn:
    name = text.partition("=")[0]
    known = [names for action in parser._actions for names in action.option_strings]
    if not name.startswith("-"):
        raise UsageError("JOB.toml", "must be one job file", text, "Flags of cmm.run go after a --.")
    near = get_close_matches(name, known, n=1)
    if name in {option.flag for option in TABLE.by_key.values()}:
        remedy = f"It is a flag of cmm.run: write it after a --, as in -- {name} ..."
    elif instead(name.removeprefix("--")):
        remedy = instead(name.removeprefix("--"))
    else:
        remedy = (f"Did you mean {near[0]}? " if near else "") + f"Valid: {', '.join(known)}."
    raise UsageError("command line", "must be an option of cmm.slurm", repr(name), remedy)


def _check_together(given: argparse.Namespace) -> None:
    for name in ("nodes", "tasks_per_node"):
        if getattr(given, name) is None:
            raise UsageError(flag(name), "is required", "nothing", f"Give {flag(name)} N.")
    if given.launcher is not None and given.launcher not in LAUNCHERS:
        raise UsageError("--launcher", f"must be one of {', '.join(LAUNCHERS)}", repr(given.launcher),
                         "Use the one of the MPI that mpi4py loads (python -m cmm.doctor).")  # fmt: skip
    if given.time:
        refuse_odd_time(given.time)
    if given.wait and not given.submit:
        raise UsageError("--wait", "goes with --submit", "--wait alone", "Add --submit.")
    if given.requeue and not given.checkpoint:
        raise UsageError("--requeue", "needs --checkpoint DIR", "--requeue alone", "Name a folder that all nodes see.")
    if given.warn and not given.requeue:
        raise UsageError("--warn", "goes with --requeue", given.warn, "Add --requeue and --checkpoint DIR.")
    if given.time and not time_limit(given.time):
        raise UsageError("--time", "must be more than nothing (for Slurm, 0 is no limit at all)", repr(given.time),
                         "Use for example 1:00:00, or leave it out for the limit of the partition.")  # fmt: skip
    warn = int(given.warn or WARN)
    if given.requeue and given.time and time_limit(given.time) <= warn:
        raise UsageError("--time", f"must be longer than --warn, {warn} s, or every run is stopped as it starts",
                         repr(given.time), "Use a longer --time or a shorter --warn.")  # fmt: skip
    if given.mem and "," in given.mem and not given.master_apart:
        raise UsageError("--mem", "must be one amount without --master-apart", given.mem, "All nodes get the same.")
    if given.master_apart:
        _check_apart(given)


def _check_flags(given: argparse.Namespace, flags: Sequence[str]) -> None:
    """Refuse flags of cmm.run that the script sets itself."""
    key = (given.array or "").partition("=")[0]
    taken = {"--checkpoint": given.checkpoint and "--checkpoint", "--threads": given.cpus_per_task
             and "--cpus-per-task", "--report": given.array and "--array", "--no-resume": given.checkpoint
             and "--checkpoint"}  # fmt: skip
    if key in TABLE.by_key and key != "out":
        taken |= {TABLE.by_key[key].flag: "--array", f"--no-{key}": "--array"}
    for text in flags:
        by = taken.get(text.partition("=")[0])
        if by:
            raise UsageError("--", f"must not set again what {by} sets", repr(text), f"Leave out either it or {by}.")


def _check_apart(given: argparse.Namespace) -> None:
    if not (given.launcher or "").startswith("srun"):
        raise UsageError("--master-apart", "needs --launcher srun-pmi2 or srun-pmix: mpirun and mpiexec see only the "
                         "first part of a heterogeneous job", given.launcher or "mpirun",
                         "With MPICH use srun-pmi2.")  # fmt: skip
    if int(given.nodes) < 2:
        raise UsageError("--master-apart", "needs two nodes at least", given.nodes, "Use --nodes 2.")
    if given.array or given.requeue:
        raise UsageError("--master-apart", "does not go with --array or --requeue: Slurm has no arrays of "
                         "heterogeneous jobs, and requeueing them was not tried", "both", "Leave one out.")  # fmt: skip


# ---- the request -------------------------------------------------------------------------------------------------


def request(command: Command, *, folder: str, venv: str, root: bool) -> Request:
    """The request without its memory. Reads the job file. Raises UsageError or InputMissingError.

    folder : where the job is to run
    venv : the environment when --venv names none; empty: none
    root : whether root will run it
    """
    given = command.given
    if int(given.nodes) * int(given.tasks_per_node) > MOST_RANKS:
        raise UsageError("--nodes, --tasks-per-node", f"must make at most {MOST_RANKS} ranks", f"{given.nodes} times "
                         f"{given.tasks_per_node}", "Use fewer ranks with more threads (--cpus-per-task).")  # fmt: skip
    words = [*([given.job] if given.job else []), *command.flags]
    first = _spec(words)
    sweep = read_sweep(given.array, first.out, words) if given.array else None
    specs = tuple(_spec([*words, *element(sweep, at)]) for at in range(len(sweep.values))) if sweep else (first,)
    time, partition, account, qos, constraint, mem, log = (
        getattr(given, name) or "" for name in ("time", "partition", "account", "qos", "constraint", "mem", "log")
    )
    checkpoint = given.checkpoint or first.checkpoint or ""
    return Request(
        job=os.path.abspath(given.job) if given.job else "", flags=command.flags, specs=specs,
        nodes=int(given.nodes), tasks_per_node=int(given.tasks_per_node),
        cpus_per_task=int(given.cpus_per_task or first.threads), launcher=given.launcher or "mpirun",
        name=given.name or _name(given.job), sbatch=tuple(given.sbatch or ()), modules=tuple(given.module or ()),
        venv=_venv(given.venv) if given.venv else venv,
        checkpoint=os.path.abspath(checkpoint) if checkpoint else "", requeue=given.requeue,
        warn=int(given.warn or WARN), array=sweep, master_apart=given.master_apart, folder=folder, root=root,
        origin=_origin(given, command), time=time, partition=partition, account=account, qos=qos,
        constraint=constraint, mem=mem, log=log,
    )  # fmt: skip


def _spec(words: Sequence[str]) -> JobSpec:
    command = parse(words)
    if command.action != "run" or command.spec is None:
        raise UsageError("--", "must be followed by flags of a job", f"--{command.action}", "Leave it out.")
    return command.spec


def _venv(path: str) -> str:
    """Absolute; below ~ it stays so, since home can be elsewhere on the nodes."""
    return path if path.startswith("~/") else os.path.abspath(path)


def _name(job: str | None) -> str:
    stem = os.path.splitext(os.path.basename(job or "cmm"))[0]
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", stem).lstrip("-.") or "cmm"


def _origin(given: argparse.Namespace, command: Command) -> str:
    """The command line again, in one line, in the order of --help."""
    words = ["python", "-m", "cmm.slurm", *([given.job] if given.job else [])]
    for name, value in vars(given).items():
        if name not in ("job", "o", "submit", "wait", "help") and value:
            for text in value if isinstance(value, list) else [value]:
                words += [f"--sbatch={text}"] if name == "sbatch" else [flag(name), *([] if value is True else [text])]
    line = shlex.join([*words, *(["--", *command.flags] if command.flags else [])])
    return re.sub(r"[\x00-\x1f\x7f]", "?", line)


def read_sweep(text: str, out: str, words: Sequence[str]) -> Sweep:
    """KEY=V1,V2: the key, the values, and an output file for each. Raises UsageError.

    The values themselves are judged with the job that each of them makes.
    """
    key, equals, rest = text.partition("=")
    if not equals or key not in TABLE.by_key or key in ("report", "overwrite", "timeline"):
        keys = [name for name in TABLE.by_key if name not in ("report", "overwrite", "timeline")]
        near = get_close_matches(key, keys, n=1)
        raise UsageError("--array", "must be KEY=V1,V2 with a key of the job file", repr(text),
                         (f"Did you mean {near[0]}? " if near else "") + f"Keys: {', '.join(keys)}.")  # fmt: skip
    values = tuple(rest.split(";" if ";" in rest else ","))
    if not all(values) or len(set(values)) < len(values) or len(values) > MOST_TASKS:
        raise UsageError("--array", f"must have 1 to {MOST_TASKS} different values, none of them empty", repr(text),
                         "Use for example seed=1,2,3.")  # fmt: skip
    outs = tuple(os.path.abspath(value) for value in values) if key == "out" else output_names(out, key, values)
    return Sweep(TABLE.by_key[key], values, outs)


def output_names(out: str, key: str, values: Sequence[str]) -> tuple[str, ...]:
    """C.npy -> C.seed-7.npy, ...; values that look alike as names get their number too."""
    path, _ = split_member(out)
    tail, (stem, ending) = out[len(path) :], os.path.splitext(path)
    shown = [re.sub(r"[^A-Za-z0-9.+-]+", "-", value) for value in values]
    if len(set(shown)) < len(shown):
        shown = [f"{text}-{at}" for at, text in enumerate(shown)]
    return tuple(f"{stem}.{key}-{text}{ending}{tail}" for text in shown)


def element(sweep: Sweep, at: int) -> list[str]:
    """The flags of cmm.run for one element."""
    own = [] if sweep.option.name == "out" else [f"{sweep.option.flag}={sweep.values[at]}"]
    return [*own, f"--out={sweep.outs[at]}"]
