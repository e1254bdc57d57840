"""The supervisor and rank 0's watch, with real processes and sockets, without MPI."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cmm.runtime import handshake
from cmm.runtime.habits import abort_keeps_code, prepare, unsurvivable
from cmm.runtime.handshake import ANSWER, GREETING, MAC, MAGIC, Frame
from cmm.runtime.launch import detect
from cmm.runtime.supervisor import how_it_died, useful
from cmm.runtime.watch import STRANGERS, Watch, listening_addresses

ROOT = Path(__file__).resolve().parents[2]
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
CODE = """
import os, signal, sys, time
from cmm.runtime import supervisor
tie = supervisor.start()
assert not {"numpy", "mpi4py"} & set(sys.modules)
port, secret = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
if port:
    tie.report_to(1, secret, sys.argv[3].split(","), port)
print(os.getpid(), flush=True)
"""


class Rank:
    """A process that makes itself a supervisor and goes on as `body`; `pid` of the rank, `process` the supervisor."""

    def __init__(self, body: str, watch: Watch | None, addresses: str = "127.0.0.1") -> None:
        port, secret = (watch.port, watch.secret.hex()) if watch else (0, "")
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE + body, str(port), secret, addresses],
            env={**os.environ, **OPENMPI, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def started(body: str, watch: Watch | None = None, addresses: str = "127.0.0.1") -> Iterator[Rank]:
    rank = Rank(body, watch, addresses)
    try:
        yield rank
    finally:
        rank.process.kill()
        rank.process.wait()
        assert rank.process.stdout is not None
        rank.process.stdout.close()


@pytest.mark.parametrize(
    ("rank", "code", "said"), [("0", 16, True), ("0", 64, False), ("1", 16, False), ("0", 0, False)]
)
def test_the_first_rank_says_when_mpi_did_not_start(rank: str, code: int, said: bool) -> None:
    """MPICH under Open MPI's mpirun exits with 16; with a documented code the rank has said why itself."""
    variables = {**OPENMPI, "OMPI_COMM_WORLD_RANK": rank, "PYTHONPATH": str(ROOT)}
    text = f"import os\nfrom cmm.runtime import supervisor\nsupervisor.start()\nos._exit({code})\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **variables})  # fmt: skip
    assert done.returncode == code
    assert done.stderr.count(f"MPI did not start (exit code {code})") == int(said)


def test_a_rank_that_is_ended_before_the_job_begins_is_no_puzzle() -> None:
    """The launcher ends the others when one fails."""
    with started("time.sleep(60)") as rank:
        rank.process.terminate()
        assert rank.process.wait(timeout=20) == -signal.SIGTERM


@pytest.mark.parametrize(("rank", "begun", "said"), [("0", False, True), ("0", True, False), ("1", False, False)])
def test_the_first_rank_says_when_the_start_takes_long(rank: str, begun: bool, said: bool) -> None:
    """Another rank hangs inside MPI_Init."""
    body = "supervisor.START_SECONDS = 0.2\ntie = supervisor.start()\n"
    begin = "tie.report_to(0, bytes(32), [], 0)\n" if begun else ""
    code = f"import time\nfrom cmm.runtime import supervisor\n{body}{begin}time.sleep(1.5)\n"
    variables = {**OPENMPI, "OMPI_COMM_WORLD_RANK": rank, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, **variables})  # fmt: skip
    assert done.stderr.count("not all ranks have started after 0.2 s") == int(said)


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch([1], ["127.0.0.1"], handshake.draw())
    yield made
    made.close()


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process ends within so many seconds (a zombie has ended)."""
    return until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in status(pid), seconds)


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


def until(condition: Callable[[], object], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# ---- exit codes, signals, orphans -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7, 64])
def test_the_exit_code_is_the_ranks(code: int) -> None:
    with started(f"sys.exit({code})") as rank:
        assert rank.process.wait(10) == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_before_the_job_a_death_is_passed_on(number: signal.Signals) -> None:
    with started(f"os.kill(os.getpid(), {int(number)}); time.sleep(60)") as rank:
        assert rank.process.wait(10) == -number


def test_after_a_farewell_any_exit_code_is_in_order(watch: Watch) -> None:
    with started("tie.farewell(4); sys.exit(4)", watch) as rank:
        assert watch.gather(10) == []
        assert rank.process.wait(10) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_signals_reach_the_rank(number: signal.Signals) -> None:
    body = f"""
signal.signal({int(number)}, lambda number, frame: (print("heard", number, flush=True), sys.exit(75)))
print("ready", flush=True)
time.sleep(60)
"""
    with started(body) as rank:
        assert rank.line() == "ready"
        rank.process.send_signal(number)
        assert rank.line() == f"heard {int(number)}"
        assert rank.process.wait(10) == 75


def test_the_rank_dies_with_its_supervisor() -> None:
    with started("time.sleep(60)") as rank:
        rank.process.kill()
        assert gone(rank.pid)


def test_both_die_with_the_launcher() -> None:
    """Here the launcher is a process in between, which is killed."""
    between = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CODE + 'time.sleep(60)'!r}, '0', ''])"
    launcher = subprocess.Popen([sys.executable, "-c", between], stdout=subprocess.PIPE, text=True,
                                env={**os.environ, **OPENMPI, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    supervisor = int(status(pid).split("PPid:\t")[1].split()[0])
    assert until(lambda: Path(f"/proc/{supervisor}/comm").read_text() == "cmm-supervisor\n")
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert gone(pid)
    assert gone(supervisor)


# ---- deaths and orders --------------------------------------------------------------------------------------------


def test_a_death_is_reported_and_hidden(watch: Watch) -> None:
    with started("time.sleep(60)", watch) as rank:
        assert watch.gather(10) == []
        os.kill(rank.pid, signal.SIGKILL)
        assert until(lambda: watch.poll() or watch.dead)
        assert watch.dead == {1: "killed by SIGKILL"}
        with pytest.raises(subprocess.TimeoutExpired):
            rank.process.wait(0.5)
        watch.tell_all(Frame.LEAVE, 3)
        assert rank.process.wait(10) == 3


def test_a_death_before_the_connection_is_reported_too(watch: Watch) -> None:
    with started("os.kill(os.getpid(), 9)", watch):
        assert until(lambda: watch.poll() or watch.dead)
    assert watch.dead[1] == "killed by SIGKILL"


def test_an_exit_that_was_not_announced_is_a_death(watch: Watch) -> None:
    with started("sys.exit(70)", watch):
        assert until(lambda: watch.poll() or watch.dead)
    assert watch.dead[1] == "exited with code 70"


def test_a_rank_is_killed_on_request(watch: Watch) -> None:
    with started("time.sleep(60)", watch):
        assert watch.gather(10) == []
        assert watch.kill(1)
        assert until(lambda: watch.poll() or watch.dead)
    assert watch.dead == {1: "killed by SIGKILL"}
    assert not watch.kill(5)


def test_without_rank_0_the_rank_is_ended(watch: Watch) -> None:
    with started("time.sleep(60)", watch) as rank:
        assert watch.gather(10) == []
        watch.close()
        assert gone(rank.pid, 15)
        assert rank.process.wait(20) == -signal.SIGKILL


def test_a_stopped_supervisor_does_not_answer(watch: Watch) -> None:
    with started("time.sleep(60)", watch) as rank:
        assert watch.gather(10) == []
        assert watch.all_answer(10)
        rank.process.send_signal(signal.SIGSTOP)
        assert not watch.all_answer(0.2)
        rank.process.send_signal(signal.SIGCONT)
        assert watch.all_answer(10)


def test_a_dead_supervisor_is_a_lost_rank(watch: Watch) -> None:
    with started("time.sleep(60)", watch) as rank:
        assert watch.gather(10) == []
        rank.process.kill()
        assert until(lambda: watch.poll() or watch.dead)
    assert "supervisor is gone" in watch.dead[1]


# ---- who is let in ----------------------------------------------------------------------------------------------


def answer(watch: Watch, secret: bytes, rank: int = 1) -> tuple[socket.socket, bytes]:
    """Dial and answer the challenge under a secret; the socket, and what was sent."""
    sock = socket.create_connection(("127.0.0.1", watch.port), 5)
    assert until(lambda: watch.poll(0.05) or watch.strangers)
    magic, challenge = GREETING.unpack(sock.recv(GREETING.size))
    assert magic == MAGIC
    mine = handshake.draw()
    raw = ANSWER.pack(MAGIC, rank, mine, handshake.proof_of_supervisor(secret, challenge, mine, rank))
    sock.sendall(raw)
    return sock, raw


def refused(watch: Watch, sock: socket.socket) -> bool:
    """Whether rank 0 closes the connection without a word."""
    assert until(lambda: watch.poll(0.05) or not watch.strangers)
    return sock.recv(1) == b""


def test_the_secret_is_needed(watch: Watch) -> None:
    for secret, rank in ((handshake.draw(), 1), (watch.secret, 2)):
        sock, _ = answer(watch, secret, rank)
        with sock:
            assert refused(watch, sock)
    assert watch.missing() == [1]
    sock, _ = answer(watch, watch.secret)
    with sock:
        assert until(lambda: watch.poll(0.05) or not watch.missing())
        assert len(sock.recv(MAC)) == MAC


def test_an_answer_cannot_be_replayed(watch: Watch) -> None:
    sock, raw = answer(watch, watch.secret)
    sock.close()
    again = Watch([1], ["127.0.0.1"], watch.secret)
    with socket.create_connection(("127.0.0.1", again.port), 5) as second:
        assert until(lambda: again.poll(0.05) or again.strangers)
        second.recv(GREETING.size)
        second.sendall(raw)
        assert refused(again, second)
    again.close()


def test_a_rank_is_let_in_once(watch: Watch) -> None:
    first, _ = answer(watch, watch.secret)
    assert until(lambda: watch.poll(0.05) or not watch.missing())
    second, _ = answer(watch, watch.secret)
    with first, second:
        assert refused(watch, second)
    assert watch.dead == {}


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.0\r\n\r\n" * 10, bytes(ANSWER.size)])
def test_noise_is_no_supervisor(watch: Watch, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", watch.port), 5) as sock:
        sock.sendall(noise)
        sock.shutdown(socket.SHUT_WR)
        assert until(lambda: watch.poll(0.05) or watch.strangers)
        assert until(lambda: watch.poll(0.05) or not watch.strangers)
    assert watch.missing() == [1]
    assert watch.dead == {}


def test_a_flood_of_connections_is_bounded(watch: Watch) -> None:
    flood: list[socket.socket] = []
    while len(flood) <= STRANGERS:
        flood.append(socket.create_connection(("127.0.0.1", watch.port), 5))
        assert until(lambda: watch.poll(0.01) or len(watch.strangers) == len(flood))
    with socket.create_connection(("127.0.0.1", watch.port), 5) as one_more:
        one_more.settimeout(0.05)
        assert until(lambda: watch.poll(0.01) or closed(one_more))
    for sock in flood:
        sock.close()


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_false_rank_0_is_not_believed(watch: Watch) -> None:
    """It lacks the secret, and cannot end the rank; the supervisor goes on to the next address."""
    with socket.create_server(("127.0.0.2", watch.port)) as false:
        false.settimeout(10)
        with started("time.sleep(60)", watch, addresses="127.0.0.2,127.0.0.1") as rank:
            sock, _ = false.accept()
            with sock:
                sock.sendall(GREETING.pack(MAGIC, handshake.draw()))
                assert len(sock.recv(ANSWER.size, socket.MSG_WAITALL)) == ANSWER.size
                sock.sendall(bytes(MAC) + handshake.FRAME.pack(Frame.KILL, 0))
                assert watch.gather(10) == []
            assert Path(f"/proc/{rank.pid}").exists()
            assert watch.all_answer(10)


# ---- judgements ---------------------------------------------------------------------------------------------------

SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environ", "saves", "keeps"),
    [
        ({}, False, True),
        (OPENMPI, True, True),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "1"}, False, True),
        ({**OPENMPI, "CMM_SUPERVISE": "0"}, False, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, True, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", **SLURM}, True, True),
        ({**OPENMPI, **SLURM, "PMIX_RANK": "1"}, True, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", **SLURM}, True, False),
        ({"PMIX_RANK": "1", **SLURM}, False, False),
    ],
)
def test_launchers(environ: dict[str, str], saves: bool, keeps: bool) -> None:
    launch = detect(environ)
    assert useful(launch, environ) is saves
    assert abort_keeps_code(launch, environ) is keeps
    assert bool(unsurvivable(launch, environ)) is ("PMIX_RANK" in environ and "OMPI_COMM_WORLD_RANK" not in environ)


def test_what_the_user_has_set_stays() -> None:
    environ = {"UCX_TLS": "tcp"}
    prepare(environ)
    assert environ == {"UCX_TLS": "tcp", "OMPI_MCA_mpi_ft_enable": "1"}


def test_listening_is_no_wider_than_needed() -> None:
    routes = {"near": "10.0.0.1", "far": "192.168.1.1", "odd": None, "self": "127.0.1.1"}
    assert listening_addresses([]) == ["127.0.0.1"]
    assert listening_addresses(["near", "near"], routes) == ["10.0.0.1"]
    assert listening_addresses(["near", "far", "odd"], routes) == ["10.0.0.1", "192.168.1.1"]
    assert listening_addresses(["odd", "self"], routes) == ["0.0.0.0"]


def test_words_for_a_death() -> None:
    codes = (3, -9, -99)
    assert [how_it_died(code) for code in codes] == ["exited with code 3", "killed by SIGKILL", "killed by signal 99"]
