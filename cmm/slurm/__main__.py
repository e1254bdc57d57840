"""`python -m cmm.slurm`: the command line. Thin: reads, renders, and submits when asked to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cmm.core.errors import CmmError, OutputError
from cmm.matrices.files import write_atomic
from cmm.runtime import launch
from cmm.slurm import commands, follow
from cmm.slurm.judging import check_folders, check_jobs, check_launcher
from cmm.slurm.memory import with_memory
from cmm.slurm.options import Command, Request, make_parser, read, request
from cmm.slurm.script import MARK, render


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line `argv` (default: this process's) asks for; returns the exit code."""
    launch.open_streams()
    try:
        command = read(sys.argv[1:] if argv is None else argv)
        if command is None:
            print(make_parser().format_help().rstrip())
            return 0
        wanted = request(command, folder=os.getcwd(), venv=_environment(), root=os.geteuid() == 0)
        _judge(wanted, command)
        script = render(with_memory(wanted))
        if command.script:
            _write(command.script, script)
        elif not command.submit:
            print(script, end="", flush=True)
        if not command.submit:
            return 0
        job = commands.submit(script)
        print(f"cmm: submitted job {job}", file=sys.stderr, flush=True)
        return follow.follow(job) if command.wait else 0
    except CmmError as error:
        launch.say(f"cmm: {error}")
        return int(error.exit_code)
    except KeyboardInterrupt:
        launch.say("cmm: interrupted before anything was submitted, or told to be: squeue --me shows your jobs")
        return follow.INTERRUPTED
    except BrokenPipeError:  # whoever read the script has read enough
        launch.forget_stdout()
        return 0


def _judge(wanted: Request, command: Command) -> None:
    """Everything that is not about the data. Raises CmmError."""
    check_jobs(wanted)
    if command.script:
        _check_script(command.script)
    if command.submit:
        commands.check_cluster()
        commands.check_partition(wanted)
    for warning in [*check_folders(wanted, here=command.submit), *check_launcher(wanted)]:
        launch.say(f"cmm: warning: {warning}")


def _environment() -> str:
    """The virtual environment that this runs in; empty when it is none."""
    return sys.prefix if sys.prefix != sys.base_prefix else ""


def _earlier(path: str) -> str:
    """The script of cmm.slurm that is there already; empty when nothing is. Raises OutputError for another file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise OutputError("-o", "must be a file that can be written", repr(path), f"{error.strerror}.") from None
    if MARK not in "".join(text.splitlines(keepends=True)[:2]):
        raise OutputError("-o", "must not exist yet, or be a script that cmm.slurm wrote", repr(path),
                          "Choose another name.")  # fmt: skip
    return text


def _check_script(path: str) -> None:
    if not _special(path):
        _earlier(path)


def _special(path: str) -> bool:
    """A terminal, a pipe, /dev/null: written to as it is."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _write(path: str, script: str) -> None:
    """Write the script, executable. An earlier one that says something else is kept as PATH~: it may have been changed
    by hand."""
    earlier = "" if _special(path) else _earlier(path)
    try:
        if _special(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            return
        if earlier not in ("", script):
            os.replace(path, f"{path}~")
            launch.say(f"cmm: the earlier {path} is kept as {path}~")
        write_atomic(path, script, argument="-o")
        os.chmod(path, os.stat(path).st_mode | 0o100)
    except OSError as error:
        raise OutputError("-o", "must be a file that can be written", repr(path), f"{error.strerror}.") from None


if __name__ == "__main__":
    sys.exit(main())
