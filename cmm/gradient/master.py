"""The master's side: one coded loss and gradient per call, from the first answers that suffice.

`cmm.gradient.rounds` decides, the link moves bytes; this module connects them. With a single rank the master computes
the sum itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import numpy as np

from cmm.core.errors import CmmError, ExitCode, IncompleteError, Outcome, RemoteError
from cmm.core.task import Array
from cmm.engine.messages import listed
from cmm.gradient.data import DataSet, read_share
from cmm.gradient.decoding import Combination
from cmm.gradient.encoding import Encoding
from cmm.gradient.losses import Answer, Loss
from cmm.gradient.report import GradientRecord
from cmm.gradient.rounds import Round, Rounds
from cmm.gradient.worker import CODED_DATA, PROBE
from cmm.runtime.link import Arrival, MasterLink
from cmm.runtime.protocol import Down, Header, Up, dtype_code
from cmm.runtime.report import Status
from cmm.runtime.transport import Patience

FLOAT = dtype_code(np.dtype(np.float64))
PROBE_PATIENCE = 4.0  # the last workers' speeds are waited for this many times as long as n - s workers needed
PROBE_LEAST = 0.5  # seconds, at least
SURVEY_PATIENCE, SURVEY_LEAST = 4.0, 0.2  # the same for the answers that are checked at the end


class CodedGradient:
    """evaluate(theta) over the workers of a link.

    Parameters
    ----------
    link : open, with results of shape (1 + theta's size, 1)
    shape : of theta
    give_up : seconds without any answer after which a round is given up, or None
    between : called while waiting, at least every few milliseconds: may raise
    """

    def __init__(self, link: MasterLink, shape: tuple[int, ...], record: GradientRecord, *, give_up: float | None,
                 everybody: bool, between: Callable[[], None]) -> None:  # fmt: skip
        self.link, self.shape, self.record = link, shape, record
        self.give_up, self.everybody, self.between = give_up, everybody, between
        self.number = PROBE
        self.iteration = 0  # of the optimiser, for the report
        self.encoding: Encoding | None = None
        self.rounds: Rounds | None = None
        self.lost: set[int] = set()
        self.answers: dict[int, Array] = {}
        self.valued = True
        self.work: dict[int, float] = {}
        self.patience = Patience()
        self.heard = 0.0
        self._settling = 0.0  # when a survey no longer waits for the others; 0: not decodable yet

    # ---- before ----------------------------------------------------------------------------------------------

    def assign(self, encoding: Encoding) -> None:
        """Tell every worker its parts; the data are read by them while the master goes on."""
        self.encoding = encoding
        self.rounds = Rounds(range(1, encoding.n + 1), encoding.decoder, everybody=self.everybody)
        for rank in range(1, encoding.n + 1):
            parts, coefficients = encoding.parts(rank - 1)
            self._send_parts(rank, encoding.k, parts, coefficients, coded=encoding.coded_data)
        self._bury()

    def _send_parts(self, rank: int, k: int, parts: tuple[int, ...], coefficients: tuple[float, ...],
                    *, coded: bool = False) -> None:  # fmt: skip
        table = np.array([parts, coefficients], dtype=np.float64).T.copy()
        header = Header(Down.ASSIGN, self.link.job, k, FLOAT, rows=len(table), cols_a=2, value=CODED_DATA * coded)
        self.link.send(rank, header, [table])

    def measure(self, k: int, enough: int, theta: Array) -> list[float]:
        """Parts per second of every worker, each on one part of the data at theta.

        Workers that are silent when `enough` and as long again (PROBE_PATIENCE times) have answered count as half as
        fast as the slowest of the others.
        """
        ranks = range(1, self.link.workers + 1)
        for rank in ranks:
            self._send_parts(rank, k, ((rank - 1) % k,), (1.0,))
            self._send_theta(rank, PROBE, theta)
        begin = self.heard = time.monotonic()
        until, seconds = float("inf"), dict[int, float]()
        while len(seconds) < len(ranks) - len(self.lost) and time.monotonic() < until:
            if len(ranks) - len(self.lost) < enough:
                raise IncompleteError(f"only {len(ranks) - len(self.lost)} workers live, {enough} are needed")
            if self._take_speeds(seconds):
                self.heard = time.monotonic()
                self.patience.reset()
            else:
                self._check_patience()
                self.between()
                self.patience.wait(self.link.moving)
            spent = time.monotonic() - begin
            if len(seconds) >= enough and until == float("inf"):
                until = begin + spent + max(PROBE_LEAST, PROBE_PATIENCE * spent)
        self.link.discarded = 0  # probes are no results
        slowest = max(seconds.values(), default=1.0)
        return [1 / seconds.get(rank, 2 * slowest) for rank in ranks]

    def _take_speeds(self, seconds: dict[int, float]) -> bool:
        """Note the seconds of the probes that have arrived; True when there were any."""
        arrivals = [arrival for arrival in self._poll() if arrival.header.kind == Up.RESULT]
        for arrival in arrivals:
            seconds[arrival.worker] = max(arrival.header.nanoseconds * 1e-9, 1e-9)
            self.link.discard(arrival.blocks)
        return bool(arrivals)

    # ---- one evaluation --------------------------------------------------------------------------------------

    def survey(self, theta: Array) -> Answer:
        """As a call, and the others' answers are waited for, SURVEY_PATIENCE times as long as was necessary."""
        assert self.rounds is not None, "assigned"
        self.rounds.everybody = True
        try:
            return self(theta)
        finally:
            self.rounds.everybody = self.everybody

    def _settle(self) -> None:
        """End the wait for the others in a survey."""
        assert self.rounds is not None
        present = self.rounds.round
        if self.everybody or present is None or present.combination is None:
            return
        if not self._settling:
            spent = present.answers[-1][1]
            self._settling = time.monotonic() + max(SURVEY_LEAST, SURVEY_PATIENCE * spent)
        elif time.monotonic() > self._settling:
            self.rounds.settle(time.monotonic())

    def __call__(self, theta: Array) -> Answer:
        """The sum over the data of loss and gradient at theta. Raises IncompleteError, or what a worker reports."""
        assert self.rounds is not None, "assigned"
        self._settling = 0.0
        self.number += 1
        self._forget()
        sent = theta.copy()
        self.heard = time.monotonic()
        self._broadcast(self.rounds.begin(self.number, time.monotonic()), sent)
        while not self.rounds.done:
            self._check_hope()
            arrivals = self._poll()
            for arrival in arrivals:
                self._broadcast(self._take(arrival), sent)
            self._settle()
            if arrivals:
                self.patience.reset()
            elif not self.rounds.done:
                if not self._settling:
                    self._check_patience()
                self.between()
                self.patience.wait(self.link.moving)
        return self._decode()

    def _broadcast(self, ranks: list[int], theta: Array) -> None:
        for rank in ranks:
            self._send_theta(rank, self.number, theta)

    def _send_theta(self, rank: int, number: int, theta: Array) -> None:
        table = np.ascontiguousarray(theta.reshape(theta.shape[0], -1))
        header = Header(Down.TASK, self.link.job, number, FLOAT, rows=table.shape[0], cols_a=table.shape[1])
        self.link.send(rank, header, [table])
        self.record.counts.tasks_sent += 1

    def _poll(self) -> list[Arrival]:
        arrivals = self.link.poll()
        self._bury()
        for arrival in arrivals:
            if arrival.header.kind == Up.ERROR:
                raise self._error(arrival)
        return arrivals

    def _bury(self) -> None:
        """The deaths there were."""
        for rank, how in self.link.take_lost().items():
            self.lost.add(rank)
            entry = self.record.worker(rank)
            entry.status, entry.reason = Status.LOST, how
        if self.rounds is not None:
            for rank in self.lost - self.rounds.lost:
                self.rounds.died(rank, time.monotonic())

    def _error(self, arrival: Arrival) -> CmmError:
        host, code = self.link.hosts[arrival.worker], arrival.header.value
        if not code:
            return RemoteError(arrival.worker, host, arrival.header.task, arrival.text)
        error = CmmError(f"rank {arrival.worker} on {host}: {arrival.text}")
        error.exit_code, error.outcome = ExitCode(code), Outcome.REFUSED
        return error

    def _take(self, arrival: Arrival) -> list[int]:
        """One message; returns the ranks that are to be sent the present theta."""
        assert self.rounds is not None
        rank, header = arrival.worker, arrival.header
        if header.kind == Up.SKIPPED:
            return self.rounds.skipped(rank, header.task)
        if header.kind != Up.RESULT:
            return []
        entry = self.record.worker(rank)
        entry.tasks_done += 1
        fresh, ranks = self.rounds.answered(rank, header.task, time.monotonic())
        if not fresh:
            self.link.discard(arrival.blocks)
            return ranks
        self.heard = time.monotonic()
        self.work[rank] = header.nanoseconds * 1e-9
        entry.task_seconds.append(round(self.work[rank], 6))
        self.answers[rank - 1] = arrival.blocks[0]
        self.valued &= bool(header.value)
        return ranks

    def _decode(self) -> Answer:
        assert self.rounds is not None
        assert self.encoding is not None
        present = self.rounds.round
        assert present is not None
        combination = present.combination
        assert combination is not None
        total = combination.apply(self.answers).ravel()
        loss = float(total[0]) if self.valued else None
        self.record.counts.results_accepted += len(combination.workers)
        self.record.add(present, self.iteration, self.work, loss, self.encoding.n - self.encoding.stragglers)
        return loss, total[1:].reshape(self.shape).copy()

    def _forget(self) -> None:
        """Give back the answers of the round before."""
        for block in self.answers.values():
            self.link.pool.give(block)
        self.answers, self.work, self.valued = {}, {}, True

    # ---- wrong answers -----------------------------------------------------------------------------------------

    @property
    def last(self) -> Combination:
        """What the gradient was decoded from; `answers` holds it until the next evaluation."""
        assert self.rounds is not None
        assert self.rounds.round is not None
        assert self.rounds.round.combination is not None
        return self.rounds.round.combination

    def exclude(self, ranks: Collection[int], why: str) -> None:
        """Do without these ranks from now on."""
        for rank in ranks:
            self.lost.add(rank)
            entry = self.record.worker(rank)
            entry.status, entry.reason = Status.REJECTED, why
            entry.rejected_results += 1
        self._bury()

    # ---- when it does not end --------------------------------------------------------------------------------

    def _check_hope(self) -> None:
        assert self.rounds is not None
        assert self.encoding is not None
        if self.rounds.hopeless:
            raise IncompleteError(
                f"{len(self.lost)} workers are lost (ranks {listed(sorted(self.lost))}) and the code "
                f"{self.encoding.name} cannot decode without them: it promises to bear {self.encoding.stragglers}. "
                f"{self._rejected()}"
                "Use more --stragglers."
            )

    def _rejected(self) -> str:
        wrong = [entry.rank for entry in self.record.workers if entry.status == Status.REJECTED]
        return f"Of them ranks {listed(wrong)} had answered wrongly. " if wrong else ""

    def _check_patience(self) -> None:
        if self.give_up is not None and time.monotonic() - self.heard > self.give_up:
            silent = f", ranks {listed(self.rounds.missing)} are silent" if self.rounds is not None else ""
            raise IncompleteError(
                f"gave up after {self.give_up:g} s without an answer (--give-up), in evaluation {self.number}: "
                f"{len(self.answers)} answers are here{silent}. "
                "Use more --stragglers, or raise --give-up."
            )


class LocalGradient:
    """evaluate(theta) on the master alone, for a single rank."""

    def __init__(self, data: DataSet, loss: Loss, record: GradientRecord, between: Callable[[], None]) -> None:
        self.loss, self.record, self.between = loss, record, between
        self.share = read_share(data, 1, [0], [1.0])
        self.number = self.iteration = 0

    def __call__(self, theta: Array) -> Answer:
        self.number += 1
        out = np.zeros(1 + theta.size)
        entry = Round(self.number, time.monotonic())
        for _ in self.share.answer(self.loss, theta, out):
            self.between()
        entry.seconds = time.monotonic() - entry.begun
        entry.answers, entry.combination = [(0, entry.seconds)], Combination((0,), None, "by the master")
        loss = float(out[0]) if self.share.valued else None
        self.record.add(entry, self.iteration, {0: entry.seconds}, loss, 1)
        return loss, out[1:].reshape(theta.shape).copy()
