"""`python -m cmm.run`: the command line of a matrix job. Thin: what it needs is loaded when it is needed.

Flags and job file are parsed with the standard library alone, by every rank alike, before NumPy or MPI is loaded: a
syntax error is told once, by the first rank, and every rank exits with 64. Files and memory are judged later, by the
job on rank 0 (cmm.runtime.job).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from cmm.codes.registry import check_name
from cmm.core.jobfile import TABLE, Command, parse
from cmm.core.spec import JobSpec
from cmm.runtime import commandline, launch, supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line `argv` (default: this process's) asks for; returns the exit code."""
    return commandline.main(lambda: _read(sys.argv[1:] if argv is None else argv), _run, _answer)


def _read(argv: Sequence[str]) -> Command:
    command = parse(argv)
    if command.spec is not None:
        check_name(command.spec.code)
    return command


def check_early(spec: JobSpec) -> None:
    """What can be judged without files and MPI, but not from text alone. Raises UsageError."""
    if spec.params or (spec.grid is not None and spec.code != "fr"):  # fr fits any grid: nothing to load for it
        from cmm.codes.defaults import check_code

        check_code(spec.code, spec.grid, spec.tasks, spec.dispatch, spec.params, (launch.world_size() or 1) - 1)
    if spec.timeline is not None:
        from cmm.runtime.timeline import check_plotting

        check_plotting()


def _run(spec: JobSpec, tie: supervisor.Tie | None) -> int:
    check_early(spec)
    try:
        from cmm.runtime.job import run_job
    except (ImportError, RuntimeError) as error:
        raise commandline.not_loaded(error) from error
    return int(run_job(spec, tie))


# ---- what is printed instead of computing ------------------------------------------------------------------------


def _answer(command: Command) -> Iterable[str]:
    if command.action == "help":
        return [TABLE.parser().format_help().rstrip()]
    if command.action == "version":
        from cmm import __version__

        return [f"cmm {__version__}"]
    if command.action == "list-codes":
        return _codes()
    assert command.spec is not None
    if command.action == "show-config":
        return [TABLE.to_toml(command.spec).rstrip()]
    from cmm.runtime.dryrun import plan_lines

    return plan_lines(command.spec, command.workers)


def _codes() -> list[str]:
    """The registry, one paragraph a code in three columns: name, what, text."""
    from cmm.codes.registry import list_codes

    lines = []
    for info in list_codes():
        rows = [("recovery", info.recovery), ("good for", info.good_for), ("paper", info.paper)]
        rows += [(f"{name}=", meaning) for name, meaning in info.parameters.items()]
        for at, (what, text) in enumerate(rows):
            lines.append(f"{'' if at else info.name:12}  {what:13}  {text}")
    return ["code          what           (recovery: results from which C can be decoded; name=: --param name=VALUE)",
            *lines]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
