"""Rank 0's side of the supervisors: listens, lets only those in that know the job's secret, hears of deaths.

Nothing here blocks, except where a time is given. Standard library only, no MPI: which addresses to listen on, and
how the secret reaches the other ranks, is the business of cmm.runtime.failures.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cmm.runtime.handshake import (
    ANSWER,
    GREETING,
    MAGIC,
    Frame,
    Inbox,
    draw,
    proof_of_master,
    proof_of_supervisor,
    same,
    send_frame,
    watch_partner,
)
from cmm.runtime.supervisor import how_it_died

HANDSHAKE_SECONDS = 20.0  # a connection that has not proved itself by then is closed
STRANGERS = 64  # connections that have not proved themselves yet, beyond one for every supervisor


@dataclass(eq=False)
class _Connection:
    sock: socket.socket
    inbox: Inbox
    challenge: bytes = field(default_factory=draw)
    since: float = field(default_factory=time.monotonic)
    rank: int | None = None  # None until it has proved itself
    answered: bool = True  # the last ping


class Watch:
    """The supervisors of `ranks`, as rank 0 sees them.

    Parameters
    ----------
    ranks : the ranks that have a supervisor (rank 0 not among them)
    addresses : local addresses to listen on, IPv4; all on one port
    secret : of this job

    Attributes
    ----------
    dead : rank -> how it died, for every death heard of so far

    Raises
    ------
    OSError : no port is free on one of the addresses
    """

    def __init__(self, ranks: Iterable[int], addresses: Sequence[str], secret: bytes) -> None:
        self.ranks, self.secret = frozenset(ranks), secret
        self.addresses = tuple(addresses)
        self.dead: dict[int, str] = {}
        self.connections: dict[int, _Connection] = {}
        self.strangers: set[_Connection] = set()
        self._news: list[int] = []
        _allow_files(len(self.ranks) + STRANGERS)
        self.selector = selectors.DefaultSelector()
        self.port = 0
        for address in addresses:
            listener = socket.create_server((address, self.port), backlog=min(4096, len(self.ranks) + 8))
            listener.setblocking(False)
            self.port = listener.getsockname()[1]
            self.selector.register(listener, selectors.EVENT_READ, None)

    # ---- news ------------------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.0) -> dict[int, str]:
        """Hear what has arrived (waiting at most so long for something); returns the deaths that are new."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj)
            else:
                self._hear(key.data)
        now = time.monotonic()
        for stranger in [item for item in self.strangers if now - item.since > HANDSHAKE_SECONDS]:
            self._drop(stranger)
        news, self._news = self._news, []
        return {rank: self.dead[rank] for rank in news}

    def missing(self) -> list[int]:
        """Ranks whose supervisor has not reported yet."""
        return sorted(self.ranks - self.connections.keys() - self.dead.keys())

    def gather(self, seconds: float) -> list[int]:
        """Wait at most so long for all supervisors to report; returns the ranks of those that did not."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.missing():
            self._news += list(self.poll(left))
        return self.missing()

    def all_answer(self, seconds: float) -> bool:
        """Ask every supervisor whether it is there, for at most so long. True when all of them are and nobody died:
        what a supervisor knew before its answer is known here too."""
        for connection in self.connections.values():
            connection.answered = not send_frame(connection.sock, Frame.PING)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._answered():
            self._news += list(self.poll(left))
        return self._answered() and not self.dead

    def _answered(self) -> bool:
        return all(connection.answered for connection in self.connections.values())

    # ---- orders ----------------------------------------------------------------------------------------------

    def kill(self, rank: int) -> bool:
        """Have a rank killed; its death is reported as any other. False when nobody can do it."""
        connection = self.connections.get(rank)
        return connection is not None and send_frame(connection.sock, Frame.KILL)

    def tell_all(self, frame: Frame, code: int) -> None:
        """FAREWELL or LEAVE with the job's exit code."""
        for connection in self.connections.values():
            send_frame(connection.sock, frame, code)

    # ---- connections -----------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if len(self.strangers) >= len(self.ranks) + STRANGERS:
            sock.close()
            return
        watch_partner(sock)
        connection = _Connection(sock, Inbox(sock))
        with contextlib.suppress(OSError):
            sock.send(GREETING.pack(MAGIC, connection.challenge))
        self.strangers.add(connection)
        self.selector.register(sock, selectors.EVENT_READ, connection)

    def _hear(self, connection: _Connection) -> None:
        connection.inbox.fill()
        if connection.rank is None and not self._admit(connection):
            self._drop(connection)
            return
        if connection.rank is not None:
            for kind, value in connection.inbox.frames():
                if kind == Frame.DIED:
                    self._died(connection.rank, how_it_died(value))
                elif kind == Frame.HERE:
                    connection.answered = True
        if connection.inbox.closed:
            self._drop(connection)

    def _admit(self, connection: _Connection) -> bool:
        """Judge the answer, when it is there. False for whoever is not a supervisor of this job."""
        raw = connection.inbox.take(ANSWER.size)
        if raw is None:
            return len(connection.inbox.data) < ANSWER.size
        magic, rank, challenge, proof = ANSWER.unpack(raw)
        expected = proof_of_supervisor(self.secret, connection.challenge, challenge, rank)
        if magic != MAGIC or not same(proof, expected) or rank not in self.ranks or rank in self.connections:
            return False
        with contextlib.suppress(OSError):
            connection.sock.send(proof_of_master(self.secret, connection.challenge, challenge, rank))
        connection.rank = rank
        self.strangers.discard(connection)
        self.connections[rank] = connection
        return True

    def _died(self, rank: int, how: str) -> None:
        if rank not in self.dead:
            self.dead[rank] = how
            self._news.append(rank)

    def _drop(self, connection: _Connection) -> None:
        self.selector.unregister(connection.sock)
        connection.sock.close()
        self.strangers.discard(connection)
        if connection.rank is not None:
            connection.answered = True
            self._died(connection.rank, "its supervisor is gone, or its node cannot be reached")

    def close(self) -> None:
        """Close everything; supervisors whose rank still runs wait for it to end by itself."""
        if self.selector.get_map() is None:  # closed already
            return
        for key in list(self.selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self.selector.close()


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files as far as that needs no privilege."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def listening_addresses(hosts: Sequence[str], routes: Mapping[str, str | None] | None = None) -> list[str]:
    """The addresses of this host's interfaces towards other hosts, to listen on and to be dialled.

    hosts : the other hosts' names; none: everybody is here, and loopback will do
    routes : for tests; host -> local address towards it, or None where there is no route
    """
    if not hosts:
        return ["127.0.0.1"]
    found = {routes[host] if routes is not None else _local_address_towards(host) for host in set(hosts)}
    known = sorted(address for address in found if address and not address.startswith("127."))
    return known or ["0.0.0.0"]


def _local_address_towards(host: str) -> str | None:
    """By asking the routing table: connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
