"""What can happen to a job on a cluster: success, refusal, scancel, a drained node, the time limit, requeueing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from cmm.slurm.follow import states
from tests.mpi.launch import environments
from tests.slurm.conftest import Cluster, Job
from tests.slurm.templates import FOLDER
from tests.slurm.test_templates import SMALL, TOLERANCE

SIZE = ("--nodes", 2, "--tasks-per-node", 2)
LAUNCHER = {"openmpi": "mpirun", "mpich": "srun-pmi2"}
SLOW = 'inject = ["sleep:all:0.4"]'  # 12 tasks of 3 workers: 1.6 s at least


@pytest.fixture
def launcher(vendor: str) -> tuple[str, str]:
    return "--launcher", LAUNCHER[vendor]


def processes_of(job: str) -> list[int]:
    return [pid for pid, env in environments() if env.get("SLURM_JOB_ID") == job]


def await_gone(job: str, seconds: float = 10.0) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := processes_of(job)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def openmpi_only(vendor: str) -> None:
    if vendor != "openmpi":
        pytest.skip("the same with either MPI; tried with Open MPI")


def test_submit_and_wait(cluster: Cluster, launcher: tuple[str, str], make_job: Callable[..., Job]) -> None:
    job = make_job()
    done = cluster.cmm_slurm("job.toml", *SIZE, *launcher, "--submit", "--wait", cwd=job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "C is complete" in done.stdout
    assert "COMPLETED with exit code 0" in done.stderr
    assert job.inputs.error() < TOLERANCE
    number = done.stderr.split("submitted job ")[1].split()[0]
    (line,) = cluster.completion(number)
    assert (line["JobState"], line["ExitCode"], line["NodeCnt"]) == ("COMPLETED", "0:0", "2")


def test_a_worker_that_dies_is_survived(cluster: Cluster, launcher: tuple[str, str],
                                        make_job: Callable[..., Job]) -> None:  # fmt: skip
    job = make_job('inject = ["kill:2@0.2", "sleep:all:0.1"]')
    number = cluster.cmm_slurm("job.toml", *SIZE, *launcher, "--submit", cwd=job.folder).stderr.split()[-1]
    (state,) = cluster.ended(number)
    assert state.exit_code == 0, cluster.output(number)
    assert [worker["status"] for worker in json.loads(job.report.read_text())["workers"]] == ["ok", "lost", "ok"]
    assert job.inputs.error() < TOLERANCE


def test_exit_codes_reach_the_completion_log(cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    openmpi_only(vendor)
    job = make_job("tolerance = 1e-30")  # out of reach: 5
    wrong = cluster.sbatch(*SMALL, FOLDER / "openmpi.sbatch", cwd=job.folder)
    missing = make_job()
    (missing.folder / "B.npy").unlink()  # no such input: 66
    done = cluster.cmm_slurm("job.toml", *SIZE, "--mem", "600M", "--submit", "--wait", cwd=missing.folder)
    number = done.stderr.split("submitted job ")[1].split()[0]
    assert done.returncode == 66, done.stdout + done.stderr
    assert cluster.ended(wrong)[0].exit_code == 5, cluster.output(wrong)
    codes = [line["ExitCode"] for run in (number, wrong) for line in cluster.completion(run)]
    assert codes == ["66:0", "5:0"]
    assert not (job.folder / "C.npy").exists()


def test_what_sbatch_refuses_is_told(cluster: Cluster, make_job: Callable[..., Job]) -> None:
    done = cluster.cmm_slurm("job.toml", *SIZE, "--partition", "none", "--submit", cwd=make_job().folder)
    assert done.returncode == 64
    assert "invalid partition" in done.stderr


def test_what_would_wait_for_ever_or_has_no_folder_is_not_submitted(cluster: Cluster,
                                                                    make_job: Callable[..., Job]) -> None:  # fmt: skip
    """A cluster that answers, one whose controller is away, and a configuration that is not there."""
    job, before = make_job(), len(cluster.scontrol("show", "job", "-o").splitlines())
    few, many, submit = ("job.toml", *SIZE), ("job.toml", "--nodes", 99, "--tasks-per-node", 2), ("--submit", "--wait")
    dead = job.folder / "slurm.conf"
    conf = (cluster.state / "slurm.conf").read_text()
    dead.write_text(re.sub("SlurmctldPort=.*", "SlurmctldPort=9", conf))
    away = replace(cluster, env={**cluster.env, "SLURM_CONF": str(dead)})
    none = replace(cluster, env={**cluster.env, "SLURM_CONF": str(job.folder / "none")})
    for which, words, code, said in (
        (cluster, many, 64, "--nodes: must be at most 4 in partition main"),
        (cluster, (*few, "--log", "logs/%j.out"), 73, "--log: must lie in an existing directory"),
        (cluster, (*few, "--venv", "/no"), 66, "--venv: must be a virtual environment"),
        (cluster, (*few, "--sbatch", "--nosuch=1"), 64, "unrecognized option '--nosuch=1'"),
        (away, few, 70, "Slurm does not answer"),
        (none, few, 64, "SLURM_CONF: must name the configuration of a cluster"),
    ):
        done = which.cmm_slurm(*words, *submit, cwd=job.folder, timeout=30)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
    assert len(cluster.scontrol("show", "job", "-o").splitlines()) == before


def _hear_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells let what they start in the background ignore it


@contextlib.contextmanager
def submitted(cluster: Cluster, job: Job, *words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`cmm.slurm --submit --wait` in the background, and the number of its job, which has started."""
    command = [sys.executable, "-m", "cmm.slurm", "job.toml", *SIZE, *words, "--submit", "--wait"]
    with subprocess.Popen(
        [str(word) for word in command], cwd=job.folder, env=dict(cluster.env), text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=_hear_ctrl_c,
    ) as waiting:  # fmt: skip
        try:
            assert waiting.stderr is not None
            number = waiting.stderr.readline().split()[-1]
            cluster.wait(number, lambda found: found[0].state == "RUNNING")
            yield waiting, number
        finally:
            waiting.kill()


def test_scancel(cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    """Cancelled is cancelled: nothing is left, and a job that would be queued again is not."""
    openmpi_only(vendor)
    job = make_job('inject = ["sleep:all:30"]', "give-up = 100")
    with submitted(cluster, job, "--checkpoint", "kept", "--requeue") as (waiting, number):
        deadline = time.monotonic() + 30
        while len(processes_of(number)) < 8 and time.monotonic() < deadline:  # ranks and their supervisors
            time.sleep(0.1)
        assert len(processes_of(number)) >= 8
        cluster.run("scancel", number, cwd=job.folder)
        (state,) = cluster.ended(number)
        assert state.state == "CANCELLED"
        assert await_gone(number) == []
        assert waiting.wait(30) == state.exit_code != 0
    assert "Restarts=0" in cluster.scontrol("show", "job", number)
    assert not (job.folder / "C.npy").exists()


def test_a_drained_node_and_an_interrupted_wait_let_the_job_end(cluster: Cluster, vendor: str,
                                                                make_job: Callable[..., Job]) -> None:  # fmt: skip
    openmpi_only(vendor)
    job = make_job(SLOW)
    with submitted(cluster, job) as (waiting, number):
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=30)
        assert waiting.returncode == 130
        assert f"job {number} goes on" in said
    node = cluster.scontrol("show", "hostnames", states(number)[0].nodes).split()[-1]
    cluster.scontrol("update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        assert states(number)[0].state == "RUNNING"
        (state,) = cluster.ended(number)
        assert "DRAIN" in cluster.scontrol("show", "node", node)
    finally:
        cluster.scontrol("update", f"NodeName={node}", "State=RESUME")
    assert state.exit_code == 0, cluster.output(number)
    assert job.inputs.error() < TOLERANCE


@pytest.mark.skipif("CMM_SLURM_TIME_LIMIT" not in os.environ, reason="takes two minutes: CMM_SLURM_TIME_LIMIT=1")
def test_slurm_s_own_time_limit(cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    """A job of 64 s at least with a limit of a minute, which is Slurm's least; nobody but Slurm ends its runs."""
    openmpi_only(vendor)
    job = make_job('inject = ["sleep:all:4"]', 'grid = "6x8"', "give-up = 300")
    done = cluster.cmm_slurm("job.toml", *SIZE, "--time", 1, "--warn", 10, "--checkpoint", "kept", "--requeue",
                             "--submit", "--wait", cwd=job.folder, timeout=420)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    number = done.stderr.split("submitted job ")[1].split()[0]
    runs = cluster.completion(number)
    assert [run["JobState"] for run in runs] == [*["PENDING"] * (len(runs) - 1), "COMPLETED"]
    assert len(runs) > 1
    output = cluster.output(number)
    assert output.count("stopped on request (SIGUSR1)") >= len(runs) - 1
    assert output.count("\nqueued again\n") == len(runs) - 1
    report = json.loads(job.report.read_text())
    assert report["verification"]["passed"]
    assert report["checkpoint"]["restored"] > 0
    assert job.inputs.error() < TOLERANCE
    assert not (job.folder / "kept").exists()


def test_a_warned_job_is_queued_again_and_goes_on(cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    openmpi_only(vendor)
    job = make_job('inject = ["sleep:all:0.7"]', 'grid = "4x4"', "give-up = 100")
    number = cluster.sbatch(*SMALL, FOLDER / "preemptible.sbatch", cwd=job.folder)
    kept = job.folder / "checkpoint"
    block = 50 * 38 * 8  # bytes of a result
    deadline = time.monotonic() + 60
    while sum(path.stat().st_size for path in kept.glob("*")) < 3 * block:
        assert time.monotonic() < deadline, cluster.output(number)
        time.sleep(0.05)
    cluster.run("scancel", "-b", "-s", "USR1", number, cwd=job.folder)  # what Slurm does before the time limit
    (state,) = cluster.ended(number, 90)
    output = cluster.output(number)
    assert state.exit_code == 0, output
    assert "\nqueued again\n" in output
    assert "Restarts=1" in cluster.scontrol("show", "job", number)
    report = json.loads(job.report.read_text())
    assert report["checkpoint"]["restored"] >= 3
    assert report["counts"]["results_accepted"] + report["checkpoint"]["restored"] <= 16 + 4
    assert job.inputs.error() < TOLERANCE
    assert np.load(job.inputs.out).shape == (200, 150)
