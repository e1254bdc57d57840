"""Outcomes, exit codes and the exceptions that carry them. Standard library only: read before NumPy is loaded.

Every exception a user can cause is a `CmmError`; the command line turns it into one message and one documented
exit code, never into a traceback.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any


class Outcome(str, Enum):
    """How a job ended; the report's `outcome`."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"  # too few results
    INACCURATE = "inaccurate"  # tolerance out of reach
    UNVERIFIED = "unverified"  # the check of C failed
    INTERRUPTED = "interrupted"  # stopped on request, resumable
    REFUSED = "refused"  # bad input
    ERROR = "error"  # internal error


class Status(str, Enum):
    """What became of a worker; the report's `workers[].status`."""

    OK = "ok"
    STRAGGLER = "straggler"  # overdue at least once
    LOST = "lost"  # dead, or silent to the end
    REJECTED = "rejected"  # retired because results failed their check


class ExitCode(IntEnum):
    """Process exit codes; those from 64 on follow the BSD sysexits convention."""

    COMPLETE = 0
    UNVERIFIED = 3
    INCOMPLETE = 4
    INACCURATE = 5
    USAGE = 64
    DATA = 65
    NO_INPUT = 66
    INTERNAL = 70
    CANNOT_WRITE = 73
    STOPPED = 75


class FailureKind(str, Enum):
    """Why a set of results does not give C; sweeps record it, commands exit with it."""

    INCOMPLETE = "incomplete"
    SINGULAR = "singular"
    ILL_CONDITIONED = "ill-conditioned"
    WORKER_LOST = "worker lost"
    REFUSED = "refused"


class CmmError(Exception):
    """Base of all errors that cmm explains to its user.

    Attributes
    ----------
    exit_code, outcome
        What the process exits with and what the report says.
    """

    exit_code: ExitCode = ExitCode.INTERNAL
    outcome: Outcome = Outcome.ERROR


class Refusal(CmmError):
    """Bad input: names the argument, the rule, the value and the remedy."""

    exit_code = ExitCode.USAGE
    outcome = Outcome.REFUSED

    def __init__(self, argument: str, rule: str, value: Any, remedy: str) -> None:
        self.argument, self.rule, self.value, self.remedy = argument, rule, value, remedy
        super().__init__(one_line(f"{argument}: {rule}; got {value}. {remedy}"))


def one_line(text: str) -> str:
    """The text with control characters, line ends and lone surrogates written as escapes: names of files and values of
    flags may hold anything."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class UsageError(Refusal):
    """A flag, key or parameter that breaks a rule (exit code 64)."""


class DataError(Refusal):
    """A file or array whose content cannot be used (exit code 65)."""

    exit_code = ExitCode.DATA


class InputMissingError(Refusal):
    """An input that does not exist or cannot be opened (exit code 66)."""

    exit_code = ExitCode.NO_INPUT


class OutputError(Refusal):
    """An output that cannot be written (exit code 73)."""

    exit_code = ExitCode.CANNOT_WRITE


class InUseError(OutputError):
    """An output that another job is at work on: nothing of that job's is touched, its report included."""


class IncompleteError(CmmError):
    """Too few results: too many workers lost or given up (exit code 4)."""

    exit_code = ExitCode.INCOMPLETE
    outcome = Outcome.INCOMPLETE


class InaccurateError(CmmError):
    """The tolerance is out of reach with the results there are (exit code 5)."""

    exit_code = ExitCode.INACCURATE
    outcome = Outcome.INACCURATE


class UnverifiedError(CmmError):
    """C failed its check (exit code 3)."""

    exit_code = ExitCode.UNVERIFIED
    outcome = Outcome.UNVERIFIED


class StoppedError(CmmError):
    """Stopped on request; the job can be resumed (exit code 75)."""

    exit_code = ExitCode.STOPPED
    outcome = Outcome.INTERRUPTED


class InternalError(CmmError):
    """A fault of cmm or its surroundings that no input explains (exit code 70)."""


class RemoteError(InternalError):
    """An exception on another rank, with that rank's traceback."""

    def __init__(self, rank: int, host: str, task: int | None, traceback: str) -> None:
        self.rank, self.host, self.task, self.traceback = rank, host, task, traceback
        where = f"rank {rank} on {host}" + ("" if task is None else f", task {task}")
        last = traceback.strip().splitlines()[-1] if traceback.strip() else "no message"
        super().__init__(f"{where}: {last}")
