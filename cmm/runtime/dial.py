"""A supervisor's connection to rank 0: dialled without blocking, proved from both sides, then frames.

Standard library only: a supervisor imports this.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections.abc import Sequence

from cmm.runtime.handshake import (
    ANSWER,
    FRAME,
    GREETING,
    MAC,
    MAGIC,
    Frame,
    Inbox,
    draw,
    proof_of_master,
    proof_of_supervisor,
    same,
    watch_partner,
)


class Dial:
    """Tries the addresses one after the other until rank 0 has proved itself.

    Parameters
    ----------
    selector : of the supervisor's loop
    rank, secret : what to prove
    addresses, port : where rank 0 listens, IPv4 or names

    Attributes
    ----------
    admitted : both sides have proved themselves
    ended : the connection is over, or could not be made at any address
    mourned : for the owner: the end has been dealt with
    """

    def __init__(self, selector: selectors.BaseSelector, rank: int, secret: bytes, addresses: Sequence[str],
                 port: int) -> None:  # fmt: skip
        self.selector, self.rank, self.secret = selector, rank, secret
        self.left, self.port = list(addresses), port
        self.sock: socket.socket | None = None
        self.inbox: Inbox | None = None
        self.admitted = self.ended = self.mourned = False
        self._mine, self._theirs = draw(), b""
        self._later: list[bytes] = []  # frames for after the handshake
        self._frames: list[tuple[int, int]] = []
        self._next_address()

    def send(self, kind: Frame, value: int = 0) -> None:
        """Send a frame, or keep it until rank 0 has proved itself."""
        raw = FRAME.pack(kind, value)
        if not self.admitted:
            self._later.append(raw)
        elif self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.send(raw)

    def heard(self) -> list[tuple[int, int]]:
        """The frames that have arrived since the last call."""
        frames, self._frames = self._frames, []
        return frames

    # ---- making the connection -------------------------------------------------------------------------------

    def _next_address(self) -> None:
        self._close()
        while self.left:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                failed = sock.connect_ex((self.left.pop(0), self.port))
            except OSError:  # a name that does not resolve
                failed = errno.EHOSTUNREACH
            if failed in (0, errno.EINPROGRESS):
                self.sock = sock
                self.selector.register(sock, selectors.EVENT_WRITE, self._connected)
                return
            sock.close()
        self.ended = True

    def _connected(self) -> None:
        assert self.sock is not None
        if self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._next_address()
            return
        try:
            watch_partner(self.sock)
        except OSError:
            self._next_address()
            return
        self.inbox = Inbox(self.sock)
        self.selector.modify(self.sock, selectors.EVENT_READ, self._readable)

    def _readable(self) -> None:
        assert self.inbox is not None
        self.inbox.fill()
        if not self.admitted and not self._greet(self.inbox):
            self._next_address()  # a stranger
            return
        if self.admitted:
            self._frames += self.inbox.frames()
        if self.inbox.closed:
            if self.admitted:
                self._close()
                self.ended = True
            else:
                self._next_address()

    def _greet(self, inbox: Inbox) -> bool:
        """The next step of the handshake, when its bytes are there. False when this is not our rank 0."""
        assert self.sock is not None
        if not self._theirs:
            raw = inbox.take(GREETING.size)
            if raw is None:
                return True
            magic, self._theirs = GREETING.unpack(raw)
            if magic != MAGIC:
                return False
            proof = proof_of_supervisor(self.secret, self._theirs, self._mine, self.rank)
            with contextlib.suppress(OSError):
                self.sock.send(ANSWER.pack(MAGIC, self.rank, self._mine, proof))
        raw = inbox.take(MAC)
        if raw is None:
            return True
        if not same(raw, proof_of_master(self.secret, self._theirs, self._mine, self.rank)):
            return False
        self.admitted = True
        for frame in self._later:
            with contextlib.suppress(OSError):
                self.sock.send(frame)
        self._later.clear()
        return True

    def _close(self) -> None:
        if self.sock is not None:
            self.selector.unregister(self.sock)
            self.sock.close()
        self.sock, self.inbox = None, None
        self._theirs = b""
        self._mine = draw()
