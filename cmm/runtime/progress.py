"""Progress on stderr: a bar when run alone on a terminal, lines under a launcher, or nothing.

Ranks cannot tell whether a terminal is behind the launcher (Open MPI makes stdout a terminal even into a pipe, MPICH
never), so under a launcher progress is one line every 5 % or 30 seconds, whichever comes first. Two lines are at least
a second apart: a short job is silent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, Any

from cmm.core.errors import UsageError
from cmm.runtime import launch

STEP = 0.05  # of the total, between two lines
PAUSE = 30.0  # seconds between two lines at most
LEAST = 1.0  # seconds between two lines at least


class Progress:
    """Tells how many of `total` results are there.

    Parameters
    ----------
    mode : auto, bar, lines or none (`--progress`)
    total : results that are needed; may grow (see `update`)
    stream, clock : where to write, and seconds; for tests
    """

    def __init__(self, mode: str, total: int, *, stream: IO[str] | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        if mode not in ("auto", "bar", "lines", "none"):
            raise UsageError("--progress", "must be auto, bar, lines or none", repr(mode), "Choose one of them.")
        self.stream = stream if stream is not None else sys.stderr
        self.mode = self._choose() if mode == "auto" else mode
        self.total, self.done, self.clock = total, 0, clock
        self._told, self._told_at = 0, clock()
        self._started = self._told_at
        self._bar: Any = None
        if self.mode == "bar":
            try:
                self._bar = self._make_bar()
            except OSError:
                self._fall_silent()

    def _choose(self) -> str:
        alone = launch.world_size() in (None, 1)
        return "bar" if alone and self.stream.isatty() else "lines"

    def _make_bar(self) -> Any:
        from tqdm import tqdm

        return tqdm(total=self.total, file=self.stream, unit="result", dynamic_ncols=True, leave=False)

    def update(self, n: int, text: str = "", total: int | None = None) -> None:
        """`n` results are there now (not: more), of `total` if that has changed; `text` says what is going on."""
        self.done = n
        if total is not None:
            self.total = total
        try:
            if self._bar is not None:
                self._bar.total = self.total
                self._bar.set_description_str(text, refresh=False)
                self._bar.update(n - self._bar.n)
            elif self.mode == "lines":
                self._tell(text)
        except OSError:
            self._fall_silent()

    def _tell(self, text: str) -> None:
        now = self.clock()
        quiet = now - self._told_at
        if quiet < LEAST or (self.done - self._told < max(1, STEP * self.total) and quiet < PAUSE):
            return
        self._told, self._told_at = self.done, now
        share = f" ({100 * self.done / self.total:.0f} %)" if self.total else ""
        more = f", {text}" if text else ""
        self.stream.write(f"cmm: {self.done} of {self.total} results{share} after {now - self._started:.1f} s{more}\n")
        self.stream.flush()

    def _fall_silent(self) -> None:
        """What cannot be told must not end the job."""
        self.mode, self._bar = "none", None
        if self.stream is sys.stderr:
            launch.forget_stderr()

    def close(self) -> None:
        """Take the bar away. May be called twice."""
        bar, self._bar = self._bar, None
        try:
            if bar is not None:
                bar.close()
        except OSError:
            self._fall_silent()
