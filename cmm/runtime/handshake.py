"""What supervisors and rank 0 say to each other over TCP: a mutual challenge and response, then frames of five bytes.

    rank 0      -> supervisor   MAGIC, challenge
    supervisor  -> rank 0       MAGIC, rank, challenge, HMAC("supervisor", both challenges, rank)
    rank 0      -> supervisor   HMAC("rank 0", both challenges, rank)

HMAC-SHA256 under a secret that rank 0 draws for every job and that travels over MPI and a socket pair only: it is
never in an argument, a variable or a file. Standard library only: a supervisor imports this.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from enum import IntEnum

MAGIC = b"cmm\x01"
SECRET = CHALLENGE = MAC = 32  # bytes
GREETING = struct.Struct(f"!4s{CHALLENGE}s")
ANSWER = struct.Struct(f"!4sI{CHALLENGE}s{MAC}s")
FRAME = struct.Struct("!Bi")

# A partner whose host has vanished is noticed after IDLE + COUNT * INTERVAL = 14 s.
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 5, 3, 3


class Frame(IntEnum):
    """Kinds of frames; each carries one integer."""

    # supervisor to rank 0
    DIED = 1  # how: exit code, or minus the signal
    HERE = 2  # answer to PING; follows the news of a death that came before
    # rank 0 to supervisor
    PING = 11
    KILL = 12  # kill the rank
    FAREWELL = 13  # the job ends with this exit code; the connection will be closed
    LEAVE = 14  # kill the rank and exit with this code (where an abort cannot carry one)


def draw() -> bytes:
    """A fresh challenge or secret."""
    return os.urandom(CHALLENGE)


def prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """The answer that only a holder of the secret can give."""
    return hmac.digest(secret, role + b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def proof_of_supervisor(secret: bytes, of_master: bytes, of_supervisor: bytes, rank: int) -> bytes:
    """From both challenges; so is the other proof, under another role, so that none can be sent back as the other."""
    return prove(secret, b"supervisor", of_master, of_supervisor, rank.to_bytes(4, "big"))


def proof_of_master(secret: bytes, of_master: bytes, of_supervisor: bytes, rank: int) -> bytes:
    return prove(secret, b"rank 0", of_master, of_supervisor, rank.to_bytes(4, "big"))


def same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


def watch_partner(sock: socket.socket) -> None:
    """Nonblocking, without delay, and broken within 14 s when the partner's host is gone."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    lost = 1000 * (KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_COUNT)
    for name, value in (("TCP_KEEPIDLE", KEEPALIVE_IDLE), ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
                        ("TCP_KEEPCNT", KEEPALIVE_COUNT), ("TCP_USER_TIMEOUT", lost)):  # fmt: skip
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Inbox:
    """Bytes that arrive on a nonblocking socket, until enough of them are there. `closed`: none will follow."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.data, self.closed = sock, b"", False

    def fill(self) -> None:
        """Read what is there (at most 4 kB, so that a flood holds nobody up)."""
        try:
            more = self.sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            more = b""
        self.data += more
        self.closed |= not more

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes, or None while they are not all there."""
        if len(self.data) < size:
            return None
        head, self.data = self.data[:size], self.data[size:]
        return head

    def frames(self) -> list[tuple[int, int]]:
        """All complete frames: (kind, value)."""
        found = []
        while (raw := self.take(FRAME.size)) is not None:
            found.append(FRAME.unpack(raw))
        return found


def send_frame(sock: socket.socket, kind: Frame, value: int = 0) -> bool:
    """Send a frame. False when the connection cannot take it: a buffer of kilobytes is full only when it is dead."""
    try:
        return sock.send(FRAME.pack(kind, value)) == FRAME.size
    except OSError:
        return False
