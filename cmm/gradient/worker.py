"""A gradient worker: told its parts, it reads them; for every theta it sends the combination of their gradients.

It listens between parts. A newer theta makes the one in work stale: the worker says that it skips it and begins the
newer one. The last answer may cross the next theta on its way; the master recognises it by its number.
"""

from __future__ import annotations

import time
import traceback

import numpy as np

from cmm.core.errors import CmmError
from cmm.core.task import Array
from cmm.gradient.data import DataSet, Share, read_coded, read_share
from cmm.gradient.losses import Loss, UserLoss, make_loss
from cmm.gradient.spec import GradientSpec
from cmm.runtime.endpoint import Endpoint
from cmm.runtime.injection import Injector
from cmm.runtime.protocol import Down, Header, Up
from cmm.runtime.transport import UP, Outgoing
from cmm.runtime.worker import MasterLostError, Slot, Stopped, Worker

PROBE = 0  # number of the round in which speeds are measured
PROBE_SECONDS, PROBE_TIMES = 0.02, 5  # it is repeated until it has taken so long, at least so often; the best counts
CODED_DATA = 1  # value of an assignment whose coefficients combine the data, not the gradients


class _Stale(Exception):
    """A newer theta was heard in the middle of something."""


class GradientWorker(Worker):
    """The worker of one job on `end`, whose rank 0 is the master."""

    def __init__(self, end: Endpoint, spec: GradientSpec) -> None:
        super().__init__(end.comm, end.jobs, Injector(end.comm.rank, spec.inject, spec.seed))
        self.spec = spec
        self.data: DataSet | None = None
        self.share = Share()
        self.loss: Loss | None = None

    def _work(self, slot: Slot) -> None:
        """An assignment, or one theta from its arrival to an answer on its way."""
        header = slot.header
        try:
            if header.kind == Down.ASSIGN:
                self._assign(header, slot.a[0])
            elif self._superseded():
                self._skip(header)
            else:
                self._answer(header, slot.a[0])
        except _Stale:
            self._skip(header)
        except Stopped:
            return
        except MasterLostError:
            raise
        except CmmError as error:
            self._tell_error(header, str(error), int(error.exit_code))
        except Exception:
            self._report_error(header, traceback.format_exc())
        self.free.append(slot)

    def _superseded(self) -> bool:
        return any(slot.header.kind == Down.TASK for slot in self.ready)

    def _skip(self, header: Header) -> None:
        self.sending.append(Outgoing(self.comm, 0, UP, Header(Up.SKIPPED, self.job, header.task), []))

    def _assign(self, header: Header, table: Array) -> None:
        """Read the parts in `table`, rows of (part, coefficient); header.task says into how many the data are cut."""
        if self.data is None:
            self.loss = make_loss(self.spec.loss, self.spec.delta)
            self.data = DataSet(self.spec.data, self.spec.labels, finite=not isinstance(self.loss, UserLoss))
        read = read_coded if header.value == CODED_DATA else read_share
        self.share = read(self.data, header.task, [int(part) for part in table[:, 0]], table[:, 1].tolist())

    def _answer(self, header: Header, theta: Array) -> None:
        if self.loss is None:  # its assignment has failed, which the master knows by now
            return
        begin = time.monotonic()
        theta = theta[:, 0] if theta.shape[1] == 1 else theta
        size = theta.size + 1
        shape = Header(Up.RESULT, self.job, header.task, header.dtype, cols_a=size, cols_b=1)
        self.injector.before(self.pause)
        out = self._result_buffers(shape)
        times: list[float] = []
        try:
            while not times or (header.task == PROBE and (len(times) < PROBE_TIMES or sum(times) < PROBE_SECONDS)):
                times.append(self._once(self.loss, theta, out[0].ravel()))
        except (_Stale, Stopped, CmmError):
            self.results.append(out)
            raise
        self.injector.corrupt(out[0])
        seconds = min(times) if header.task == PROBE else time.monotonic() - begin
        answer = Header(Up.RESULT, self.job, header.task, header.dtype, cols_a=size, cols_b=1,
                        nanoseconds=int(seconds * 1e9), value=int(self.share.valued))  # fmt: skip
        self.sending.append(Outgoing(self.comm, 0, UP, answer, out, lambda: self.results.append(out)))

    def _once(self, loss: Loss, theta: Array, out: Array) -> float:
        """Compute the answer into out; returns the seconds it took."""
        start = time.monotonic()
        for _ in self.share.answer(loss, theta, out):
            self._listen()
        self.injector.after(time.monotonic() - start, self.pause)
        return time.monotonic() - start

    def _listen(self) -> None:
        if self.poll():
            self.patience.reset()
        if self.stopping:
            raise Stopped
        if self._superseded():
            raise _Stale

    def pause(self, seconds: float) -> None:
        """Wait while hearing messages. Raises _Stale or Stopped when the present theta is not wanted any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._listen()
            time.sleep(min(left, 2e-3))

    def _tell_error(self, header: Header, text: str, code: int) -> None:
        """An error that the user can mend: its text and exit code, no traceback."""
        message = np.frombuffer(text.encode("utf-8", "replace")[: 1 << 18], dtype=np.uint8).copy()
        answer = Header(Up.ERROR, self.job, header.task, length=message.size, value=code)
        self.sending.append(Outgoing(self.comm, 0, UP, answer, [message]))
