"""How long until the next result: from the rate at which results have been coming."""

from __future__ import annotations

import math
from collections import deque

from cmm.engine.stragglers import Stragglers

RECENT = 16  # arrivals that make the rate


class Arrivals:
    """The times of recent results."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=RECENT)

    def add(self, time: float) -> None:
        self._times.append(time)

    @property
    def last(self) -> float:
        """When the last result came; minus infinity before the first."""
        return self._times[-1] if self._times else -math.inf

    def interval(self, now: float, stragglers: Stragglers) -> float:
        """Expected seconds to the next result of anybody.

        The mean interval of the recent ones, or the present silence when that is longer: where the arrivals thin out,
        as in the tail of an exponential delay, the silence is what tells. With fewer than two results, the typical
        service time over the workers at work.
        """
        if len(self._times) < 2:
            return stragglers.typical / max(stragglers.active, 1)
        mean = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return max(mean, now - self._times[-1])
