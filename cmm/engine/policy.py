"""What the coordinator is told to do, and what it keeps about every worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cmm.core.errors import Status, UsageError
from cmm.engine.stragglers import Health, Rule


@dataclass(frozen=True)
class Policy:
    """How a job is run.

    Attributes
    ----------
    dispatch : "pull" or "oneshot"
    workers : W; with 0 the master computes everything itself
    window : tasks a worker may hold, in work and prefetched
    give_up : fail after so many seconds without a result while nobody can be expected to answer; None: the master
        then computes the missing blocks itself
    expected_task_seconds : what one task should take; used only until the first result. None when not known
    block_seconds : seconds of one block operation when decoding, for the stop rule; 0: never wait once decodable
    max_extra : results that may be collected beyond the first decodable moment to reach the tolerance
    cap : most task numbers issued to workers under pull, fixed tasks and repairs together; None for no bound
    max_rejected : so many rejected results retire a worker
    rule : when a worker is overdue

    Raises
    ------
    UsageError : a value that cannot work
    """

    dispatch: str = "pull"
    workers: int = 0
    window: int = 2
    give_up: float | None = None
    expected_task_seconds: float | None = None
    block_seconds: float = 0.0
    max_extra: int = 16
    cap: int | None = None
    max_rejected: int = 2
    rule: Rule = field(default_factory=Rule)

    def __post_init__(self) -> None:
        if self.dispatch not in ("pull", "oneshot"):
            raise UsageError("--dispatch", "must be pull or oneshot", repr(self.dispatch), "Choose one of them.")
        for name, least in (("workers", 0), ("window", 1), ("max_extra", 0), ("max_rejected", 1), ("block_seconds", 0)):
            if getattr(self, name) < least:
                raise UsageError(name, f"must be at least {least}", getattr(self, name), "Raise it.")
        if self.give_up is not None and not self.give_up >= 0:
            raise UsageError("--give-up", "must be a number of seconds, 0 or more", self.give_up, "Use for example 60.")


class Judge(Protocol):
    """Says whether C may be decoded from what is there; asked only when it can be."""

    @property
    def reason(self) -> str:
        """Why not, with figures, after `acceptable` said no."""

    def acceptable(self) -> bool:
        """Whether the present plan meets the tolerance."""


@dataclass(eq=False, slots=True)
class Worker:
    """What is known of one worker. `holds`: its tasks, oldest first, and whether each is counted as late."""

    number: int
    joined: bool = False
    gone: Status | None = None
    reason: str = ""
    health: Health = Health.HEALTHY
    holds: dict[int, bool] = field(default_factory=dict)
    accepted: int = 0
    rejected: int = 0

    @property
    def live(self) -> bool:
        return self.joined and self.gone is None

    @property
    def status(self) -> Status:
        if self.gone is not None:
            return self.gone
        return Status.OK if self.health is Health.HEALTHY else Status.STRAGGLER


@dataclass(slots=True)
class Counts:
    """What happened so far. `issued`: task numbers given to workers, or restored; copies have the number of what they
    copy. `restored`: results of an earlier run."""

    issued: int = 0
    repairs: int = 0
    copies: int = 0
    accepted: int = 0
    rejected: int = 0
    discarded: int = 0
    computed: int = 0
    restored: int = 0
