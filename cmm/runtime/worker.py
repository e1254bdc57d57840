"""A worker: receives tasks, multiplies in slices, announces and sends results, hears a stop between slices."""

from __future__ import annotations

import time
import traceback
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from cmm.core.errors import InternalError
from cmm.core.task import Array
from cmm.runtime.injection import Injector
from cmm.runtime.kernel import products
from cmm.runtime.protocol import DTYPES, TAG_DOWN, TAG_DOWN_DATA, TRIVIAL, Down, Header, Up
from cmm.runtime.transport import UP, HeaderBox, Incoming, Outgoing, Patience, keep_unfinished

MOURNING_SECONDS = 3.0  # how long a failing worker lets the master end the job before it does so itself
PARTING_SECONDS = 1.0  # how long a worker waits at the end for its own sends; a live master drains them at once


class MasterLostError(InternalError):
    """Messages to or from the master are lost: this worker is of no use any more."""


class Stopped(Exception):
    """A stop was heard in the middle of something."""


@dataclass
class Slot:
    """Buffers of one task on its way in or in work; reused for tasks of the same shape."""

    a: list[Array] = field(default_factory=list)
    b: list[Array] = field(default_factory=list)
    program: Array = field(default_factory=lambda: TRIVIAL)
    header: Header = field(default_factory=lambda: Header(0, 0))
    incoming: Incoming | None = None

    def fit(self, header: Header) -> None:
        """Make the buffers match the header; fresh ones are touched so that the first receive is not a page fault."""
        dtype = DTYPES[header.dtype]
        self.header = header
        self.a = _fit(self.a, header.parts_a, (header.rows, header.cols_a), dtype)
        self.b = _fit(self.b, header.parts_b, (header.rows, header.cols_b), dtype)
        trivial = header.pairs == 1 and header.outputs == 1
        self.program = TRIVIAL if trivial else np.zeros((header.pairs, 3), dtype=np.int64)

    @property
    def payload(self) -> list[Array]:
        program = [] if self.program is TRIVIAL else [self.program]
        return [*program, *self.a, *self.b]


def _fit(arrays: list[Array], count: int, shape: tuple[int, int], dtype: np.dtype[np.generic]) -> list[Array]:
    if len(arrays) == count and all(array.shape == shape and array.dtype == dtype for array in arrays):
        return arrays
    fresh = [np.empty(shape, dtype=dtype) for _ in range(count)]
    for array in fresh:
        array.fill(0)
    return fresh


@dataclass
class Spare:
    """Buffers that outlive a job: the next call on the communicator finds them allocated and touched."""

    slots: list[Slot] = field(default_factory=list)
    results: list[list[Array]] = field(default_factory=list)


class Worker:
    """One job's worker on a communicator whose rank 0 is the master.

    Parameters
    ----------
    comm : private communicator (errors returned)
    job : the number of this call on the communicator
    injector : straggler injection for this rank
    spare : buffers to begin with, and to leave behind
    """

    def __init__(self, comm: MPI.Comm, job: int, injector: Injector, spare: Spare | None = None) -> None:
        self.comm, self.job, self.injector = comm, job, injector
        self.box = HeaderBox(comm, 0, TAG_DOWN)
        self.receiving: deque[Slot] = deque()
        self.ready: deque[Slot] = deque()
        spare = Spare() if spare is None else spare
        self.free, self.results = spare.slots, spare.results  # free buffers, of tasks and of results
        self.sending: list[Outgoing] = []
        self.patience = Patience()
        self.stopping = False
        self.acknowledged = False
        self.bye: Header | None = None

    def run(self) -> tuple[Header, bytes]:
        """Work until the master says goodbye; returns its last header and text (the report).

        An exception outside of a task is reported to the master before it is raised.
        """
        try:
            return self._run()
        except MasterLostError:
            raise
        except Exception:
            self._report_error(Header(0, self.job), traceback.format_exc())
            until = time.monotonic() + MOURNING_SECONDS
            while self.bye is None and time.monotonic() < until:
                self.poll()
                time.sleep(2e-3)
            raise

    def _run(self) -> tuple[Header, bytes]:
        self.injector.start()
        while self.bye is None:
            moved = self.poll()
            if self.stopping:
                self._acknowledge()
            elif self.ready:
                self._work(self.ready.popleft())
                moved = True
            if moved:
                self.patience.reset()
            elif self.bye is None:
                self.patience.wait(bool(self.receiving or self.sending))
        return self.bye, self._part()

    def poll(self) -> bool:
        """Hear what has arrived and let transfers progress; True when something happened."""
        moved = False
        while self.bye is None and (header := self.box.poll()) is not None:
            moved = True
            self._hear(header)
        while self.receiving and self.receiving[0].incoming and self.receiving[0].incoming.test():
            self.ready.append(self.receiving.popleft())
            moved = True
        left = [item for item in self.sending if not item.test()]
        moved |= len(left) < len(self.sending)
        self.sending = left
        self._check_master()
        return moved

    def _check_master(self) -> None:
        """Raise MasterLostError when MPI has lost a message."""
        incoming = self.receiving[0].incoming if self.receiving else None
        broken = self.box.broken or (incoming.broken if incoming else "")
        broken = broken or next((item.broken for item in self.sending if item.broken), "")
        if broken and self.bye is None:
            raise MasterLostError(f"a message of the master was lost ({broken})")

    def _hear(self, header: Header) -> None:
        if header.kind in (Down.TASK, Down.ASSIGN):
            slot = self.free.pop() if self.free else Slot()
            slot.fit(header)
            slot.incoming = Incoming(self.comm, 0, TAG_DOWN_DATA, slot.payload)
            self.receiving.append(slot)
        elif header.kind == Down.STOP:
            self.stopping = True
        elif header.kind == Down.BYE:
            self.stopping = True
            self.bye = header

    def _work(self, slot: Slot) -> None:
        """One task from received operands to a result on its way."""
        header = slot.header
        try:
            self.injector.before(self.pause)
            out = self._result_buffers(header)
            start = time.monotonic()
            for _ in products(slot.a, slot.b, slot.program, out):
                if self.poll():
                    self.patience.reset()
                if self.stopping:
                    raise Stopped
            self.injector.after(time.monotonic() - start, self.pause)
            seconds = time.monotonic() - start
            for block in out:
                self.injector.corrupt(block)
        except Stopped:
            self.free.append(slot)
            return
        except MasterLostError:
            raise
        except Exception:
            self._report_error(header, traceback.format_exc())
            return
        self.free.append(slot)
        answer = Header(Up.RESULT, self.job, header.task, header.dtype, header.rows, header.cols_a, header.cols_b,
                        outputs=header.outputs, nanoseconds=int(seconds * 1e9))  # fmt: skip
        self.sending.append(Outgoing(self.comm, 0, UP, answer, out, lambda: self.results.append(out)))

    def _result_buffers(self, header: Header) -> list[Array]:
        """Free result buffers; at most two sets exist, so this may wait for a send."""
        while not self.results and len(self.sending) > 1:
            if self.poll():
                self.patience.reset()
            elif self.stopping:
                raise Stopped
            else:
                self.patience.wait(True)
        arrays = self.results.pop() if self.results else []
        return _fit(arrays, header.outputs, (header.cols_a, header.cols_b), DTYPES[header.dtype])

    def pause(self, seconds: float) -> None:
        """Wait while hearing messages. Raises Stopped when a stop is heard."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.poll()
            if self.stopping:
                raise Stopped
            time.sleep(min(left, 2e-3))

    def _report_error(self, header: Header, text: str) -> None:
        message = np.frombuffer(text.encode("utf-8", "replace")[-(1 << 18) :], dtype=np.uint8).copy()
        answer = Header(Up.ERROR, self.job, header.task, length=message.size)
        self.sending.append(Outgoing(self.comm, 0, UP, answer, [message]))

    def _acknowledge(self) -> None:
        """Once all announced payload is in (so that the master's sends complete), say that nothing more will come."""
        self.free.extend(self.ready)
        self.ready.clear()
        if not self.acknowledged and not self.receiving:
            self.acknowledged = True
            self.sending.append(Outgoing(self.comm, 0, UP, Header(Up.ACK, self.job), []))

    def _part(self) -> bytes:
        """After the goodbye: receive its text, finish own sends within a bounded time."""
        assert self.bye is not None
        text = np.zeros(self.bye.length, dtype=np.uint8)
        last = Incoming(self.comm, 0, TAG_DOWN_DATA, [text])
        until = time.monotonic() + PARTING_SECONDS
        patience = Patience()
        while True:
            done = last.test() and not self.receiving
            self.poll()
            self._acknowledge()
            if (done and self.acknowledged and not self.sending) or time.monotonic() > until:
                break
            patience.wait(True)
        keep_unfinished(self.sending)
        return text.tobytes()
