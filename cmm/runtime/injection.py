"""Stragglers on purpose: seeded delays, freezes, deaths and corruption of chosen workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from cmm.core.rng import generator
from cmm.core.spec import Injection
from cmm.core.task import Array


class Injector:
    """What is injected into one rank. `pause(seconds)` of the caller keeps hearing messages while it waits."""

    def __init__(self, rank: int, injections: Sequence[Injection], seed: int) -> None:
        mine = [item for item in injections if item.hits(rank)]
        self.rng = generator(seed, "injection", rank)
        self.factor = float(np.prod([item.value for item in mine if item.kind == "slow"]))
        self.sleep = sum(item.value for item in mine if item.kind == "sleep")
        self.means = [item.value for item in mine if item.kind == "exp"]
        self.corruption = [item.value for item in mine if item.kind == "corrupt"]
        self.signals = [(signal.SIGSTOP if item.kind == "freeze" else signal.SIGKILL, item.value)
                        for item in mine if item.kind in ("freeze", "kill")]  # fmt: skip
        self.timers: list[threading.Timer] = []

    def start(self) -> None:
        """The worker begins: freeze or die now, or later by a timer thread (which also hits inside a product)."""
        for signum, seconds in self.signals:
            if seconds <= 0:
                os.kill(os.getpid(), signum)
            else:
                timer = threading.Timer(seconds, os.kill, (os.getpid(), signum))
                timer.daemon = True
                timer.start()
                self.timers.append(timer)

    def cancel(self) -> None:
        """The job has ended and the process goes on: what was to happen later does not."""
        for timer in self.timers:
            timer.cancel()

    def before(self, pause: Callable[[float], None]) -> None:
        """Before a task: `sleep` is deaf, as a stalled process would be; `exp` hears a stop."""
        if self.sleep:
            time.sleep(self.sleep)
        for mean in self.means:
            pause(float(self.rng.exponential(mean)))

    def after(self, seconds: float, pause: Callable[[float], None]) -> None:
        """After a task that took `seconds`: stretch it by the factor."""
        if self.factor > 1:
            pause((self.factor - 1) * seconds)

    def corrupt(self, block: Array) -> None:
        """Change one element by a relative 1e-3 to 1e-1 (an element that is 0 by as much of the largest)."""
        for probability in self.corruption:
            if block.size and self.rng.random() < probability:
                flat = block.reshape(-1)
                at = int(self.rng.integers(flat.size))
                change = 10.0 ** self.rng.uniform(-3, -1) * 1.001
                size = flat[at] if flat[at] != 0 else max(float(np.abs(flat).max()), 1.0)
                flat[at] += flat.dtype.type(change * size)
