"""Seconds per phase of a job, on rank 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cmm.runtime.report import Record, Seconds


class Clock:
    """Seconds per phase; phases may nest, inner time is not counted twice."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.seconds: dict[str, float] = {}
        self._stack: list[list[float]] = []

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def into(self, seconds: Seconds) -> None:
        """Write the phases so far and the total."""
        for name, value in self.seconds.items():
            setattr(seconds, name, round(value, 6))
        seconds.total = round(self.now(), 6)

    @contextmanager
    def phase(self, name: str, record: Record | None = None) -> Iterator[None]:
        """Count the time inside for a phase; with `record`, also show it in the timeline."""
        begin = time.monotonic()
        self._stack.append([0.0])
        try:
            yield
        finally:
            spent = time.monotonic() - begin
            inner = self._stack.pop()[0]
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - inner
            if self._stack:
                self._stack[-1][0] += spent
            if record is not None:
                record.event(self.now(), 0, name, None, spent)
