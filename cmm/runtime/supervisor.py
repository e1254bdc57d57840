"""A small parent for every rank, which outlives it: the launcher never sees a rank die.

`start()` forks before NumPy and MPI are loaded. The child goes on as the rank; the parent becomes its supervisor and
never touches MPI. It

    passes signals on to the rank, and the rank's exit code on to the launcher,
    tells rank 0 over TCP (cmm.runtime.dial, cmm.runtime.watch) when the rank dies, and then stays, so that the launcher
    has no reason to end the job,
    kills the rank when rank 0 asks, when rank 0 is gone, and when its own parent (the launcher) is gone.

The rank in turn dies with its supervisor (PR_SET_PDEATHSIG), so nothing outlives a job. Standard library only.
docs/failures.md has the whole picture.
"""

from __future__ import annotations

import ctypes
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

from cmm.core.errors import ExitCode
from cmm.runtime.dial import Dial
from cmm.runtime.habits import prepare, sign_off, unsurvivable
from cmm.runtime.handshake import CHALLENGE, FRAME, Frame, send_frame
from cmm.runtime.launch import Launch, detect, say

PR_SET_NAME, PR_SET_PDEATHSIG = 15, 1
NAME = b"cmm-supervisor"  # what ps and top show
LOOK_SECONDS = 1.0  # how often the launcher is looked at: pidfd would be exact, but kernels before 5.3 lack it
ORPHAN_GRACE = 2.0  # how long a rank lives on after rank 0 has gone without a farewell: the launcher may be faster
FAREWELL_GRACE = 10.0  # how long a rank may take to finalize once the job has ended
PATIENCE = 3.0  # how long a supervisor of a dead rank, told to end, waits for rank 0 to end the job in order
LINGER = 10.0  # how long a supervisor of a dead rank waits to be ended by the launcher after rank 0 has gone
START_SECONDS = 30.0  # after which the first rank's supervisor says that the job has not begun
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)

# Messages of the rank to its supervisor, over a socket pair that keeps their boundaries.
REPORT_TO = struct.Struct(f"!cI{CHALLENGE}sH")  # b"R", rank, secret, port; then the addresses, separated by spaces
LONGEST = 4096
KNOWN_CODES = frozenset(ExitCode)  # with which a rank may refuse a job before it begins; it has said why


def how_it_died(code: int) -> str:
    """Words for an exit code, or for minus a signal."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def useful(launch: Launch, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a supervisor could save this job: there are other ranks, and the launcher lets a rank die."""
    many = launch.rank is not None and (launch.size is None or launch.size > 1)
    return many and not unsurvivable(launch, environ) and environ.get("CMM_SUPERVISE", "1") != "0"


def start() -> Tie | None:
    """Fork. Returns in the rank only: its tie to the supervisor, or None where there is none."""
    if "mpi4py.MPI" in sys.modules or not useful(detect()):
        return None
    prepare()  # on every rank alike, whether or not its fork succeeds
    parent = os.getpid()
    signals = set(PASSED_ON) | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # no signal may be lost, or kill the parent alone
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        say(f"cmm: no supervisor could be started ({error.strerror}): a death of this rank would end the job")
        return None
    if pid:
        theirs.close()
        _Supervisor(pid, ours, before).run()
    ours.close()
    _control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we could ask
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Tie(theirs)


def _control_process(option: int, value: int | bytes) -> None:
    """Linux's prctl; elsewhere nothing happens, and orphans end when their connections break."""
    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(option, value if isinstance(value, bytes) else ctypes.c_ulong(value), 0, 0, 0)


class Tie:
    """The rank's end of the connection to its supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def __enter__(self) -> Tie:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()  # the rank is about to end

    def report_to(self, rank: int, secret: bytes, addresses: Sequence[str], port: int) -> None:
        """Have the supervisor report to rank 0, which listens at one of the addresses."""
        self.sock.send(REPORT_TO.pack(b"R", rank, secret, port) + " ".join(addresses).encode())

    def farewell(self, code: int) -> None:
        """The rank is about to finalize MPI and to exit with this code."""
        send_frame(self.sock, Frame.FAREWELL, code)

    def answers(self, seconds: float) -> bool:
        """Whether the supervisor is running (a stopped one could not pass on the exit code)."""
        self.sock.settimeout(seconds)
        try:
            self.sock.send(FRAME.pack(Frame.PING, 0))
            return bool(self.sock.recv(FRAME.size))
        except OSError:
            return False


class _Supervisor:
    """The parent's loop. It ends with the process."""

    def __init__(self, pid: int, tie: socket.socket, mask: set[signal.Signals] | set[int]) -> None:
        self.pid, self.tie = pid, tie
        self.launcher = os.getppid()
        self.rank: int | None = None
        self.dial: Dial | None = None
        self.died: int | None = None  # exit code, or minus the signal
        self.ended_by = 0  # the last signal that was passed on: dying of it is what the launcher wants
        self.farewell: int | None = None  # the job's exit code, once it has ended in order
        self.say_at = time.monotonic() + START_SECONDS if detect().first else float("inf")
        self.deadline = float("inf")
        self.at_deadline: Callable[[], None] = self._kill
        self.selector = selectors.DefaultSelector()
        self.selector.register(tie, selectors.EVENT_READ, self._hear_rank)
        self._listen_to_signals(mask)
        _control_process(PR_SET_NAME, NAME)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file of a crash is enough: the rank's

    def _listen_to_signals(self, mask: set[signal.Signals] | set[int]) -> None:
        wake, self.signals = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.signals, False)
        signal.set_wakeup_fd(self.signals, warn_on_full_buffer=False)
        for number in (*PASSED_ON, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.selector.register(wake, selectors.EVENT_READ, self._hear_signals)
        self.wake = wake
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # ---- the loop --------------------------------------------------------------------------------------------

    def run(self) -> NoReturn:
        """Watch until there is nothing left to watch."""
        try:
            while True:
                self._turn()
        except BaseException as error:  # nothing may keep the rank alive without a supervisor
            say(f"cmm: the supervisor of rank {self.rank} failed: {type(error).__name__}: {error}")
            self._kill()
            os._exit(70)

    def _turn(self) -> None:
        for key, _ in self.selector.select(max(0.0, min(LOOK_SECONDS, self.deadline - time.monotonic()))):
            key.data()
        if self.died is None:
            self._reap()
        if os.getppid() != self.launcher:
            self._kill()
            os._exit(128 + signal.SIGKILL)
        if self.dial is not None:
            self._follow_dial(self.dial)
        if time.monotonic() >= self.say_at:
            self._say_waiting()
        if time.monotonic() >= self.deadline:
            self.deadline = float("inf")
            self.at_deadline()

    def _say_waiting(self) -> None:
        """Inside MPI_Init the ranks wait for each other, and no MPI lets the others out."""
        self.say_at = float("inf")
        if self.rank is None and self.died is None:
            say(f"cmm: not all ranks have started after {START_SECONDS:g} s; the job begins when they have. A rank or "
                "its node may hang: end the job and start it again")  # fmt: skip

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.died = os.waitstatus_to_exitcode(status)
            self._rank_ended(self.died)

    def _rank_ended(self, code: int) -> None:
        """Let the launcher see it, or tell rank 0 and hide it."""
        in_order = code == 0 or (code > 0 and self.farewell is not None) or code == -self.ended_by
        if in_order or self.rank == 0 or self.dial is None or (self.dial.ended and not self.dial.admitted):
            if code < 0 and self.rank is None and -code not in PASSED_ON:
                say(f"cmm: a rank was lost before the job began ({how_it_died(code)}): nothing was computed, run again")
            elif code > 0 and code not in KNOWN_CODES and self.rank is None and detect().first:
                say(f"cmm: MPI did not start (exit code {code}). Is this the launcher of the MPI that mpi4py loads? "
                    "python -m cmm.doctor tells")  # fmt: skip
            self._exit_like(code)
        self.dial.send(Frame.DIED, code)
        self._at(self._linger if self.dial.ended else float("inf"), self._leave)

    @property
    def _linger(self) -> float:
        """How long to wait to be ended by the launcher once rank 0 has gone: not at all when the job is over."""
        return 0.0 if self.farewell is not None else LINGER

    def _exit_like(self, code: int) -> NoReturn:
        """End as the rank did."""
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
            time.sleep(0.1)
        os._exit(code if code >= 0 else 128 - code)

    def _leave(self) -> None:
        """The job is over, and the rank did not live to see it, or did not end by itself."""
        self._kill()
        if self.farewell is not None:
            sign_off()
            os._exit(self.farewell)
        self._exit_like(self.died if self.died is not None else -signal.SIGKILL)

    def _kill(self) -> None:
        if self.died is None:
            os.kill(self.pid, signal.SIGKILL)

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self.deadline, self.at_deadline = time.monotonic() + seconds, action

    # ---- what is heard ---------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        for number in os.read(self.wake, 4096):
            if number == signal.SIGCHLD:
                continue  # the rank is looked at after every event
            if self.died is not None:
                if number not in (signal.SIGUSR1, signal.SIGUSR2):  # the launcher ends the job: rank 0 may end it first
                    self._at(PATIENCE, partial(self._exit_like, -number))
                continue
            self.ended_by = number
            os.kill(self.pid, number)

    def _hear_rank(self) -> None:
        try:
            message = self.tie.recv(LONGEST)
        except OSError:
            message = b""
        if not message:  # the rank has ended, or is about to
            self.selector.unregister(self.tie)
        elif message[:1] == b"R":
            _, self.rank, secret, port = REPORT_TO.unpack_from(message)
            addresses = message[REPORT_TO.size :].decode().split()
            self.dial = Dial(self.selector, self.rank, secret, addresses, port) if addresses else None
        else:
            kind, value = FRAME.unpack(message)
            if kind == Frame.PING:
                send_frame(self.tie, Frame.HERE)
            elif kind == Frame.FAREWELL:
                self.farewell = value
                if self.rank == 0:
                    self._at(FAREWELL_GRACE, self._leave)

    def _follow_dial(self, dial: Dial) -> None:
        for kind, value in dial.heard():
            if kind == Frame.PING:
                dial.send(Frame.HERE)
            elif kind == Frame.KILL:
                self._kill()
            elif kind == Frame.FAREWELL:
                self.farewell = value
            elif kind == Frame.LEAVE:
                self.farewell = value
                self._leave()
        if dial.ended and not dial.mourned:
            dial.mourned = True
            if dial.admitted:  # rank 0 has gone
                grace = FAREWELL_GRACE if self.farewell is not None else ORPHAN_GRACE
                self._at(self._linger if self.died is not None else grace, self._leave)
            elif self.died is not None:  # rank 0 was never reached, so nobody but the launcher can be told
                self._exit_like(self.died)
