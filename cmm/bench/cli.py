"""Flags of `python -m cmm.bench`, and what its commands print."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cmm.bench.points import (
    Point,
    Run,
    Wanted,
    judge_row,
    points,
    read_array,
    read_counts,
    read_sizes,
    share,
    split_injections,
    split_list,
    split_schemes,
)
from cmm.bench.store import Store
from cmm.core.errors import CmmError, DataError, ExitCode, Refusal, UsageError
from cmm.core.options import Parser
from cmm.matrices.files import check_output, write_atomic
from cmm.runtime import launch
from cmm.simulate.figures import check_path, new_figure
from cmm.simulate.options import read_count, read_number
from cmm.simulate.profile import MachineProfile

# Bounds on what a typing error can start: of a range of ranks, runs of each case, simulated workers, a side.
MOST_RANKS, MOST_RUNS, MOST_WORKERS, MOST_SIDE = 10**4, 10**4, 10**6, 10**6

EXAMPLES = """\
examples:
  python -m cmm.bench sweep --ranks 2,4,6 --size 2048 --code fr,uncoded,replication \\
      --inject none,slow:1:5,freeze:1 --repeat 5 --out results.csv --plot results.png
  python -m cmm.bench sweep --ranks 1-8 --size 1024 --scaling strong,weak --out scaling.csv
  python -m cmm.bench profile --out profile.json
  python -m cmm.bench plot scaling.csv --profile profile.json --continue 1000 --figure scaling.png
  python -m cmm.bench overheads
Exit codes: 0 every run gave a verified C, 3 one did not (the same command runs it again), 64 usage, 65 bad data, 66 no
such input, 70 no messages could be measured, 73 cannot write, 75 stopped: the same command goes on from --out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what `argv` (default: this process's) asks for; returns the exit code."""
    try:
        options = parser().parse_args(argv)
        command: Callable[[argparse.Namespace], ExitCode] = options.command
        return int(command(options))
    except CmmError as error:
        print(f"cmm.bench: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("cmm.bench: stopped; the same command goes on from here", file=sys.stderr)
        return int(ExitCode.STOPPED)
    except BrokenPipeError:
        launch.forget_stdout()
        return int(ExitCode.CANNOT_WRITE)


def parser() -> Parser:
    """All commands and flags."""
    top = Parser(prog="python -m cmm.bench", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
                 description="Benchmarks on the machine at hand: real jobs, measured by their reports.")  # fmt: skip
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    _add_sweep(commands.add_parser("sweep", help="real jobs over ranks, sizes, codes and stragglers"))
    _add_profile(commands.add_parser("profile", help="products, copies, messages and disk of this machine"))
    _add_overheads(commands.add_parser("overheads", help="encode, send, wait, decode, verify against their formulas"))
    _add_plot(commands.add_parser("plot", help="figures of the CSV files of sweeps"))
    return top


def _common(p: argparse.ArgumentParser) -> None:
    p.add_argument("--launcher", metavar="WORDS", help="for example 'mpirun --bind-to none'; -n RANKS is added "
                   "(default: the mpirun of this environment)")  # fmt: skip
    p.add_argument("--scratch", type=Path, metavar="DIR", help="for matrices; rank 0 has to see it (default: TMPDIR)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def typed(names: Mapping[str, str]) -> Iterator[None]:
    """Refusals of what has flags of other names, in the names that the user typed."""
    try:
        yield
    except Refusal as error:
        raise type(error)(names.get(error.argument, error.argument), error.rule, error.value, error.remedy) from None


def check_figure(path: Path | None, flag: str) -> None:
    """Judge before a long run whether a figure can be drawn. Raises UsageError."""
    if path is None:
        return
    check_path(path, flag)
    with typed({"--figure": flag}):
        new_figure(path, 1)


def check_out(path: Path | None) -> None:
    """Judge before a long run whether a file can be written. Raises OutputError."""
    if path is not None:
        check_output(path, overwrite=True, argument="--out", matrix=False)


def read_store(path: Path | None, argument: str = "--out", update: bool = True) -> Store[Run]:
    """The rows of a CSV file; one that did not pass is not done."""
    return Store(Run, lambda run: run.key, path, done=lambda run: run.passed, argument=argument, update=update,
                 signed=("load", "residual"), judge=judge_row)  # fmt: skip


# ---- sweep -------------------------------------------------------------------------------------------------------


def _add_sweep(p: argparse.ArgumentParser) -> None:
    p.add_argument("--ranks", required=True, metavar="LIST", help="1,2,4 or 1-8; one is the master")
    p.add_argument("--size", required=True, metavar="LIST", help="N or SxRxT: A is S x R, B is S x T; with --scaling "
                   "weak: of one worker")  # fmt: skip
    p.add_argument("--code", default="fr", metavar="LIST", help="NAME[/pull|/oneshot][:KEY=VALUE,...] (default fr)")
    p.add_argument("--inject", action="append", metavar="LIST", help="none, or injections as of cmm.run; several at "
                   "once with +; repeat for more (default none)")  # fmt: skip
    p.add_argument("--grid", default="auto", metavar="LIST", help="auto or MxN")
    p.add_argument("--redundancy", default="auto", metavar="LIST", help="auto, or tasks per block P/K")
    p.add_argument("--scaling", default="strong", metavar="LIST", help="strong: the size is given (default); weak: it "
                   "grows with the workers, as many products each")  # fmt: skip
    p.add_argument("--repeat", default="5", help="runs of each (default 5)")
    p.add_argument("--limit", default="600", help="seconds a run may take (default 600)")
    p.add_argument("--out", type=Path, required=True, metavar="FILE.csv", help="a row a run; what is there is not "
                   "run again unless it failed. Medians and the environment go beside it, as FILE.json")  # fmt: skip
    p.add_argument("--array", metavar="I/N", help="only every N-th case, from the I-th (from 0), into FILE.I-of-N.csv")
    p.add_argument("--plot", type=Path, metavar="FIGURE", help="draw what was measured")
    p.add_argument("--json", action="store_true", help="print JSON in place of a table")
    _common(p)
    p.set_defaults(command=sweep_command)


def wanted_points(options: argparse.Namespace) -> list[Point]:
    """Every case of the command line. Raises UsageError."""
    scalings = split_list(options.scaling, "$^")
    if not set(scalings) <= {"strong", "weak"}:
        raise UsageError("--scaling", "must be strong or weak", repr(options.scaling), "Choose one of them, or both.")
    injections = [part for text in options.inject or ["none"] for part in split_injections(text)]
    schemes, grids = split_schemes(options.code), split_list(options.grid, "$^")
    redundancies = split_list(options.redundancy, "$^")
    lists = {"--scaling": scalings, "--inject": injections, "--code": schemes, "--grid": grids,
             "--redundancy": redundancies}  # fmt: skip
    for flag in (flag for flag, found in lists.items() if not found):
        raise UsageError(flag, "must name one at least", "nothing", f"Leave {flag} out for the default.")
    with typed({"--scheme": "--code"}):
        return points(Wanted(read_ranks(options.ranks), read_sizes(options.size), schemes, injections, grids,
                             redundancies, scalings))  # fmt: skip


def read_ranks(text: str) -> list[int]:
    """Whole numbers and ranges, "1,2,4" or "1-8". Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        ends = [read_counts("--ranks", end)[0] for end in part.split("-")]
        if len(ends) > 2 or ends[0] > ends[-1] or ends[-1] - ends[0] > MOST_RANKS:
            raise UsageError("--ranks", f"must be numbers, or ranges that rise by at most {MOST_RANKS}", repr(text),
                             "For example 2,4,6 or 1-8.")  # fmt: skip
        found += range(ends[0], ends[-1] + 1)
    return list(dict.fromkeys(found))


def sweep_command(options: argparse.Namespace) -> ExitCode:
    """Run what is missing, print the table, write the summary."""
    from cmm.bench.measure import Bench, machine, scratch, sweep
    from cmm.bench.statistics import failures, summary, sweep_table

    check_figure(options.plot, "--plot")
    chosen = list(share(wanted_points(options), options.array))
    repeats = read_count("--repeat", options.repeat, MOST_RUNS)
    limit = read_number("--limit", options.limit, 1)
    out = array_path(options.out, options.array)
    check_out(out)
    if out.suffix != ".csv":
        raise UsageError("--out", "must end in .csv: the medians go beside it, as .json", str(out), "Use results.csv.")
    store = read_store(out)
    environment = machine()
    with scratch(options.scratch) as folder:
        bench = Bench(folder, options.launcher, limit)
        runs = sweep(bench, chosen, repeats, store, _say)
    environment |= {key: bench.environment[key] for key in ("mpi", "blas", "threads") if key in bench.environment}
    table = {"version": 1, "command": " ".join(sys.argv[1:]), "environment": environment, "points": summary(runs)}
    text = json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(out.with_suffix(".json"), text, argument="--out")
    print(text.rstrip() if options.json else sweep_table(runs), flush=True)
    if options.plot is not None:
        from cmm.bench.figures import draw

        try:
            with typed({"--figure": "--plot"}):
                draw(runs, options.plot, None, 0)
        except DataError as error:  # the rows are there; what is wrong with them the table says
            _say(f"cmm.bench: nothing to draw: {error.rule}; got {error.value}")
    return ExitCode.UNVERIFIED if failures(runs) else ExitCode.COMPLETE


def array_path(out: Path, array: str | None) -> Path:
    """A file of its own for each member: they may run at the same time."""
    if array is None:
        return out
    member, count = read_array(array)
    return out.with_name(f"{out.stem}.{member}-of-{count}{out.suffix}")


# ---- profile -----------------------------------------------------------------------------------------------------


def _add_profile(p: argparse.ArgumentParser) -> None:
    p.add_argument("--size", default="1024", help="of the product (default 1024)")
    p.add_argument("--out", type=Path, metavar="FILE.json", help="for --profile of cmm.simulate and of cmm.bench plot")
    p.add_argument("--name", default="", help="for tables (default: the name of the host)")
    p.add_argument("--json", action="store_true", help="print JSON in place of a table")
    _common(p)
    p.set_defaults(command=profile_command)


def profile_command(options: argparse.Namespace) -> ExitCode:
    """Measure, print, write."""
    import socket

    from cmm.bench.machine import measure, profile_lines, to_json
    from cmm.bench.measure import scratch

    size = int(read_number("--size", options.size, 16, whole=True, most=MOST_SIDE))
    check_out(options.out)
    with scratch(options.scratch) as folder:
        profile, more = measure(folder, options.launcher, size, options.name or socket.gethostname())
    if options.out is not None:
        write_atomic(options.out, to_json(profile, more), argument="--out")
    print(to_json(profile, more).rstrip() if options.json else "\n".join(profile_lines(profile, more)), flush=True)
    return ExitCode.COMPLETE


# ---- overheads ---------------------------------------------------------------------------------------------------


def _add_overheads(p: argparse.ArgumentParser) -> None:
    p.add_argument("--size", default="1024", help="of s, r and t where they are not varied (default 1024)")
    p.add_argument("--repeat", default="5", help="runs of each (default 5)")
    p.add_argument("--out", type=Path, metavar="FILE.csv", help="rows, as those of sweep; goes on from what is there")
    p.add_argument("--json", action="store_true", help="print JSON in place of a table")
    _common(p)
    p.set_defaults(command=overheads_command)


def overheads_command(options: argparse.Namespace) -> ExitCode:
    """Run, fit, print."""
    from cmm.bench.measure import Bench, scratch, sweep
    from cmm.bench.overheads import cases, fits, overheads_table
    from cmm.bench.statistics import failures, finite

    size = int(read_number("--size", options.size, 64, whole=True, most=MOST_SIDE))
    repeats = read_count("--repeat", options.repeat, MOST_RUNS)
    check_out(options.out)
    store = read_store(options.out)
    chosen = cases(size)
    wanted = list(dict.fromkeys(case.point for case in chosen))
    with scratch(options.scratch) as folder:
        runs = sweep(Bench(folder, options.launcher), wanted, repeats, store, _say)
    found = fits(chosen, runs)
    if options.json:
        print(json.dumps(finite([fit.to_json() for fit in found]), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        print(overheads_table(found), flush=True)
    return ExitCode.UNVERIFIED if failures(runs) else ExitCode.COMPLETE


# ---- plot --------------------------------------------------------------------------------------------------------


def _add_plot(p: argparse.ArgumentParser) -> None:
    p.add_argument("csv", nargs="+", type=Path, metavar="FILE.csv", help="of sweeps")
    p.add_argument("--figure", type=Path, required=True, help=".png, .pdf or .svg")
    p.add_argument("--profile", default=None, help="of the machine (a JSON file of cmm.bench profile, or default): "
                   "simulate the curves of strong and weak scaling too")  # fmt: skip
    p.add_argument("--continue", dest="most", metavar="W", help="with --profile: up to W workers (default 1000)")
    p.set_defaults(command=plot_command)


def plot_command(options: argparse.Namespace) -> ExitCode:
    """Draw."""
    from cmm.bench.figures import draw

    check_figure(options.figure, "--figure")
    profile = None if options.profile is None else MachineProfile.named(options.profile)
    if profile is None and options.most is not None:
        raise UsageError("--continue", "goes with --profile", options.most, "Name the machine's profile, or default.")
    most = read_count("--continue", options.most or "1000", MOST_WORKERS)
    runs: dict[object, Run] = {}
    for path in options.csv:
        found = read_store(path, "FILE.csv", update=False).rows
        runs |= {key: run for key, run in found.items() if run.passed}
    draw(list(runs.values()), options.figure, profile, most)
    return ExitCode.COMPLETE
