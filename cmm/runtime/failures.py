"""Who is alive, and what MPI says when somebody is not. The one place that knows how each MPI reports a dead peer.

Deaths are known from the supervisors (cmm.runtime.supervisor), not from MPI: Open MPI raises PROC_FAILED some time
later or never, MPICH can raise on the request of another rank. An error of MPI alone only makes a rank suspect: when
its supervisor does not confirm the death within `CONFIRM_SECONDS`, the rank is killed, since its messages are lost.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from cmm.runtime import launch
from cmm.runtime.habits import forget_shared_memory, unsurvivable
from cmm.runtime.handshake import CHALLENGE, draw
from cmm.runtime.supervisor import Tie
from cmm.runtime.watch import Watch, listening_addresses

POLL_SECONDS = 1e-3  # supervisors are listened to this often at most
CONFIRM_SECONDS = 1.0  # a rank that MPI cannot reach is killed when its supervisor reports nothing by then
GATHER_SECONDS = 2.0  # the start waits this long for the supervisors, who usually need a few milliseconds
ANSWER_SECONDS = 0.3  # for all supervisors to say that they are there, before MPI is finalized

# What a rank says of itself at the start, and what rank 0 answers.
_CARD = struct.Struct("!?16s64s")  # has a supervisor, where it runs, name of its host
_INVITATION = struct.Struct(f"!H{CHALLENGE}sH400s")  # port, secret, length of the addresses, the addresses


# ---- what MPI says ------------------------------------------------------------------------------------------------


def describe(error: MPI.Exception) -> str:
    """The error in one line."""
    return f"MPI: {error.Get_error_string().splitlines()[0]}"


def test_all(requests: list[MPI.Request]) -> tuple[bool, str]:
    """(all done, what broke). Requests to a rank that has died may raise, now or never, and so may others because of
    it; an error that leaves all requests active broke none of them."""
    active = [request != MPI.REQUEST_NULL for request in requests]
    try:
        return MPI.Request.Testall(requests), ""
    except MPI.Exception as error:
        lost = any(was and request == MPI.REQUEST_NULL for was, request in zip(active, requests, strict=True))
        return False, describe(error) if lost else ""


# ---- who is alive -------------------------------------------------------------------------------------------------


@dataclass
class Failures:
    """Rank 0's knowledge of the other ranks.

    watch : the supervisors; None where there are none, and then what MPI says is believed
    unwatched : ranks without a supervisor that reports
    dead : rank -> how it died
    warnings : for the report
    """

    watch: Watch | None = None
    tie: Tie | None = None
    unwatched: list[int] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _suspects: dict[int, tuple[float, str]] = field(default_factory=dict)
    _looked: float = 0.0

    def poll(self) -> dict[int, str]:
        """Deaths that are new: rank -> how."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return {}
        self._looked = now
        news = self.watch.poll() if self.watch is not None else {}
        for rank, (since, error) in list(self._suspects.items()):
            if rank in news or rank in self.dead:
                del self._suspects[rank]
            elif self.watch is None or now - since > CONFIRM_SECONDS:
                del self._suspects[rank]
                if self.watch is not None:
                    self.watch.kill(rank)
                news[rank] = error
        news = {rank: how for rank, how in news.items() if rank not in self.dead}
        self.dead.update(news)
        return news

    def suspect(self, rank: int, error: str) -> None:
        """MPI lost messages to or from this rank."""
        self._suspects.setdefault(rank, (time.monotonic(), error))

    def may_finalize(self) -> bool:
        """Whether all ranks, and all supervisors, are there and running, as far as that can be known."""
        supervisors = self.watch is None or self.watch.all_answer(ANSWER_SECONDS)
        self._looked = 0.0
        self.poll()
        return supervisors and not self.dead and (self.tie is None or self.tie.answers(ANSWER_SECONDS))


# ---- the start ----------------------------------------------------------------------------------------------------


def meet(world: MPI.Comm, tie: Tie | None) -> Failures:
    """Let every supervisor find rank 0. Collective on the world, before anything can go wrong.

    tie : this rank's tie to its supervisor, if it has one
    """
    cards = _gather_cards(world, tie is not None)
    invitation = np.zeros(_INVITATION.size, dtype=np.uint8)
    failures = Failures(tie=tie)
    if cards:
        failures = _watch(cards, tie)
        if failures.watch is not None:
            invitation[:] = np.frombuffer(_invite(failures.watch, cards), dtype=np.uint8)
    world.Bcast([invitation, MPI.BYTE], root=0)
    forget_shared_memory(alone=world.size == 1)  # all have left MPI_Init
    port, secret, length, addresses = _INVITATION.unpack(invitation.tobytes())
    if tie is not None:  # also without a watch: then the supervisor knows at least that the job has begun
        tie.report_to(world.rank, secret, addresses[:length].decode().split() if world.rank and port else [], port)
    if failures.watch is not None:
        late = failures.watch.gather(GATHER_SECONDS)
        failures.unwatched += late
        _warn(failures, late, cards, "its supervisor has not reached rank 0 (a firewall between the nodes?)")
    return failures


def _gather_cards(world: MPI.Comm, supervised: bool) -> list[tuple[bool, bytes, str]]:
    """On rank 0: (has a supervisor, where it runs, host) of every rank; nothing on the others."""
    raw = _CARD.pack(supervised, _place(), socket.gethostname().encode()[:64])
    mine = np.frombuffer(raw, dtype=np.uint8).copy()
    table = np.zeros((world.size if world.rank == 0 else 0, _CARD.size), dtype=np.uint8)
    world.Gather([mine, MPI.BYTE], [table, MPI.BYTE] if world.rank == 0 else None, root=0)
    cards = (_CARD.unpack(row.tobytes()) for row in table)
    return [(has, place, host.rstrip(b"\0").decode(errors="replace")) for has, place, host in cards]


def _place() -> bytes:
    """Equal for processes that can reach each other over loopback: one running kernel and one network namespace."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        network = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        kernel, network = socket.gethostname(), ""
    return hashlib.sha256(f"{kernel} {network}".encode()).digest()[:16]


def _watch(cards: Sequence[tuple[bool, bytes, str]], tie: Tie | None) -> Failures:
    """Rank 0: listen for the supervisors there are."""
    supervised = [rank for rank, card in enumerate(cards) if card[0] and rank]
    bare = [rank for rank, card in enumerate(cards) if not card[0] and rank]
    failures = Failures(tie=tie, unwatched=bare)
    if supervised:
        others = [host for _, place, host in cards if place != cards[0][1]]
        try:
            failures.watch = Watch(supervised, listening_addresses(others), draw())
        except OSError as error:
            failures.unwatched = list(range(1, len(cards)))
            failures.warnings.append(f"no port to hear the supervisors on ({error}): the death of a rank ends the job")
            return failures
    _warn(failures, bare, cards, unsurvivable(launch.detect()) or "it has no supervisor")
    return failures


def _warn(failures: Failures, ranks: Sequence[int], cards: Sequence[tuple[bool, bytes, str]], why: str) -> None:
    if ranks:
        first = f"rank {ranks[0]} on {cards[ranks[0]][2]}" + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")
        failures.warnings.append(f"the death of {first} would end the job: {why}")


def _invite(watch: Watch, cards: Sequence[tuple[bool, bytes, str]]) -> bytes:
    addresses = [cards[0][2] if address == "0.0.0.0" else address for address in watch.addresses]
    text = " ".join(addresses).encode()[:400]
    return _INVITATION.pack(watch.port, watch.secret, len(text), text)


def keep_for_ever(things: Any) -> None:
    """Requests and buffers that MPI may still touch: they are never freed, not even when Python ends (MPI is finalized
    after Python has taken its modules apart)."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


def let_go(things: Any) -> None:
    """Take back one `keep_for_ever`: MPI does not touch them any more."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(things))
