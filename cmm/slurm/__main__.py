"""`python -m cmm.slurm`: the command line. Thin: reads, renders, and submits when asked to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cmm.core.errors import CmmError, OutputError
from cmm.runtime import launch
from cmm.slurm import follow
from cmm.slurm.memory import with_memory
from cmm.slurm.options import make_parser, read, request
from cmm.slurm.script import render


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line `argv` (default: this process's) asks for; returns the exit code."""
    try:
        command = read(sys.argv[1:] if argv is None else argv)
        if command is None:
            print(make_parser().format_help().rstrip())
            return 0
        wanted = request(command, folder=os.getcwd(), venv=_environment(), root=os.geteuid() == 0)
        script = render(with_memory(wanted))
        if command.script:
            _write(command.script, script)
        elif not command.submit:
            print(script, end="", flush=True)
        if not command.submit:
            return 0
        job = follow.submit(script)
        print(f"cmm: submitted job {job}", file=sys.stderr, flush=True)
        return follow.follow(job) if command.wait else 0
    except CmmError as error:
        print(f"cmm: {error}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:  # whoever read the script has read enough
        launch.forget_stdout()
        return 0


def _environment() -> str:
    """The virtual environment that this runs in; empty when it is none."""
    return sys.prefix if sys.prefix != sys.base_prefix else ""


def _write(path: str, script: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(path, os.stat(path).st_mode | 0o100)
    except OSError as error:
        raise OutputError("-o", "must be a file that can be written", repr(path), f"{error.strerror}.") from None


if __name__ == "__main__":
    sys.exit(main())
