"""Systems × scenarios in one run, side by side.

    python -m benchmarks.rivals --size 4096 --workers 4 --repeat 3 --out rivals.csv
    python -m benchmarks.rivals --scenario two-frozen --workers 8
    python -m benchmarks.rivals --grid 4x4,8x8 --system fr,pool+copies+abort

Rows go to --out and are not run again when they are there. Systems that are not installed are left out, with the
reason. docs/benchmarks.md says how to install the rivals and what is measured.

Exit codes: 0 done (a system without C is a result), 64 usage, 65 bad data, 66 no such input, 73 cannot write,
75 stopped: the same command goes on from --out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.rivals.harness import Problem, Result, run_once
from benchmarks.rivals.scenarios import SCENARIOS
from benchmarks.rivals.systems import SYSTEMS
from benchmarks.rivals.table import rivals_table
from cmm.bench.measure import machine, scratch
from cmm.bench.points import split_list
from cmm.bench.statistics import finite
from cmm.bench.store import Store
from cmm.core.errors import CmmError, ExitCode, UsageError
from cmm.core.grid import Grid, Partition
from cmm.core.options import Parser
from cmm.matrices.files import check_output
from cmm.simulate.options import read_count, read_number

MOST = 10**4  # workers, runs of each: a bound on what a typing error can start


def main() -> int:
    """Run what is missing and print the table."""
    try:
        return rivals(arguments())
    except CmmError as error:
        print(f"benchmarks.rivals: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("benchmarks.rivals: stopped; the same command goes on from here", file=sys.stderr)
        return int(ExitCode.STOPPED)


def arguments() -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.rivals", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--size", default="4096", help="A, B and C are N x N (default 4096)")
    parser.add_argument("--workers", default="4", help="(default 4)")
    parser.add_argument("--grid", default="4x4", metavar="LIST", help="blocks of C (default 4x4)")
    parser.add_argument("--system", default=",".join(SYSTEMS), metavar="LIST", help=", ".join(SYSTEMS))
    parser.add_argument("--scenario", default=",".join(name for name in SCENARIOS if name != "two-frozen"),
                        metavar="LIST", help=", ".join(f"{s.name}: {s.text}" for s in SCENARIOS.values()))  # fmt: skip
    parser.add_argument("--repeat", default="3", help="runs of each (default 3)")
    parser.add_argument("--limit", default="60", help="seconds a run may take (default 60)")
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    parser.add_argument("--scratch", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    return parser.parse_args()


def chosen(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """Names from a list. Raises UsageError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise UsageError(flag, f"must be some of {', '.join(known)}", repr(text), "Correct the names.")
    return names


def grids_for(text: str, size: int) -> list[str]:
    """Grids from a list, each with a row and a column of C at least in every block. Raises UsageError."""
    grids = [Grid.parse(part) for part in split_list(text, "$^")]
    for grid in grids:
        Partition(grid, size, size, size)
        if grid.p > 1:
            raise UsageError("--grid", "must be MxN: the pools cut C only", str(grid), "Use for example 4x4.")
    if not grids:
        raise UsageError("--grid", "must name one at least", repr(text), "Use for example 4x4,8x8.")
    return [str(grid) for grid in grids]


def check_out(path: Path | None) -> None:
    """Judge before the first run whether the rows can be written. Raises UsageError or OutputError."""
    if path is None:
        return
    if path.suffix != ".csv":
        raise UsageError("--out", "must end in .csv: the JSON goes beside it", str(path), "Use rivals.csv, say.")
    check_output(path, overwrite=True, argument="--out", matrix=False)


def rivals(options: argparse.Namespace) -> int:
    size, workers = read_count("--size", options.size), read_count("--workers", options.workers, MOST)
    repeats = read_count("--repeat", options.repeat, MOST)
    limit = read_number("--limit", options.limit, 1)
    grids = grids_for(options.grid, size)
    check_out(options.out)
    systems = [SYSTEMS[name] for name in chosen("--system", options.system, SYSTEMS)]
    scenarios = [SCENARIOS[name] for name in chosen("--scenario", options.scenario, SCENARIOS)]
    absent = {system.name: reason for system in systems if (reason := system.missing())}
    for name, reason in absent.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    store: Store[Result] = Store(
        Result, lambda result: result.key, options.out, signed=("code", "error", "to_c", "to_exit")
    )
    environment = machine()
    with scratch(options.scratch) as folder:
        problem = Problem(folder, size)
        for repeat in range(repeats):  # round by round: a machine that drifts does so under all alike
            for scenario in scenarios:
                for number, grid in enumerate(grids):
                    for system in systems:
                        K = Grid.parse(grid).K if system.tasks else 0
                        key = (system.name, scenario.name, workers, size, K, repeat)
                        if system.name in absent or key in store or (number and not system.tasks):
                            continue
                        result = run_once(system, scenario, problem, workers, grid, repeat, limit)
                        store.add(result)
                        print(said(result), file=sys.stderr, flush=True)
    rows = [row for row in store.rows.values() if row.size == size and row.workers == workers]
    report(options, rows, environment, absent)
    return 0


def said(result: Result) -> str:
    """One line."""
    what = f"{result.scenario}, {result.system}" + (f", K = {result.K}" if result.K else "")
    return (f"{what}: {result.to_c:.3g} s to C, {result.to_exit:.3g} s to exit, right: {result.right} "
            f"{result.remark}").rstrip()  # fmt: skip


def report(options: argparse.Namespace, rows: list[Result], environment: dict[str, object],
           absent: dict[str, str]) -> None:  # fmt: skip
    """The table, or JSON; with --out the JSON beside it too."""
    record = {"version": 1, "environment": environment, "absent": absent,
              "results": [finite(dataclasses.asdict(row)) for row in rows]}  # fmt: skip
    text = json.dumps(record, indent=1, ensure_ascii=False)
    if options.out is not None:
        options.out.with_suffix(".json").write_text(text + "\n")
    print(text if options.json else rivals_table(rows), flush=True)


if __name__ == "__main__":
    sys.exit(main())
