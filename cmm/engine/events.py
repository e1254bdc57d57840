"""What the coordinator is told and what it answers. Plain values: no MPI, no clock, no arrays of data.

Times are seconds on the caller's monotonic clock. Workers are numbered 1..W, tasks by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cmm.core.errors import Outcome
from cmm.core.task import Assignment


class Kind(str, Enum):
    """Why a task is sent."""

    FIXED = "fixed"  # a task of the code as numbered (systematic or not); may be prefetched
    REPAIR = "repair"  # made on demand for outstanding blocks; never prefetched
    COPY = "copy"  # a fixed task that another worker holds or held; never prefetched


# ---- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """A worker is there and can take tasks."""

    worker: int
    time: float


@dataclass(frozen=True)
class Sent:
    """Optional: a task has been encoded and leaves now. Without it the time of the `Send` instruction counts."""

    worker: int
    task: int
    time: float


@dataclass(frozen=True)
class Accepted:
    """A result arrived and passed its check. `seconds`: how long the worker computed; None when not known."""

    worker: int
    task: int
    time: float
    seconds: float | None = None


@dataclass(frozen=True)
class Rejected:
    """A result arrived and failed its check: the task counts as not done."""

    worker: int
    task: int
    time: float
    reason: str = ""


@dataclass(frozen=True)
class Lost:
    """A worker is dead; it will never answer."""

    worker: int
    time: float
    reason: str = ""


@dataclass(frozen=True)
class Computed:
    """The master computed this task itself, as asked by `Compute`."""

    task: int
    time: float


@dataclass(frozen=True)
class Tick:
    """Time passes; sent at least every 50 ms, after the results that have arrived were handed over: only then is it
    judged who is overdue, so that a busy master does not take its own delay for a worker's."""

    time: float


Event = Joined | Sent | Accepted | Rejected | Lost | Computed | Tick


# ---- instructions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Encode this assignment and send it to the worker. The worker has a credit for it."""

    worker: int
    assignment: Assignment
    kind: Kind


@dataclass(frozen=True)
class Compute:
    """The master computes this assignment itself: a source block under a number that was never used before, or, when
    there are no workers, a fixed task under its own number. One at a time: the next follows `Computed`."""

    assignment: Assignment


@dataclass(frozen=True)
class Retire:
    """The worker gets no more work (too many rejected results)."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """Enough results: decode now."""


@dataclass(frozen=True)
class Fail:
    """The job cannot be completed."""

    outcome: Outcome
    message: str


Instruction = Send | Compute | Retire | Finish | Fail
