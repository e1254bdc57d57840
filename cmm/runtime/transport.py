"""Buffers over MPI: sends that outlive everybody's patience, receives that are announced, waiting that is polite.

An Isend to a stopped rank never completes and cannot be cancelled on either MPI, and dropping its buffer crashes
Finalize; so unfinished sends and their buffers live in one store until the process ends.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from cmm.core.task import Array
from cmm.runtime.protocol import TAG_DOWN, TAG_DOWN_DATA, TAG_UP, TAG_UP_DATA, WORDS, Down, Header, cut_bytes

_UNFINISHED: list[Any] = []  # sends (requests and buffers) that nobody waits for any more; kept to the process's end

SLEEP_MOST = 2e-3  # seconds; longer would be felt as latency, and shorter steals a core from workers on this node
SPIN_MOST = 0.2  # seconds of spinning without progress before a moving payload is left to short sleeps


class Outgoing:
    """One header with its payload on the way to a rank. `on_done` is called once, when all of it has left."""

    def __init__(self, comm: MPI.Comm, rank: int, tags: tuple[int, int], header: Header, payload: Sequence[Array],
                 on_done: Callable[[], None] | None = None) -> None:  # fmt: skip
        self.rank, self.on_done = rank, on_done
        self.started = time.monotonic()
        words = header.pack()
        self.buffers: list[Array] = [words, *payload]
        self.nbytes = words.nbytes + sum(array.nbytes for array in payload)
        self.requests = [comm.Isend([words, MPI.INT64_T], rank, tags[0])]
        for array in payload:
            self.requests += [comm.Isend([part, MPI.BYTE], rank, tags[1]) for part in cut_bytes(array)]

    def test(self) -> bool:
        """True when everything has left; calls `on_done` the first time."""
        if self.requests:
            if not MPI.Request.Testall(self.requests):
                return False
            self.requests = []
            if self.on_done:
                self.on_done()
        return True


class Incoming:
    """Payload on its way into given arrays (contiguous)."""

    def __init__(self, comm: MPI.Comm, rank: int, tag: int, arrays: Sequence[Array]) -> None:
        self.arrays = list(arrays)
        self.started = time.monotonic()
        self.nbytes = sum(array.nbytes for array in self.arrays)
        self.requests = [comm.Irecv([part, MPI.BYTE], rank, tag) for array in self.arrays for part in cut_bytes(array)]

    def test(self) -> bool:
        """True when everything is here."""
        if self.requests and MPI.Request.Testall(self.requests):
            self.requests = []
        return not self.requests


class HeaderBox:
    """One posted receive for the next header of one rank."""

    def __init__(self, comm: MPI.Comm, rank: int, tag: int) -> None:
        self.comm, self.rank, self.tag = comm, rank, tag
        self.words = np.zeros(WORDS, dtype=np.int64)
        self.request = self._post()

    def _post(self) -> MPI.Request:
        return self.comm.Irecv([self.words, MPI.INT64_T], self.rank, self.tag)

    def poll(self) -> Header | None:
        """The next header if it is here."""
        return self.take() if self.request != MPI.REQUEST_NULL and self.request.Test() else None

    def take(self) -> Header:
        """Read a header whose request has completed, and post again (not after a goodbye: none will follow)."""
        header = Header.unpack(self.words.copy())
        if header.kind != Down.BYE:
            self.request = self._post()
        return header

    def close(self) -> Header | None:
        """Withdraw the receive. Returns the header if one had arrived in the meantime."""
        if self.request == MPI.REQUEST_NULL:
            return None
        status = MPI.Status()
        self.request.Cancel()
        self.request.Wait(status)
        return None if status.Is_cancelled() else Header.unpack(self.words.copy())


class Patience:
    """How to wait: sleep (at most 2 ms) while only headers are awaited; spin politely while a payload is moving,
    since sleeping then starves TCP progress. After a long spin without progress it sleeps briefly as well: the
    partner may be stopped."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Something happened."""
        self.pause = 1e-5
        self.since = time.monotonic()

    def wait(self, moving: bool) -> None:
        if moving and time.monotonic() - self.since < SPIN_MOST:
            os.sched_yield()
            return
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, SLEEP_MOST / 4 if moving else SLEEP_MOST)


def keep_unfinished(items: Sequence[Outgoing]) -> None:
    """Keep the sends that have not finished until the process ends."""
    for item in items:
        if not item.test():
            _UNFINISHED.append(item)
            for array in item.buffers:  # MPI is finalized after Python has taken its modules apart: never free these
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))


def unfinished() -> bool:
    """Whether any abandoned send is still on its way (Finalize would hang)."""
    _UNFINISHED[:] = [item for item in _UNFINISHED if not item.test()]
    return bool(_UNFINISHED)


DOWN = (TAG_DOWN, TAG_DOWN_DATA)
UP = (TAG_UP, TAG_UP_DATA)
