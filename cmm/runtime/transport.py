"""Buffers over MPI: sends that outlive everybody's patience, receives that are announced, waiting that is polite.

An Isend to a stopped rank never completes and cannot be cancelled on either MPI, and dropping its buffer crashes
Finalize; so unfinished sends and their buffers live in one store until the process ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from cmm.core.task import Array
from cmm.runtime.failures import describe, keep_for_ever, let_go, test_all
from cmm.runtime.protocol import TAG_DOWN, TAG_DOWN_DATA, TAG_UP, TAG_UP_DATA, WORDS, Down, Header, cut_bytes

_UNFINISHED: list[Any] = []  # sends (requests and buffers) that nobody waits for any more

SLEEP_MOST = 2e-3  # seconds; longer would be felt as latency, and shorter steals a core from workers on this node
SPIN_MOST = 0.2  # seconds of spinning without progress before a moving payload is left to short sleeps


class Outgoing:
    """One header with its payload on the way to a rank. `on_done` is called once, when all of it has left. `broken`:
    what MPI said when it could not be sent (the rank has died)."""

    def __init__(self, comm: MPI.Comm, rank: int, tags: tuple[int, int], header: Header, payload: Sequence[Array],
                 on_done: Callable[[], None] | None = None) -> None:  # fmt: skip
        self.rank, self.on_done = rank, on_done
        self.started = time.monotonic()
        words = header.pack()
        self.buffers: list[Array] = [words, *payload]
        self.nbytes = words.nbytes + sum(array.nbytes for array in payload)
        self.requests: list[MPI.Request] = []
        self.broken = ""
        try:
            self.requests.append(comm.Isend([words, MPI.INT64_T], rank, tags[0]))
            for array in payload:
                for part in cut_bytes(array):
                    self.requests.append(comm.Isend([part, MPI.BYTE], rank, tags[1]))
        except MPI.Exception as error:
            self.broken = describe(error)

    def test(self) -> bool:
        """True when everything has left; calls `on_done` the first time."""
        if self.broken:
            return False
        if self.requests:
            done, self.broken = test_all(self.requests)
            if not done:
                return False
            self.requests = []
            if self.on_done:
                self.on_done()
        return True


class Incoming:
    """Payload on its way into given arrays (contiguous). `broken`: what MPI said when it will not come."""

    def __init__(self, comm: MPI.Comm, rank: int, tag: int, arrays: Sequence[Array]) -> None:
        self.arrays = list(arrays)
        self.started = time.monotonic()
        self.nbytes = sum(array.nbytes for array in self.arrays)
        self.requests: list[MPI.Request] = []
        self.broken = ""
        try:
            for array in self.arrays:
                for part in cut_bytes(array):
                    self.requests.append(comm.Irecv([part, MPI.BYTE], rank, tag))
        except MPI.Exception as error:
            self.broken = describe(error)

    def test(self) -> bool:
        """True when everything is here."""
        if self.requests and not self.broken:
            done, self.broken = test_all(self.requests)
            if done:
                self.requests = []
        return not self.requests and not self.broken


class HeaderBox:
    """One posted receive for the next header of one rank. `broken`: what MPI said when none will come."""

    def __init__(self, comm: MPI.Comm, rank: int, tag: int) -> None:
        self.comm, self.rank, self.tag = comm, rank, tag
        self.words = np.zeros(WORDS, dtype=np.int64)
        self.broken = ""
        self.request = self._post()

    def _post(self) -> MPI.Request:
        self.words.fill(0)
        try:
            return self.comm.Irecv([self.words, MPI.INT64_T], self.rank, self.tag)
        except MPI.Exception as error:
            self.broken = describe(error)
            return MPI.Request(MPI.REQUEST_NULL)

    def poll(self) -> Header | None:
        """The next header if it is here."""
        if self.request == MPI.REQUEST_NULL:
            return None
        try:
            done = self.request.Test()
        except MPI.Exception as error:
            return self.salvage(describe(error))
        return self.take() if done else None

    def salvage(self, error: str) -> Header | None:
        """After an error of MPI, maybe of another request: the header that has arrived nevertheless."""
        if self.request != MPI.REQUEST_NULL:
            return None
        if self.words[0]:  # its first word is never 0, and headers arrive as a whole
            return self.take()
        self.broken = error
        return None

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
    """Keep the sends that have not finished, to the process's end if need be."""
    unfinished()
    for item in items:
        if not item.test():
            _UNFINISHED.append(item)
            keep_for_ever(item)


def forget(rank: int) -> None:
    """Do not look after the sends to a dead rank any more."""
    _UNFINISHED[:] = [item for item in _UNFINISHED if item.rank != rank]


def unfinished() -> bool:
    """Whether any abandoned send is still on its way (Finalize would hang). Those that have left are let go."""
    for item in [item for item in _UNFINISHED if item.test()]:  # its rank goes on: the buffers are free again
        _UNFINISHED.remove(item)
        let_go(item)
    return bool(_UNFINISHED)


DOWN = (TAG_DOWN, TAG_DOWN_DATA)
UP = (TAG_UP, TAG_UP_DATA)
