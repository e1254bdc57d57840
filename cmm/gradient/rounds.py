"""Who has which theta, who has answered, who may be sent the next: one gradient after another, as a pure state machine.

Every evaluation of loss and gradient is a round with a number. theta goes to every worker that has credit, nobody is
waited for; a worker answers or, when it hears of a newer theta first, says that it skipped. So at most `CREDIT` thetas
are ever on their way to a worker, frozen ones included, and a straggler that gets credit back is sent the newest theta,
not those it has missed. Answers to earlier rounds are recognised by their number.

No MPI, no clock, no arrays: time is passed in. Workers are ranks here (1 ... n); the decoder numbers them from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cmm.gradient.decoding import Combination, Decoder

CREDIT = 2  # the theta in work and the one that makes it stale


@dataclass
class Round:
    """What happened in one round. Seconds are since its begin.

    answers : (rank, seconds after the begin) in the order of arrival
    absent : ranks whose answer had not come when it ended
    """

    number: int
    begun: float
    answers: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    combination: Combination | None = None
    stale: int = 0
    absent: tuple[int, ...] = ()

    @property
    def waited_for(self) -> int | None:
        """The rank whose answer ended the round."""
        return self.answers[-1][0] if self.answers else None


class Rounds:
    """Rounds of one job.

    Parameters
    ----------
    ranks : the workers
    decoder : makes the decoder of a round
    everybody : wait for all workers that live even though the gradient is decodable (for measurements)
    """

    def __init__(self, ranks: Iterable[int], decoder: Callable[[], Decoder], *, everybody: bool = False) -> None:
        self.ranks = sorted(ranks)
        self.lost: set[int] = set()
        self.everybody = everybody
        self._make = decoder
        self._decoder = decoder()
        self._out: dict[int, set[int]] = {rank: set() for rank in self.ranks}  # rounds sent and not accounted for
        self._due: set[int] = set()  # ranks that have not been sent the present theta for want of credit
        self.round: Round | None = None

    # ---- events: each returns the ranks that are to be sent the present theta ------------------------------------

    def begin(self, number: int, now: float) -> list[int]:
        """A new theta, with a number larger than all before."""
        self.round = Round(number, now)
        self._decoder = self._make()
        self._due = set(self.ranks) - self.lost
        return [rank for rank in self.ranks if self._grant(rank)]

    def answered(self, rank: int, number: int, now: float) -> tuple[bool, list[int]]:
        """An answer has arrived: (whether it belongs to the present round, ranks to send to)."""
        present = self.round
        fresh = (present is not None and rank not in self.lost and present.number == number
                 and number in self._out.get(rank, ()) and not self.done)  # fmt: skip
        if fresh and present is not None:
            present.answers.append((rank, now - present.begun))
            if self._decoder.add(rank - 1) and present.combination is None:
                present.combination = self._decoder.combination
            if self.done:
                self._close(now)
        elif present is not None:
            present.stale += 1
        return fresh, self._returned(rank, number)

    def skipped(self, rank: int, number: int) -> list[int]:
        """The worker has left out this round for a newer one."""
        return self._returned(rank, number)

    def died(self, rank: int, now: float) -> None:
        """An erasure for good."""
        was = self.done
        self.lost.add(rank)
        self._due.discard(rank)
        if self.done and not was:  # everybody else was there already
            self._close(now)

    def settle(self, now: float) -> None:
        """End a round that waits for everybody, where its gradient is decodable."""
        was, self.everybody = self.done, False
        if self.done and not was:
            self._close(now)

    # ---- the state -----------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the present round has ended."""
        present = self.round
        if present is None or present.combination is None:
            return False
        return not self.everybody or {rank for rank, _ in present.answers} >= set(self.ranks) - self.lost

    @property
    def hopeless(self) -> bool:
        """Whether too many workers are lost for any gradient, the present one included."""
        here = {rank for rank, _ in self.round.answers} if self.round is not None else set()
        return not self.done and not self._decoder.possible({rank - 1 for rank in self.lost - here})

    @property
    def missing(self) -> list[int]:
        """Living ranks that have not answered in the present round."""
        here = {rank for rank, _ in self.round.answers} if self.round is not None else set()
        return [rank for rank in self.ranks if rank not in here and rank not in self.lost]

    def _close(self, now: float) -> None:
        assert self.round is not None
        self.round.seconds = now - self.round.begun
        self.round.absent = tuple(rank for rank in self.ranks if rank in self.lost or rank in self.missing)

    def _returned(self, rank: int, number: int) -> list[int]:
        self._out.get(rank, set()).discard(number)
        return [rank] if not self.done and self._grant(rank) else []

    def _grant(self, rank: int) -> bool:
        if rank not in self._due or len(self._out[rank]) >= CREDIT:
            return False
        assert self.round is not None
        self._due.discard(rank)
        self._out[rank].add(self.round.number)
        return True
