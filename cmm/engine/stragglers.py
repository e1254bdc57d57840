"""Which worker is overdue: much later than its peers, or known to be so slow that an idle peer would be sooner.

Measured are service times as the master sees them: from the moment a worker could start on a task (it was sent, or
the worker's previous result arrived) to the arrival of its result. A holder is judged against the recent service
times of all workers, never against a wish, so a job on uniformly slow nodes, or a cold start, has no stragglers:

    limit = max(f * median, Q3 + 1.5 (Q3 - Q1)) + floor,    f = factor + small_sample / number of samples

Q3 + 1.5 IQR is Tukey's outer fence (Exploratory Data Analysis, 1977, section 2D): for exponential delays it lets the
bulk pass and cuts the last few per cent. f is wider while few results are known. Before the first result of all there
are no peers to compare with, and a generous multiple of the expected time is used.

A worker's own history refines this. One that is known to need longer than the limit is not hopeless, it is slow: it
counts as overdue as long as a peer that starts now would be done sooner, and again when it exceeds its own habit.

Every operation costs O(log window); `check` costs O(changes + slow workers).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum


class Health(Enum):
    """What may be expected of the tasks a worker holds."""

    HEALTHY = "healthy"  # all of them in good time
    TAIL = "tail"  # the one in work soon, those behind it too late
    LATE = "late"  # none of them in good time


@dataclass(frozen=True)
class Rule:
    """The constants of the judgement; times in seconds.

    factor, small_sample, floor : see the module's formula
    fence : multiple of the interquartile range beyond the third quartile
    habit : a worker is overdue by its own measure after `habit` times the time it usually needs
    prior_factor, prior_floor : limit before the first result, max(prior_factor * expected, prior_floor)
    unknown : expected time where none is given
    hard_factor, hard_floor : "frozen" is max(hard_factor * limit, hard_floor) once there are results
    window : so many recent service times are kept
    own : so many of a worker's own are kept; the smallest of them is its habit (one hiccup does not make it slow)
    """

    factor: float = 2.0
    small_sample: float = 8.0
    floor: float = 0.05
    fence: float = 1.5
    habit: float = 1.5
    prior_factor: float = 10.0
    prior_floor: float = 2.0
    unknown: float = 60.0
    hard_factor: float = 3.0
    hard_floor: float = 1.0
    window: int = 256
    own: int = 3


class Stragglers:
    """Keeps service times and judges the workers that hold tasks.

    Parameters
    ----------
    expected : seconds one task should take, or None when nobody knows
    rule : the constants
    """

    def __init__(self, expected: float | None = None, rule: Rule | None = None) -> None:
        self.rule = rule or Rule()
        self._expected = expected
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._own: dict[int, deque[float]] = {}
        self._running: OrderedDict[int, float] = OrderedDict()  # healthy workers by start of the task in work
        self._slow: dict[int, tuple[float, Health]] = {}  # workers judged by their own habit
        self._late: dict[int, float] = {}  # overdue ones
        self._limit: float | None = None

    # ---- what happens ------------------------------------------------------------------------------------------

    def begin(self, worker: int, time: float) -> Health:
        """The worker starts on a task now (or: its start is corrected to now). Returns its health."""
        self._forget_start(worker)
        habit = self.estimate(worker)
        if habit is not None and habit > self.limit:
            health = self._by_habit(habit, time, time)
            self._slow[worker] = (time, health)
            return health
        self._running[worker] = time
        return Health.HEALTHY

    def answer(self, worker: int, time: float) -> float | None:
        """A result arrived: learn its service time and return it (None when the worker was not at work)."""
        start = self.started(worker)
        self._forget_start(worker)
        if start is None:
            return None
        seconds = max(time - start, 0.0)
        self._own.setdefault(worker, deque(maxlen=self.rule.own)).append(seconds)
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > self.rule.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._limit = None
        return seconds

    def stop(self, worker: int) -> None:
        """The worker holds nothing that could be late any more (lost, retired, idle)."""
        self._forget_start(worker)

    def check(self, time: float) -> list[tuple[int, Health]]:
        """Judge everyone at this time; the workers whose health changed, with their new health."""
        changes = []
        while self._running:
            worker, start = next(iter(self._running.items()))
            if time < start + self.limit:
                break
            del self._running[worker]
            self._slow[worker] = (start, Health.HEALTHY)
        for worker, (start, old) in list(self._slow.items()):
            health, frozen = self._judge(worker, start, time)
            if frozen:
                del self._slow[worker]
                self._late[worker] = start
            else:
                self._slow[worker] = (start, health)
            if health is not old:
                changes.append((worker, health))
        return changes

    # ---- what is known -----------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        return len(self._sorted)

    @property
    def typical(self) -> float:
        """Median of the recent service times; the expectation before there are any."""
        if self._sorted:
            return self._quantile(0.5)
        return self.rule.unknown if self._expected is None else self._expected

    @property
    def limit(self) -> float:
        """A worker at work for longer than this is overdue."""
        if self._limit is None:
            self._limit = self._fence() if self._sorted else self._prior()
        return self._limit

    @property
    def hard_limit(self) -> float:
        """A worker at work for longer than this counts as frozen; before the first result the limit is far enough."""
        if not self._sorted:
            return self.limit
        return max(self.rule.hard_factor * self.limit, self.rule.hard_floor)

    @property
    def active(self) -> int:
        """Number of workers at work and not overdue (slow ones included)."""
        return len(self._running) + len(self._slow)

    @property
    def prompt(self) -> int:
        """Number of workers at work that are neither overdue nor slow."""
        return len(self._running)

    def started(self, worker: int) -> float | None:
        """When the worker began the task it is at; None when it is at none."""
        if worker in self._slow:
            return self._slow[worker][0]
        return self._running.get(worker, self._late.get(worker))

    def estimate(self, worker: int) -> float | None:
        """The time this worker usually needs for a task, leniently; None before its first result."""
        own = self._own.get(worker)
        return min(own) if own else None

    def frozen(self, time: float) -> bool:
        """Whether nobody is at work except workers that have been silent for longer than the hard limit."""
        return not self.active and all(time >= start + self.hard_limit for start in self._late.values())

    def next_change(self, now: float) -> float | None:
        """The earliest time from `now` on at which `check` or `frozen` may say something new; None when never.

        It is `now` itself when the limit has shrunk since the last check and somebody is overdue already.
        """
        times = []
        if self._running:
            times.append(next(iter(self._running.values())) + self.limit)
        for worker, (start, health) in self._slow.items():
            habit = self.estimate(worker)
            times.append(start + self._patience(habit))
            if habit is not None and health is Health.LATE:
                times.append(start + (habit - self.typical))
        frozen = max(self._late.values(), default=0.0) + self.hard_limit
        if self._late and not self.active and frozen > now:
            times.append(frozen)
        return max(now, min(times)) if times else None

    # ---- private -----------------------------------------------------------------------------------------------

    def _judge(self, worker: int, start: float, time: float) -> tuple[Health, bool]:
        """Health now, and whether the worker exceeds its own habit, too."""
        habit = self.estimate(worker)
        if time >= start + self._patience(habit):
            return Health.LATE, True
        return (Health.HEALTHY if habit is None else self._by_habit(habit, start, time)), False

    def _patience(self, habit: float | None) -> float:
        return self.limit if habit is None else max(self.limit, self.rule.habit * habit)

    def _by_habit(self, habit: float, start: float, time: float) -> Health:
        if habit <= self.limit:
            return Health.HEALTHY
        return Health.LATE if time < start + (habit - self.typical) else Health.TAIL

    def _fence(self) -> float:
        rule = self.rule
        first, median, third = (self._quantile(q) for q in (0.25, 0.5, 0.75))
        factor = rule.factor + rule.small_sample / len(self._sorted)
        return max(factor * median, third + rule.fence * (third - first)) + rule.floor

    def _prior(self) -> float:
        expected = self.rule.unknown if self._expected is None else self._expected
        return max(self.rule.prior_factor * expected, self.rule.prior_floor)

    def _quantile(self, q: float) -> float:
        return self._sorted[min(int(q * len(self._sorted)), len(self._sorted) - 1)]

    def _forget_start(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._slow.pop(worker, None)
        self._late.pop(worker, None)
