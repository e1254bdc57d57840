"""The master's end of a communicator: who is there, what is on its way, what has arrived.

A link belongs to a communicator and outlives a job: late messages of an earlier job are recognised by the job's
number, received and dropped, and a worker that has not acknowledged the end of an earlier job is not used until it
has. After the first call only point-to-point messages are used, so a frozen rank holds nobody up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from cmm.core.errors import InternalError
from cmm.core.task import Array
from cmm.runtime.failures import Failures, describe, keep_for_ever
from cmm.runtime.protocol import DTYPES, TAG_UP, TAG_UP_DATA, Down, Header, Up
from cmm.runtime.transport import DOWN, HeaderBox, Incoming, Outgoing, forget, keep_unfinished, unfinished

RECEIVING_MOST = 4  # payloads received at once; bounds the master's receive buffers
LOOKS_LEAST = 100  # even when the grace is over: what has already arrived is taken
PARTING_SECONDS = 0.3  # for the goodbyes to leave, when all workers are there to hear them
STALLED_SECONDS = 0.1  # a payload this much later than a slow network (100 MB/s) explains is taken for stalled


@dataclass(frozen=True)
class Arrival:
    """One complete message from a worker: result blocks, or the text of an error, or neither (ACK)."""

    worker: int
    header: Header
    blocks: tuple[Array, ...] = ()
    text: str = ""


@dataclass
class _Receiving:
    header: Header
    arrays: list[Array]
    incoming: Incoming


def _stalled(item: Incoming | Outgoing) -> bool:
    return time.monotonic() - item.started > STALLED_SECONDS + item.nbytes / 1e8


class BlockPool:
    """Result buffers of one shape, allocated once, touched, and reused."""

    def __init__(self) -> None:
        self.free: list[Array] = []
        self.shape: tuple[int, int] = (0, 0)
        self.dtype: np.dtype[Any] = np.dtype(np.float64)

    def reshape(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        if (shape, dtype) != (self.shape, self.dtype):
            self.free, self.shape, self.dtype = [], shape, np.dtype(dtype)

    def take(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        if (shape, dtype) == (self.shape, self.dtype) and self.free:
            return self.free.pop()
        block = np.empty(shape, dtype=dtype)
        block.fill(0)
        return block

    def give(self, block: Array) -> None:
        if (block.shape, block.dtype) == (self.shape, self.dtype):
            self.free.append(block)


class MasterLink:
    """Messages between rank 0 and the workers of `comm` (a private communicator that returns errors)."""

    def __init__(self, comm: MPI.Comm, hosts: Sequence[str]) -> None:
        self.comm = comm
        self.workers = comm.size - 1
        self.hosts = list(hosts)
        self.job = 0
        self.owing: dict[int, int] = {}  # worker -> last job whose end it has not acknowledged
        self.boxes: dict[int, HeaderBox] = {}
        self.kept: list[tuple[int, Header]] = []  # headers that arrived between two jobs
        self.receiving: dict[int, _Receiving] = {}
        self.waiting: list[tuple[int, Header]] = []  # announced, receive not yet posted
        self.outgoing: list[Outgoing] = []
        self.pool = BlockPool()
        self.operands: dict[str, tuple[tuple[int, int], np.dtype[Any], list[Array]]] = {}  # side -> buffers left over
        self.bytes_sent = self.bytes_received = self.discarded = 0
        self.stopped_at: float | None = None
        self.failures = Failures()  # those of the command line know the supervisors
        self.lost: dict[int, str] = {}  # dead workers, and how they died
        self._news: list[int] = []
        self._erring = False  # whether MPI has raised anything: then requests are tested one by one

    # ---- a job's begin and end -------------------------------------------------------------------------------

    def open(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> list[int]:
        """Begin a job whose results have this shape; returns the workers that are ready for it."""
        self.pool.reshape(shape, dtype)
        self.bytes_sent = self.bytes_received = self.discarded = 0
        self.stopped_at = None
        self.boxes = {w: HeaderBox(self.comm, w, TAG_UP) for w in range(1, self.workers + 1) if w not in self.lost}
        self._news = list(self.lost)
        for worker, header in self.kept:
            self._announced(worker, header)
        self.kept = []
        return [w for w in self.boxes if w not in self.owing]

    def stop(self) -> None:
        """Tell every worker to drop its work; idempotent. A worker owes an acknowledgement from then on."""
        if self.stopped_at is not None:
            return
        self.stopped_at = time.monotonic()
        for worker in self.boxes:
            self.owing[worker] = self.job
            self.send(worker, Header(Down.STOP, self.job), [])

    def drain(self, grace: float, without: Container[int] = ()) -> bool:
        """Stop, and take what still comes until `grace` seconds after the stop, or until nobody owes an
        acknowledgement but workers in `without`. True when every worker acknowledged."""
        self.stop()
        until = (self.stopped_at or 0.0) + grace
        late = 0
        while self.owing and (late < LOOKS_LEAST or time.monotonic() < until):
            if late and all(worker in without for worker in self.owing):
                break
            late += 1
            if not self.poll():
                time.sleep(2e-4)
        return not self.owing and not self.receiving

    def goodbye(self, code: int, text: bytes) -> bool:
        """End the job with its exit code and report (JSON). True when everything sent has left: Finalize is safe."""
        payload = np.frombuffer(text, dtype=np.uint8).copy()
        for worker in self.boxes:
            self.send(worker, Header(Down.BYE, self.job, value=code, length=payload.size), [payload])
        until = time.monotonic() + PARTING_SECONDS
        while not self._sent() and not self.owing and time.monotonic() < until:
            time.sleep(2e-4)
        left = self._sent() and not self.lost and not unfinished()
        self._close()
        return left

    def _close(self) -> None:
        for worker, box in self.boxes.items():
            if (header := box.close()) is not None:
                self.kept.append((worker, header))
        self.boxes = {}
        self.kept = self.waiting + self.kept
        self.waiting = []
        keep_unfinished(self.outgoing)
        self.outgoing = []

    # ---- traffic ---------------------------------------------------------------------------------------------

    def send(self, worker: int, header: Header, payload: Sequence[Array],
             on_done: Callable[[], None] | None = None) -> None:  # fmt: skip
        """Send; to a dead worker nothing is sent, and `on_done` is called at once."""
        if worker in self.lost:
            if on_done is not None:
                on_done()
            return
        item = Outgoing(self.comm, worker, DOWN, header, payload, on_done)
        self.bytes_sent += item.nbytes
        self.outgoing.append(item)

    def poll(self) -> list[Arrival]:
        """Let transfers progress; returns the messages of this job that are complete."""
        for worker, how in self.failures.poll().items():
            self._bury(worker, how)
        self._sent()
        for worker, header in self._headers([w for w in self.boxes if w not in self.receiving]):
            self._announced(worker, header)
        self._post_waiting()
        return self._complete()

    def _headers(self, waiting: list[int]) -> Iterator[tuple[int, Header]]:
        """Headers that have arrived from these workers."""
        if not self._erring and not self.lost:
            requests = [self.boxes[w].request for w in waiting]
            try:  # Testsome nulls the request objects in its list, which are the boxes' own
                arrived = MPI.Request.Testsome(requests) or ()
            except MPI.Exception as error:  # it does not say which have arrived; look at what it left
                self._erring = True
                found = [(w, self.boxes[w].salvage(describe(error))) for w in waiting]
            else:
                found = [(waiting[at], self.boxes[waiting[at]].take()) for at in arrived]
        else:
            found = [(w, self.boxes[w].poll()) for w in waiting]
        for worker, header in found:
            if self.boxes[worker].broken:
                self.failures.suspect(worker, self.boxes[worker].broken)
            if header is not None:
                yield worker, header

    def take_lost(self) -> dict[int, str]:
        """The workers that were found dead since the last call, and how they died; at a job's begin, all so far."""
        news, self._news = self._news, []
        return {worker: self.lost[worker] for worker in news}

    def _bury(self, worker: int, how: str) -> None:
        """Nothing is sent to, expected from, or tested for a dead worker any more. Requests and buffers stay: MPI may
        still hold them."""
        if worker > self.workers or worker in self.lost:
            return
        self.lost[worker] = how
        self._news.append(worker)
        self.owing.pop(worker, None)
        dead = [item for item in self.outgoing if item.rank == worker]
        keep_for_ever([self.boxes.pop(worker, None), self.receiving.pop(worker, None), dead])
        self.outgoing = [item for item in self.outgoing if item.rank != worker]
        self.waiting = [entry for entry in self.waiting if entry[0] != worker]
        self.kept = [entry for entry in self.kept if entry[0] != worker]
        forget(worker)
        for item in dead:
            if item.on_done is not None:
                item.on_done()

    @property
    def moving(self) -> bool:
        """Whether payload is on its way in or out (stalled receives and sends count until their partner is late)."""
        return any(not _stalled(item.incoming) for item in self.receiving.values()) or any(
            not _stalled(item) for item in self.outgoing
        )

    def _sent(self) -> bool:
        self.outgoing = [item for item in self.outgoing if not item.test()]
        for item in self.outgoing:
            if item.broken:
                self.failures.suspect(item.rank, item.broken)
        return not self.outgoing

    def _announced(self, worker: int, header: Header) -> None:
        self.waiting.append((worker, header))

    def _post_waiting(self) -> None:
        """Post receives for announced payloads, a bounded number at a time; one per worker, in order."""
        active = sum(not _stalled(item.incoming) for item in self.receiving.values())
        later = []
        for worker, header in self.waiting:
            if worker in self.receiving or active >= RECEIVING_MOST:
                later.append((worker, header))
                continue
            active += 1
            arrays = self._buffers(header)
            self.receiving[worker] = _Receiving(header, arrays, Incoming(self.comm, worker, TAG_UP_DATA, arrays))
        self.waiting = later

    def _buffers(self, header: Header) -> list[Array]:
        if header.kind == Up.RESULT:
            dtype = DTYPES[header.dtype]
            return [self.pool.take((header.cols_a, header.cols_b), dtype) for _ in range(header.outputs)]
        if header.kind == Up.ERROR:
            return [np.zeros(header.length, dtype=np.uint8)]
        if header.kind in (Up.ACK, Up.SKIPPED):
            return []
        raise InternalError(f"a worker sent a message of unknown kind {header.kind}")

    def _complete(self) -> list[Arrival]:
        arrivals = []
        done = [w for w, item in self.receiving.items() if item.incoming.test()]
        for worker, item in self.receiving.items():
            if item.incoming.broken:
                self.failures.suspect(worker, item.incoming.broken)
        for worker in done:
            item = self.receiving.pop(worker)
            self.bytes_received += item.incoming.nbytes
            header = item.header
            if header.kind == Up.ACK:
                if self.owing.get(worker) == header.job:
                    del self.owing[worker]
                arrivals.append(Arrival(worker, header))
            elif header.job != self.job:
                self.discard(item.arrays)
            elif header.kind == Up.ERROR:
                arrivals.append(Arrival(worker, header, text=item.arrays[0].tobytes().decode("utf-8", "replace")))
            else:
                arrivals.append(Arrival(worker, header, tuple(item.arrays)))
        return arrivals

    def discard(self, blocks: Sequence[Array]) -> None:
        """Count a result nobody wants and take its buffers back."""
        self.discarded += 1
        for block in blocks:
            self.pool.give(block)
