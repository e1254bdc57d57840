"""The state machine of rounds, message by message: credit, stale answers, skipping ahead, losses."""

from __future__ import annotations

import heapq

import pytest

from cmm.core.rng import generator
from cmm.gradient.encoding import Encoding, cyclic, generalized_frc, uncoded
from cmm.gradient.rounds import CREDIT, Rounds


def rounds_of(code: Encoding, *, everybody: bool = False) -> Rounds:
    return Rounds(range(1, code.n + 1), code.decoder, everybody=everybody)


def test_a_round_ends_at_the_first_complete_class() -> None:
    rounds = rounds_of(generalized_frc(6, 2))  # classes of ranks {1, 4}, {2, 5}, {3, 6}
    assert rounds.begin(1, 10.0) == [1, 2, 3, 4, 5, 6]
    assert rounds.answered(5, 1, 10.5) == (True, [])
    assert rounds.answered(1, 1, 11.0) == (True, [])
    assert not rounds.done
    assert rounds.answered(2, 1, 12.0) == (True, [])
    assert rounds.done
    done = rounds.round
    assert done is not None
    assert done.seconds == 2.0
    assert done.answers == [(5, 0.5), (1, 1.0), (2, 2.0)]
    assert done.waited_for == 2
    assert done.absent == (3, 4, 6)
    assert done.combination is not None
    assert done.combination.label == "class 1"
    assert done.combination.workers == (1, 4)


def test_late_answers_are_recognised_and_dropped() -> None:
    rounds = rounds_of(generalized_frc(4, 1))  # {1, 3}, {2, 4}
    rounds.begin(1, 0.0)
    rounds.answered(1, 1, 1.0)
    rounds.answered(3, 1, 1.0)
    assert rounds.answered(2, 1, 1.5) == (False, [])  # the round is over
    rounds.begin(2, 2.0)
    assert rounds.answered(4, 1, 2.5) == (False, [])  # of the round before
    assert rounds.answered(4, 2, 3.0) == (True, [])
    assert rounds.answered(4, 2, 3.0) == (False, [])  # twice
    assert rounds.answered(2, 7, 3.0) == (False, [])  # never sent
    assert rounds.round is not None
    assert rounds.round.answers == [(4, 1.0)]
    assert rounds.round.stale == 3


def test_a_frozen_worker_is_sent_a_bounded_number_and_then_the_newest() -> None:
    rounds = rounds_of(generalized_frc(4, 1))
    sent = [4 in rounds.begin(1, 0.0)]
    for number in range(1, 50):
        for rank in (1, 3):
            rounds.answered(rank, number, number + 0.1)
        sent.append(4 in rounds.begin(number + 1, number + 0.2))
    assert sum(sent) == CREDIT
    assert sent[:CREDIT] == [True] * CREDIT
    assert rounds.skipped(4, 1) == [4]  # back after all: the present theta, not the 47 it has missed
    assert rounds.answered(4, 2, 60.0) == (False, [])
    assert rounds.answered(4, 50, 60.0) == (True, [])


def test_a_straggler_that_skips_is_not_sent_the_same_theta_twice() -> None:
    rounds = rounds_of(uncoded(2))
    rounds.begin(1, 0.0)
    assert rounds.skipped(2, 1) == []
    rounds.answered(1, 1, 1.0)
    assert not rounds.done


def test_a_lost_worker_is_an_erasure_for_good() -> None:
    rounds = rounds_of(generalized_frc(4, 1))
    rounds.died(1, 0.0)
    assert rounds.begin(1, 0.0) == [2, 3, 4]
    assert not rounds.hopeless
    rounds.answered(3, 1, 1.0)
    rounds.answered(2, 1, 2.0)
    rounds.answered(4, 1, 3.0)
    assert rounds.done
    rounds.died(4, 4.0)
    assert rounds.done  # its answer is here
    assert rounds.begin(2, 5.0) == [2, 3]
    assert rounds.hopeless


def test_an_answer_outlives_its_worker() -> None:
    rounds = rounds_of(generalized_frc(4, 1))
    rounds.begin(1, 0.0)
    rounds.answered(1, 1, 1.0)
    rounds.died(1, 2.0)
    rounds.died(2, 2.0)
    assert not rounds.hopeless  # 3 completes the class of 1
    rounds.answered(3, 1, 3.0)
    assert rounds.done


@pytest.mark.parametrize("code", [uncoded(3), cyclic(5, 2)], ids=lambda code: code.name)
def test_codes_without_spare_workers_are_hopeless_beyond_their_promise(code: Encoding) -> None:
    rounds = rounds_of(code)
    rounds.begin(1, 0.0)
    for rank in range(1, code.stragglers + 1):
        rounds.died(rank, 1.0)
        assert not rounds.hopeless
    rounds.died(code.n, 1.0)
    assert rounds.hopeless


def test_waiting_for_everybody_ends_with_the_last_that_lives() -> None:
    rounds = rounds_of(generalized_frc(4, 1), everybody=True)
    rounds.begin(1, 0.0)
    for rank in (1, 3, 2):
        rounds.answered(rank, 1, float(rank))
    assert not rounds.done
    assert rounds.missing == [4]
    rounds.died(4, 9.0)
    assert rounds.done
    assert rounds.round is not None
    assert rounds.round.seconds == 9.0
    assert rounds.round.combination is not None
    assert rounds.round.combination.label == "class 0"


@pytest.mark.parametrize("seed", range(5))
def test_simulated_stragglers_never_hold_up_the_descent(seed: int) -> None:
    """11 workers, 3 of them 50 times slower: 200 rounds take the time of the fast ones; no answer is taken twice, and
    what is on its way to a worker stays within its credit."""
    rng = generator(seed, "rounds")
    rounds = rounds_of(generalized_frc(11, 3))
    slow = set(rng.choice(range(1, 12), 3, replace=False).tolist())
    queue: list[tuple[float, int, int]] = []
    inbox: dict[int, list[int]] = {rank: [] for rank in range(1, 12)}
    busy: dict[int, int] = {}

    def start(rank: int, now: float) -> None:
        """The worker takes the newest theta; older ones are skipped."""
        if rank not in busy and inbox[rank]:
            *old, newest = inbox[rank]
            inbox[rank] = []
            busy[rank] = newest
            heapq.heappush(queue, (now + (50 if rank in slow else 1) * rng.uniform(0.9, 1.1), rank, newest))
            for number in old:
                send(rounds.skipped(rank, number), now)

    def send(ranks: list[int], now: float) -> None:
        assert rounds.round is not None
        for rank in ranks:
            inbox[rank].append(rounds.round.number)
            assert len(inbox[rank]) + (rank in busy) <= CREDIT
            start(rank, now)

    now = 0.0
    for number in range(1, 201):
        send(rounds.begin(number, now), now)
        while not rounds.done:
            now, rank, answered = heapq.heappop(queue)
            del busy[rank]
            fresh, ranks = rounds.answered(rank, answered, now)
            assert fresh == (answered == number)
            send(ranks, now)
            start(rank, now)
        assert rounds.round is not None
        assert not slow & {worker + 1 for worker in rounds.round.combination.workers}  # type: ignore[union-attr]
    assert now <= 200 * 2.2  # a fast worker may still be busy with the round before
