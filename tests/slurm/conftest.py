"""A real Slurm cluster on this machine for the tests marked slurm, and how jobs are submitted to it and followed.

Without Debian's packages the tests are skipped with the reason; with CMM_NEED_SLURM set (CI) that is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cmm.slurm.follow import State, states
from scripts.environment import ROOT, find_launcher
from tests.mpi.conftest import Inputs, make_inputs  # noqa: F401  a fixture
from tests.mpi.launch import OF_A_LAUNCHER, environments

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: submits jobs to a Slurm cluster that it starts on this machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slurm")


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `env`: what a user's shell there has: this environment's MPI first on PATH, a `module` that
    only tells what it was asked for, and ~/venvs/cmm."""

    state: Path
    home: Path
    env: Mapping[str, str]

    def run(self, *words: object, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command as that user; its exit code is the test's business."""
        return subprocess.run(
            [str(word) for word in words], cwd=cwd, env=dict(self.env), capture_output=True, text=True, timeout=timeout,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def cmm_slurm(self, *words: object, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "cmm.slurm", *words, cwd=cwd, timeout=timeout)

    def sbatch(self, *words: object, cwd: Path) -> str:
        """Submit; returns the job's number."""
        done = self.run("sbatch", "--parsable", *words, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def scontrol(self, *words: object) -> str:
        return self.run("scontrol", *words, cwd=self.home).stdout

    def wait(self, job: str, until: Callable[[list[State]], bool], timeout: float = 60) -> list[State]:
        """What Slurm says about the job once `until` holds."""
        deadline = time.monotonic() + timeout
        while not until(found := states(job)):
            if time.monotonic() > deadline:
                self.run("scancel", job, cwd=self.home)  # its nodes are the next test's
                pytest.fail(f"job {job} after {timeout} s: {found}\n{self.output(job)}")
            time.sleep(0.1)
        return found

    def ended(self, job: str, timeout: float = 60) -> list[State]:
        return self.wait(job, lambda found: bool(found) and all(state.ended for state in found), timeout)

    def output(self, job: str) -> str:
        """Everything that the job has written so far."""
        paths = {state.log for state in states(job) if state.log}
        return "".join(Path(path).read_text(errors="replace") for path in sorted(paths) if Path(path).exists())

    def completion(self, job: str) -> list[dict[str, str]]:
        """The job's lines in Slurm's job completion log, one for each run of it."""
        lines = (self.state / "log" / "jobs.log").read_text().splitlines()
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines if line.startswith(f"JobId={job} ")]


def missing() -> str:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path=path) is None)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two cores a node, four nodes; ended by pid afterwards, with everything that jobs have left."""
    if missing():
        text = f"no {missing()} on this machine (scripts/slurm-local up --install gets them)"
        pytest.fail(text) if os.environ.get("CMM_NEED_SLURM") else pytest.skip(text)
    folder = Path(tempfile.mkdtemp(prefix="cmm-slurm-", dir="/tmp"))  # a short path: sockets lie below it
    state, home = folder / "cluster", folder / "home"
    command = [sys.executable, str(ROOT / "scripts" / "slurm-local"), "--state", str(state)]
    done = subprocess.run([*command, "up"], capture_output=True, text=True, timeout=60, check=False)
    before = os.environ.get("SLURM_CONF")
    try:
        assert done.returncode == 0, done.stderr
        os.environ["SLURM_CONF"] = str(state / "slurm.conf")  # for cmm.slurm.follow in this process
        yield Cluster(state, home, _user(state, home))
    finally:
        os.environ.pop("SLURM_CONF", None)
        if before is not None:
            os.environ["SLURM_CONF"] = before
        subprocess.run([*command, "down"], capture_output=True, timeout=60, check=False)
        left = [pid for pid, env in environments() if env.get("SLURM_CONF") == str(state / "slurm.conf")]
        shutil.rmtree(folder, ignore_errors=True)
        assert left == []


def _user(state: Path, home: Path) -> dict[str, str]:
    scratch = home / "t"  # not /tmp: mpirun ends with 213 where a killed one with its process number left a session
    (home / "venvs").mkdir(parents=True)
    scratch.mkdir()
    (home / "venvs" / "cmm").symlink_to(sys.prefix)
    clean = {name: value for name, value in os.environ.items() if not name.startswith((*OF_A_LAUNCHER, "SLURM_"))}
    allowed = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    # One network device: with a dozen of them MPICH's addresses are too long for Slurm's pmi2 plugin (docs/cluster.md).
    return {
        **clean, **(allowed if os.geteuid() == 0 else {}), "SLURM_CONF": str(state / "slurm.conf"), "HOME": str(home),
        "PYTHONPATH": str(ROOT), "PATH": f"{sys.prefix}/bin:{clean.get('PATH', os.defpath)}", "TMPDIR": str(scratch),
        "UCX_NET_DEVICES": "lo", "BASH_FUNC_module%%": '() { echo "module $*"; }',
    }  # fmt: skip


@pytest.fixture(scope="session")
def vendor() -> str:
    """openmpi or mpich, of this environment."""
    return find_launcher(sys.prefix)[1]


@dataclass(frozen=True)
class Job:
    """A folder with A.npy, B.npy and job.toml, as the templates expect it."""

    inputs: Inputs
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "C.npy.report.json"


@pytest.fixture
def make_job(make_inputs: Callable[..., Inputs]) -> Callable[..., Job]:  # noqa: F811
    """make_job(*lines): a job of 300 x 200 times 300 x 150 with these lines in its file."""

    def make(*lines: str) -> Job:
        inputs = make_inputs(300, 200, 150)
        text = "\n".join(['a = "A.npy"', 'b = "B.npy"', 'out = "C.npy"', "seed = 1", *lines])
        (inputs.folder / "job.toml").write_text(text + "\n")
        return Job(inputs, inputs.folder)

    return make
