"""`python -m cmm.gradient`: distributed gradient descent that does not wait for stragglers. Thin, as `cmm.run` is:
flags and job file are judged by every rank alike before NumPy or MPI is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from cmm.gradient.spec import TABLE, Command, GradientSpec, parse
from cmm.runtime import commandline, launch, supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line `argv` (default: this process's) asks for; returns the exit code."""
    return commandline.main(lambda: parse(sys.argv[1:] if argv is None else argv), _run, _answer)


def _run(spec: GradientSpec, tie: supervisor.Tie | None) -> int:
    try:
        from cmm.gradient.job import run_job
    except (ImportError, RuntimeError) as error:
        raise commandline.not_loaded(error) from error
    return run_job(spec, tie)


# ---- what is printed instead of computing ------------------------------------------------------------------------


def _answer(command: Command) -> Iterable[str]:
    if command.action == "help":
        return [TABLE.parser().format_help().rstrip()]
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
        return [TABLE.to_toml(command.spec).rstrip()]
    return _plan(command.spec, command.workers)


def _plan(spec: GradientSpec, workers: int | None) -> list[str]:
    from cmm.gradient.data import DataSet
    from cmm.gradient.planning import make_encoding, plan_lines

    n = workers if workers is not None else max(1, (launch.world_size() or 2) - 1)
    data = DataSet(spec.data, spec.labels)
    return [*plan_lines(make_encoding(spec, max(n, 1), data.rows), data), "dry run: nothing was computed"]


if __name__ == "__main__":
    sys.exit(main())
