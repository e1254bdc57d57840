"""Workers, supervisors, the master and the launcher die or freeze: the right C or a clear end, and nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.conftest import Inputs
from tests.mpi.launch import Completed, Launch, launch, mpirun

Make = Callable[..., Inputs]
RUN = ("-m", "cmm.run")
GRID = ("--grid", "4x4", "--tasks", "24")
LIMIT = 1e-12
MOMENTS = ["before", "mid-send", "mid-compute", "decode", "stop", "bye"]
SLOW = ("--grid", "10x10", "--inject", "sleep:all:0.1")  # about 2.5 s with 4 workers


def report_of(inputs: Inputs) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(inputs.report).read_text())
    return loaded


def lost(report: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """rank -> (host, reason) of the workers that the report calls lost."""
    return {entry["rank"]: (entry["host"], entry["reason"]) for entry in report["workers"] if entry["status"] == "lost"}


def check_complete(done: Completed, inputs: Inputs) -> None:
    assert done.returncode == 0, done
    assert not done.leftovers, done
    assert "C is complete" in done.stdout, done
    assert inputs.error() <= LIMIT


@pytest.mark.parametrize("ranks", [(2,), (1, 4)], ids=["one", "two"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_workers_die(make_inputs: Make, tmp_path: Path, moment: str, ranks: tuple[int, ...]) -> None:
    inputs = make_inputs(1201, 999, 801)  # blocks of 400 kB: beyond every eager limit
    named = ",".join(map(str, ranks))
    done = mpirun(6, "-m", "tests.mpi.dying", moment, named, tmp_path, *inputs.flags, *GRID, timeout=60)
    check_complete(done, inputs)
    report = report_of(inputs)
    if moment != "bye":  # by then the report is written
        assert lost(report) == dict.fromkeys(ranks, (socket.gethostname(), "killed by SIGKILL"))
        assert report["leaving"] == "abort"
        assert all(f"{rank} ({socket.gethostname()})" in done.stdout for rank in ranks), done


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
def test_all_workers_die_and_the_master_computes(make_inputs: Make, dispatch: str) -> None:
    inputs = make_inputs(300, 200, 100)
    done = mpirun(4, *RUN, *inputs.flags, *GRID, "--inject", "kill:all", "--dispatch", dispatch, timeout=60)
    check_complete(done, inputs)
    report = report_of(inputs)
    assert report["counts"]["master_computed"] == 16
    assert sorted(lost(report)) == [1, 2, 3]


def test_all_workers_die_and_it_is_given_up(make_inputs: Make) -> None:
    inputs = make_inputs(300, 200, 100)
    flags = ("--grid", "4x4", "--inject", "kill:all", "--give-up", "600")
    done = mpirun(4, *RUN, *inputs.flags, *flags, timeout=60)
    report = report_of(inputs)
    assert done.returncode == 4, done
    assert report["outcome"] == "incomplete"
    assert report["seconds"]["total"] < 10  # nobody is left, so nothing is waited for
    assert "16 missing" in report["message"]
    assert "lost: 1, 2, 3" in report["message"]
    assert not Path(inputs.out).exists()
    assert not done.leftovers


def test_one_freezes_and_one_dies(make_inputs: Make) -> None:
    inputs = make_inputs(701, 499, 301)
    done = mpirun(6, *RUN, *inputs.flags, *GRID, "--inject", "freeze:1", "--inject", "kill:3@0.1", timeout=60)
    check_complete(done, inputs)
    status = {entry["rank"]: entry["status"] for entry in report_of(inputs)["workers"]}
    assert status[1] == "straggler"


def connected(job: Launch, timeout: float = 30) -> None:
    """Wait until rank 0 has heard of all supervisors: the job has begun."""
    deadline = time.monotonic() + timeout
    supervisors = [pid for rank, pid in job.supervisors().items() if rank]
    while not all(has_connection(pid) for pid in supervisors):
        assert time.monotonic() < deadline, job.stderr
        time.sleep(0.01)


def has_connection(pid: int) -> bool:
    """Whether a process has an established TCP connection."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{words[9]}]" for words in lines if words[3] == "01"}
    with contextlib.suppress(OSError):
        for entry in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry) in established:
                    return True
    return False


def test_a_stopped_supervisor_holds_nobody_up(make_inputs: Make) -> None:
    inputs = make_inputs(300, 200, 100)
    with launch(5, *RUN, *inputs.flags, *SLOW) as job:
        connected(job)
        os.kill(job.supervisors()[2], signal.SIGSTOP)
        done = job.wait(60)
    check_complete(done, inputs)
    report = report_of(inputs)
    assert report["leaving"] == "abort"
    assert not lost(report)


def test_a_worker_that_comes_back_is_used_again(make_inputs: Make) -> None:
    inputs = make_inputs(300, 200, 100)
    with launch(5, *RUN, *inputs.flags, "--grid", "16x16", "--inject", "sleep:all:0.1") as job:
        connected(job)
        frozen = job.ranks()[1]
        os.kill(frozen, signal.SIGSTOP)
        time.sleep(2)
        os.kill(frozen, signal.SIGCONT)
        done = job.wait(90)
    check_complete(done, inputs)
    report = report_of(inputs)
    times = [at for at, rank, what, *_ in report["events"] if rank == 1 and what in ("systematic", "repair", "copy")]
    assert times[0] > 1.5  # seconds: none of its results came while it was frozen
    assert len(times) > 2  # the one in work and the prefetched one, and new ones
    assert report["leaving"] == "finalize"


@pytest.mark.parametrize("what", ["launcher", "master", "supervisor of the master", "supervisor of a worker"])
def test_no_orphans(make_inputs: Make, what: str) -> None:
    """Killed for good, the whole job ends at once, with an exit code that says so."""
    inputs = make_inputs(300, 200, 100)
    with launch(5, *RUN, *inputs.flags, "--grid", "20x20", "--inject", "sleep:all:1") as job:
        connected(job)
        victim = {"launcher": lambda: job.process.pid, "master": lambda: job.ranks()[0],
                  "supervisor of the master": lambda: job.supervisors()[0],
                  "supervisor of a worker": lambda: job.supervisors()[2]}[what]()  # fmt: skip
        os.kill(victim, signal.SIGKILL)
        ended = time.monotonic() + 30
        while job.processes() and time.monotonic() < ended:
            time.sleep(0.05)
        assert not job.processes()
        done = job.wait(60)
    assert done.returncode != 0, done
    assert not Path(inputs.out).exists()


def test_a_frozen_rank_and_its_supervisor(make_inputs: Make) -> None:
    """A whole rank that is stopped, as by a batch system or a swapping host."""
    inputs = make_inputs(300, 200, 100)
    with launch(5, *RUN, *inputs.flags, *SLOW) as job:
        connected(job)
        for pid in (job.supervisors()[2], job.ranks()[2]):
            os.kill(pid, signal.SIGSTOP)
        done = job.wait(60)
    check_complete(done, inputs)
    assert {entry["rank"] for entry in report_of(inputs)["workers"] if entry["status"] == "straggler"} >= {2}


def test_without_supervisors_it_is_said_at_the_start(make_inputs: Make) -> None:
    inputs = make_inputs(100, 60, 50)
    done = mpirun(3, *RUN, *inputs.flags, env={"CMM_SUPERVISE": "0"}, timeout=60)
    check_complete(done, inputs)
    assert "warning: the death of rank 1" in done.stderr, done
    assert any("the death of rank 1" in text for text in report_of(inputs)["warnings"])


def test_a_death_before_the_job_ends_it_at_once(make_inputs: Make) -> None:
    """Inside MPI_Init nobody can be saved; that must not become a hang."""
    inputs = make_inputs(100, 60, 50)
    with launch(4, *RUN, *inputs.flags, *SLOW) as job:
        os.kill(job.ranks()[1], signal.SIGKILL)
        try:
            done = job.wait(30)
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"hung: {error.stderr}")
    assert done.returncode != 0 or "C is complete" in done.stdout  # the latter when the machine was slow to kill
    assert not done.leftovers, done
