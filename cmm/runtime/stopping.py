"""The request to stop, SIGUSR1: heard early, so that one during the start is not fatal. Standard library only."""

from __future__ import annotations

import signal
from types import FrameType

_requested = False


def listen() -> None:
    """Remember requests from now on. On every rank: launchers send the signal to all of them, rank 0 acts on it."""
    signal.signal(signal.SIGUSR1, _remember)


def _remember(number: int, frame: FrameType | None) -> None:
    global _requested
    _requested = True


def requested() -> bool:
    """Whether somebody has asked this rank to stop."""
    return _requested
