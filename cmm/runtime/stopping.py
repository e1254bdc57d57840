"""The request to stop (SIGUSR1, SIGTERM, SIGINT), remembered until rank 0 ends the job in order. Standard library only.

Every rank listens, since launchers send a signal to all of them, often twice; rank 0 acts on it, and the workers hear
the end from rank 0. While messages are on their way rank 0 asks (`check`); an exception out of nowhere could part a
buffer from its request there. Where nothing but arrays is at stake the handler itself raises (`interruptible`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cmm.core.errors import StoppedError

AGAIN_SECONDS = 2.0  # a second SIGTERM or SIGINT so much later is no echo: it ends this process at once

_requested = ""  # name of the first signal
_heard_at = 0.0
_raising = False


def listen() -> None:
    """Remember SIGUSR1 from now on: early, so that one during the start is not fatal."""
    signal.signal(signal.SIGUSR1, _remember)


def listen_to_all() -> None:
    """Remember SIGTERM and SIGINT too: from when on there is a job that can be ended in order."""
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _remember)


def ignore() -> None:
    """From now on a request comes too late: the job has ended, and this process is about to. Python takes its handlers
    away before the process is gone, and a signal would then be fatal to a job whose C is complete."""
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _remember(number: int, frame: FrameType | None) -> None:
    global _requested, _heard_at, _raising
    if not _requested:
        _requested, _heard_at = signal.Signals(number).name, time.monotonic()
    elif number != signal.SIGUSR1 and time.monotonic() - _heard_at > AGAIN_SECONDS:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    if _raising:
        _raising = False  # once: what is being unwound is not to be disturbed
        check()


def requested() -> str:
    """The signal with which somebody has asked this rank to stop; empty when nobody has."""
    return _requested


def check() -> None:
    """Raise StoppedError when somebody has asked this rank to stop."""
    if _requested:
        raise StoppedError(f"stopped on request ({_requested})")


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, a request raises StoppedError wherever the program happens to be. Only for pure computing and reading."""
    global _raising
    _raising = True
    try:
        check()
        yield
    finally:
        _raising = False
