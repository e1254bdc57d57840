"""The command line of the simulator: recovery, threshold, latency and design. Standard output is tables (Markdown).

Exit codes as everywhere: 0, 64 usage, 65 bad data, 73 cannot write, 75 stopped (with --csv: resumable).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cmm.core.errors import CmmError, ExitCode
from cmm.core.grid import Grid
from cmm.core.options import Parser
from cmm.simulate import design_cli, figures, latency_cli
from cmm.simulate.experiment import DECODERS
from cmm.simulate.options import experiments, read_count, read_processes
from cmm.simulate.statistics import Store
from cmm.simulate.sweep import sweep
from cmm.simulate.tables import recovery_table, threshold_table

EXAMPLES = """examples:
  python -m cmm.simulate recovery --code fr:construction=paper,outer=82x82 --grid 80x80 --tasks 10000 \\
      --decoder peeling+outer --decoder inactivation --alpha 0.26:0.36:11 --trials 20 --csv fr.csv --figure fr.png
  python -m cmm.simulate threshold --code fr:groups=sparse --grid 80x80 --tasks 10000 --arrival systematic:0.1
  python -m cmm.simulate latency --workers 1000 --model shifted-exponential:1 --model pareto:1.5
  python -m cmm.simulate design --grid 80x80 --tasks 10000 --alpha 0.1
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what `argv` (default: this process's) asks for; returns the exit code."""
    try:
        options = parser().parse_args(argv)
        command: Callable[[argparse.Namespace], None] = options.command
        command(options)
    except CmmError as error:
        print(f"cmm.simulate: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("cmm.simulate: stopped", file=sys.stderr)
        return int(ExitCode.STOPPED)
    except MemoryError as error:
        print(f"cmm.simulate: the memory does not suffice: {error}. Use a smaller grid, fewer tasks or one process.",
              file=sys.stderr)  # fmt: skip
        return int(ExitCode.USAGE)
    except BrokenPipeError:
        return int(ExitCode.CANNOT_WRITE)
    return int(ExitCode.COMPLETE)


def parser() -> Parser:
    """All commands and flags."""
    top = Parser(prog="python -m cmm.simulate", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
                 description="Codes without a cluster: recovery, thresholds, latency and degree design.")  # fmt: skip
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for kind, text in (("recovery", "failure probability, error and work at N results"),
                       ("threshold", "distribution of the smallest decodable N")):  # fmt: skip
        add_monte_carlo(commands.add_parser(kind, help=text), kind)
    latency_cli.add(commands.add_parser("latency", help="time to C under models of workers, with the real coordinator"))
    design_cli.add(commands.add_parser("design", help="groups or degree distribution with the least decoding work"))
    return top


def add_monte_carlo(p: argparse.ArgumentParser, kind: str) -> None:
    """Flags of recovery and threshold."""
    p.add_argument("--code", action="append", required=True, metavar="NAME[:KEY=VALUE,...]",
                   help="a code and its parameters; grid= and tasks= override the flags; repeat for more")  # fmt: skip
    p.add_argument("--grid", default="80x80", help="MxN or PxMxN (default 80x80)")
    p.add_argument("--tasks", default="10000", help="P (default 10000)")
    p.add_argument("--arrival", action="append", help="uniform (default), systematic[:LOSS], ranks:W, clustered:SIZE")
    p.add_argument("--decoder", action="append", choices=DECODERS, help="default: auto, the code's own")
    p.add_argument("--alpha", help="straggler fractions: A,B,… or FROM:TO:COUNT; N = P - alpha P "
                                   "(with --arrival systematic: the LOSS)")  # fmt: skip
    p.add_argument("--results", help="N itself: 7060,6480, K+6, or T (the recovery threshold)" if kind == "recovery"
                   else argparse.SUPPRESS)  # fmt: skip
    p.add_argument("--trials", default="100", help="of every point (default 100)")
    p.add_argument("--errors", action=argparse.BooleanOptionalAction, default=True,
                   help="decode scalar blocks and compare (not with peeling; default)")  # fmt: skip
    p.add_argument("--seed", default="0", help="of everything drawn (default 0)")
    p.add_argument("--csv", type=Path, help="append results here, and go on from what is there")
    p.add_argument("--figure", type=Path, help="draw failures and errors (recovery) or N (threshold) to this file")
    p.add_argument("--processes", help="default: all cores")
    p.add_argument("--batch", default="5", help="trials between two rows (default 5)")
    p.add_argument("--progress", action=argparse.BooleanOptionalAction, default=True)
    p.set_defaults(command=lambda options: monte_carlo(kind, options))


def monte_carlo(kind: str, options: argparse.Namespace) -> None:
    """Run a sweep and print its table."""
    options.arrival = options.arrival or ["uniform"]
    options.decoder = options.decoder or ["auto"]
    Grid.parse(options.grid)
    figures.check_path(options.figure)
    chosen = experiments(kind, options)
    trials = read_count("--trials", options.trials)
    batch = read_count("--batch", options.batch)
    processes = read_processes(options.processes)
    store = sweep(chosen, trials, Store(options.csv), processes, options.progress, batch)
    print((recovery_table if kind == "recovery" else threshold_table)(store, chosen))
    if options.figure is not None:
        draw = figures.recovery_figure if kind == "recovery" else figures.threshold_figure
        draw(store, chosen, options.figure)
