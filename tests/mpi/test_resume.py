"""Jobs that are stopped, killed or run out of disk, and go on: the right C, and nothing accepted is computed again."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

from cmm.runtime.records import MAGIC
from tests.mpi.conftest import Array, Inputs
from tests.mpi.launch import Completed, Launch, launch, mpirun, python, vendor

Make = Callable[..., Inputs]
RUN = ("-m", "cmm.run")
SLOW = ("--grid", "8x8", "--inject", "sleep:all:0.04")  # about a second with 4 ranks
LIMIT = 1e-12
TIMEOUT = 60.0


class Job:
    """One line, as a batch system would run it again and again."""

    def __init__(self, inputs: Inputs, *flags: str, ranks: int = 4) -> None:
        self.inputs, self.ranks = inputs, ranks
        self.folder = inputs.folder / "checkpoint"
        self.line = (*RUN, *inputs.flags, "--checkpoint", str(self.folder), "--resume", *flags)

    def start(self, *more: str, ranks: int | None = None, **options: Any) -> Any:
        return launch(ranks or self.ranks, *self.line, *more, **options)

    def run(self, *more: str, ranks: int | None = None, **options: Any) -> Completed:
        return mpirun(ranks or self.ranks, *self.line, *more, timeout=TIMEOUT, **options)

    @property
    def saved(self) -> int:
        """Results on disk."""
        try:
            return (self.folder / "results").read_bytes().count(MAGIC)
        except OSError:
            return 0

    def wait_for(self, job: Launch, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT
        while self.saved < count:
            assert job.process.poll() is None, job.stderr
            assert time.monotonic() < deadline, job.stderr
            time.sleep(0.01)

    def interrupt(self, number: signal.Signals, target: str, count: int) -> Completed:
        """Start, wait for some results, send a signal."""
        with self.start() as job:
            victims = {"launcher": lambda: job.process.pid, "master": lambda: job.ranks()[0],
                       "supervisor": lambda: job.supervisors()[0]}  # fmt: skip
            pid = victims[target]()
            self.wait_for(job, count)
            os.kill(pid, number)
            try:
                return job.wait(TIMEOUT)  # type: ignore[no-any-return]
            finally:
                ended = time.monotonic() + 30
                while job.processes() and time.monotonic() < ended:
                    time.sleep(0.02)
                assert not job.processes()

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(Path(self.inputs.report).read_text())
        return loaded

    def tasks(self) -> list[int]:
        """Numbers of the results on disk, as a reader of the file finds them."""
        raw = (self.folder / "results").read_bytes()
        found = []
        for part in raw.split(MAGIC)[1:]:
            start = part.index(b'{"task":')
            found.append(json.loads(part[start : part.index(b"}", start) + 1])["task"])
        return found


def computed(report: dict[str, Any]) -> set[int]:
    """Tasks that this run computed and used."""
    kinds = ("systematic", "coded", "repair", "copy", "local")
    return {task for _, _, what, task, _ in report["events"] if what in kinds}


def check_complete(job: Job, done: Completed, limit: float = LIMIT) -> None:
    assert done.returncode == 0, done
    assert "C is complete" in done.stdout, done
    assert not done.leftovers, done
    assert job.inputs.error() <= limit
    assert job.report["outcome"] == "complete"
    assert not job.folder.exists()  # removed once C and the report are on disk


def check_resumed(job: Job, kept: list[int], done: Completed, limit: float = LIMIT) -> None:
    check_complete(job, done, limit)
    used = job.report["checkpoint"]
    assert used["restored"] == len(kept) > 0
    assert used["resumed_from"]
    assert not set(kept) & computed(job.report)
    assert job.report["decoding"]["results_used"] == len(kept) + used["written"]
    assert f"{len(kept)} results were there" in done.stdout
    assert f"{len(kept)} results of an earlier run" in done.stderr


# ---- signals -----------------------------------------------------------------------------------------------------


def test_sigusr1_ends_in_order_and_the_same_line_goes_on(make_inputs: Make) -> None:
    """And a run without an interruption, with the same 64 blocks, gives the same bits."""
    job = Job(make_inputs(300, 200, 100), *SLOW)
    done = job.interrupt(signal.SIGUSR1, "launcher", 9)
    assert done.returncode == 75, done
    assert not done.leftovers
    assert job.report["outcome"] == "interrupted"
    assert job.report["exit_code"] == 75
    kept = job.tasks()
    assert job.report["checkpoint"]["written"] == len(kept)
    assert f"stopped on request (SIGUSR1). {len(kept)} results in {job.folder} are kept" in done.stderr
    assert "the same command." in done.stderr
    check_resumed(job, kept, job.run())
    assert "nothing is left to do" in job.run().stderr
    if not job.report["decoding"]["missing_blocks"]:
        resumed = Path(job.inputs.out).read_bytes()
        check_complete(job, job.run("--overwrite", "--no-resume", "--inject", "sleep:all:0"))
        assert job.report["checkpoint"]["restored"] == 0
        assert Path(job.inputs.out).read_bytes() == resumed


@pytest.mark.parametrize(("number", "target"), [
    (signal.SIGUSR1, "master"), (signal.SIGTERM, "launcher"), (signal.SIGKILL, "master"),
], ids=["USR1 master", "TERM launcher", "KILL master"])  # fmt: skip
def test_whatever_ends_a_job_it_goes_on(make_inputs: Make, number: signal.Signals, target: str) -> None:
    job = Job(make_inputs(300, 200, 100), *SLOW)
    done = job.interrupt(number, target, 7)
    assert done.returncode != 0, done
    if number is not signal.SIGKILL:
        assert job.report["outcome"] == "interrupted"
        if target == "master" or vendor() == "mpich":  # Open MPI's mpirun kills the ranks 0.2 s later and exits with 1
            assert done.returncode == 75, done
    kept = job.tasks()
    check_resumed(job, kept, job.run())


def test_a_lost_worker_does_not_spoil_an_ordered_end(make_inputs: Make) -> None:
    """Its supervisor gets the launcher's signal too, and must not end the job before rank 0 does."""
    job = Job(make_inputs(300, 200, 100), *SLOW, ranks=5)
    with job.start() as run:
        job.wait_for(run, 5)
        os.kill(run.ranks()[2], signal.SIGKILL)
        job.wait_for(run, job.saved + 5)
        run.process.send_signal(signal.SIGUSR1)
        done = run.wait(TIMEOUT)
    assert done.returncode == 75, done
    assert job.report["outcome"] == "interrupted"
    assert [entry["rank"] for entry in job.report["workers"] if entry["status"] == "lost"] == [2]
    check_resumed(job, job.tasks(), job.run())


def test_without_a_checkpoint_it_says_that_nothing_is_kept(make_inputs: Make) -> None:
    inputs = make_inputs(300, 200, 100)
    with launch(4, *RUN, *inputs.flags, "--grid", "10x10", "--inject", "sleep:all:0.3") as job:
        os.kill(job.ranks()[0], signal.SIGUSR1)  # whatever it is doing: the job takes 10 s
        done = job.wait(TIMEOUT)
    assert done.returncode == 75, done
    assert "nothing is kept, for want of --checkpoint" in done.stderr
    assert not Path(inputs.out).exists()
    again = mpirun(4, *RUN, *inputs.flags, "--grid", "10x10", timeout=TIMEOUT)  # its report is not in the way
    assert again.returncode == 0, again
    again = mpirun(4, *RUN, *inputs.flags, "--grid", "10x10", timeout=TIMEOUT)  # that of a complete job is
    assert again.returncode == 73, again


def test_a_single_rank_stops_too(make_inputs: Make) -> None:
    """Ctrl-C, as a terminal sends it."""
    job = Job(make_inputs(1500, 1400, 1300), "--grid", "20x20")
    process = subprocess.Popen([sys.executable, *job.line], stderr=subprocess.PIPE, text=True)
    try:
        while job.saved < 5 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 75, said
    check_resumed(job, job.tasks(), python(*job.line, timeout=TIMEOUT))


# ---- what may change, and what may not ---------------------------------------------------------------------------


def stopped(make_inputs: Make, *flags: str, size: tuple[int, int, int] = (300, 200, 100), **options: Any) -> Job:
    """A job with some results on disk."""
    job = Job(make_inputs(*size, **options), *(flags or SLOW))
    assert job.interrupt(signal.SIGUSR1, "master", 5).returncode == 75
    return job


@pytest.mark.one_mpi
def test_workers_tolerance_and_checks_may_change(make_inputs: Make) -> None:
    """The default grid depends on the number of workers: it stays what it was."""
    job = stopped(make_inputs, "--inject", "sleep:all:0.3")
    kept, grid = job.tasks(), job.report["code"]["grid"]
    done = job.run("--tolerance", "1e-6", "--verify", "final", "--threads", "2", "--give-up", "100", ranks=2)
    check_resumed(job, kept, done)
    assert job.report["code"]["grid"] == grid == "4x3"


@pytest.mark.one_mpi
def test_inputs_and_parameters_may_not(make_inputs: Make) -> None:
    """And without --resume nothing is touched."""
    job = stopped(make_inputs)
    kept = job.tasks()
    done = job.run("--seed", "5")
    assert done.returncode == 64, done
    assert "cmm: --seed: must be as it was when the checkpoint was begun; got 5, it was 0" in done.stderr, done
    done = job.run("--no-resume", "--overwrite")
    assert done.returncode == 73, done
    assert "Pass --resume" in done.stderr
    A = job.inputs.A.copy()
    A[17, 3] += 1e-9
    np.save(job.inputs.a, A)
    done = job.run()
    assert done.returncode == 65, done
    assert "--a: must be as it was when the checkpoint was begun; got other elements" in done.stderr
    np.save(job.inputs.a, job.inputs.A)
    check_resumed(job, kept, job.run())


@pytest.mark.one_mpi
def test_the_good_part_of_a_damaged_checkpoint_is_used(make_inputs: Make) -> None:
    job = stopped(make_inputs)
    kept, results = job.tasks(), job.folder / "results"
    raw = bytearray(results.read_bytes())
    raw[raw.index(MAGIC, 1) + 1000] ^= 4
    kept.pop(1)
    results.write_bytes(raw[:-50] + random.Random(1).randbytes(3000))
    kept.pop()
    (job.folder / "plan.json").write_bytes(b"\0" * 300)
    done = job.run()
    check_resumed(job, kept, done)
    said = " ".join(job.report["warnings"])
    assert "plan.json is missing or damaged" in said
    assert "2 damaged result(s) and a torn end of 2950 bytes" in said
    assert done.stderr.count("cmm: warning: ") >= 2


@pytest.mark.one_mpi
def test_results_that_were_not_checked_are_checked_when_they_are_used(make_inputs: Make) -> None:
    job = stopped(make_inputs, *SLOW, "--verify", "final", "--inject", "corrupt:1")
    assert job.report["checkpoint"]["written"] == len(job.tasks())
    done = job.run("--verify", "all", "--inject", "sleep:all:0")
    check_complete(job, done)
    assert 0 < job.report["checkpoint"]["restored"] < 64
    assert "were not checked in the earlier run, are wrong" in done.stderr
    assert job.report["verification"]["checked_results"] >= 64


@pytest.mark.one_mpi
def test_a_wrong_c_takes_its_checkpoint_along(make_inputs: Make) -> None:
    """Its results are in it, and would give the same C again and again."""
    job = Job(make_inputs(300, 200, 100), "--grid", "4x4", "--verify", "final", "--inject", "corrupt:1")
    done = job.run()
    assert done.returncode == 3, done
    assert "is removed: its results are not to be trusted" in done.stderr
    assert not job.folder.exists()
    done = job.run("--verify", "all")
    check_complete(job, done)


# ---- requeued lines ----------------------------------------------------------------------------------------------


@pytest.mark.one_mpi
def test_a_line_that_is_complete_ends_at_once(make_inputs: Make) -> None:
    job = Job(make_inputs(300, 200, 100), "--grid", "4x4")
    check_complete(job, job.run())
    before = [os.stat(path).st_mtime_ns for path in (job.inputs.out, job.inputs.report)]
    done = job.run()
    assert done.returncode == 0, done
    assert "nothing is left to do" in done.stderr
    assert "C is complete" in done.stdout
    assert before == [os.stat(path).st_mtime_ns for path in (job.inputs.out, job.inputs.report)]
    os.utime(job.inputs.out)  # somebody has been there: no proof any more
    assert job.run().returncode == 73


@pytest.mark.one_mpi
def test_the_same_line_twice_at_once(make_inputs: Make) -> None:
    """The second waits for the first, which ends meanwhile, and finds the job complete."""
    job = Job(make_inputs(300, 200, 100), *SLOW)
    with job.start() as first:
        job.wait_for(first, 20)
        second = job.run()
        done = first.wait(TIMEOUT)
    assert done.returncode == 0, done
    assert second.returncode == 0, second
    assert "nothing is left to do" in second.stderr
    check_complete(job, second)
    assert job.report["checkpoint"]["restored"] == 0


@pytest.mark.one_mpi
@pytest.mark.parametrize("flags", [("--overwrite",), ("--no-resume", "--overwrite")])
def test_beside_another_job_its_report_is_left_alone(make_inputs: Make, flags: tuple[str, ...]) -> None:
    job = stopped(make_inputs)
    with (job.folder / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = os.stat(job.inputs.report).st_mtime_ns
        done = job.run(*flags)
        assert done.returncode == 73, done
        assert "--checkpoint: must not be in use by another job" in done.stderr
        assert os.stat(job.inputs.report).st_mtime_ns == before
    os.unlink(job.inputs.report)
    done = job.run("--no-resume")  # a refusal that is this job's own is reported
    assert done.returncode == 73, done
    assert "must be new or empty without --resume" in job.report["message"]


@pytest.mark.parametrize("moment", ["delivering", "reported"])
def test_killed_between_c_and_the_end_the_line_ends_well(make_inputs: Make, tmp_path: Path, moment: str) -> None:
    """C is in its place (or even the report), the checkpoint still there."""
    job = Job(make_inputs(300, 200, 100), "--grid", "4x4")
    script = tmp_path / "dying.py"
    where = {"delivering": "Leader._write_report", "reported": "Leader._remove_checkpoint"}[moment]
    script.write_text("import os, signal, sys\nimport cmm.run\nfrom cmm.runtime import launch\nfrom mpi4py import rc\n"
                      "rc.initialize = False\n"
                      "def die(*args): os.kill(os.getpid(), signal.SIGKILL)\n"
                      "original = cmm.run._run\n"
                      "def run(*args):\n"
                      "    rc.initialize = True\n"
                      "    from cmm.runtime.leader import Leader\n"
                      f"    {where} = die\n"
                      "    return original(*args)\n"
                      "cmm.run._run = run\n"
                      "sys.exit(cmm.run.main(sys.argv[1:]))\n")  # fmt: skip
    done = mpirun(4, script, *job.line[2:], timeout=TIMEOUT)
    assert done.returncode != 0, done
    assert Path(job.inputs.out).exists()
    assert job.folder.exists()
    assert Path(job.inputs.report).exists() == (moment == "reported")
    done = job.run()
    check_complete(job, done)
    assert ("nothing is left to do" in done.stderr) == (moment == "reported")


@pytest.mark.one_mpi
def test_a_given_up_job_goes_on_with_more_workers(make_inputs: Make) -> None:
    job = Job(make_inputs(300, 200, 100), "--grid", "6x6", "--inject", "sleep:all:0.1")
    with job.start("--give-up", "0", ranks=3) as run:
        job.wait_for(run, 5)
        pids = run.ranks()
        for rank in (1, 2):
            os.kill(pids[rank], signal.SIGKILL)
        done = run.wait(TIMEOUT)
    assert done.returncode == 4, done
    assert f"results in {job.folder} are kept" in done.stderr
    check_resumed(job, job.tasks(), job.run())


# ---- every kind of job -------------------------------------------------------------------------------------------


@pytest.mark.one_mpi
@pytest.mark.parametrize(("flags", "dtype"), [
    (("--code", "rkrp", "--grid", "6x6", "--op", "H"), "c8"),
    (("--code", "entangled", "--grid", "2x3x3", "--param", "nodes=circle", "--tasks", "30"), "f8"),
], ids=["complex64", "complex coefficients, split"])  # fmt: skip
def test_codes_and_dtypes(make_inputs: Make, flags: tuple[str, ...], dtype: str) -> None:
    job = Job(make_inputs(150, 120, 90, dtype=dtype), *flags, "--inject", "sleep:all:0.1")
    assert job.interrupt(signal.SIGUSR1, "master", 4).returncode == 75
    kept = job.tasks()
    done = job.run()
    assert done.returncode == 0, done
    assert job.report["checkpoint"]["restored"] == len(kept) >= 4
    assert not set(kept) & computed(job.report)
    assert job.inputs.error(conjugate=dtype == "c8") < (1e-3 if dtype == "c8" else 1e-9)


def stop_and_resume(job: Job) -> Array:
    """C of a job that was stopped in between."""
    assert job.interrupt(signal.SIGUSR1, "master", 4).returncode == 75
    kept = job.tasks()
    done = job.run()
    assert done.returncode == 0, done
    assert job.report["checkpoint"]["restored"] == len(kept)
    C: Array = np.load(job.inputs.out)
    return C


@pytest.mark.one_mpi
def test_integers(make_inputs: Make) -> None:
    inputs = make_inputs(200, 120, 90)
    A, B = np.rint(100 * inputs.A).astype("i4"), np.rint(100 * inputs.B).astype("i4")
    np.save(inputs.a, A)
    np.save(inputs.b, B)
    C = stop_and_resume(Job(inputs, "--grid", "5x5", "--inject", "sleep:all:0.1"))
    assert C.dtype == np.int64
    assert np.array_equal(C, A.astype("i8").T @ B.astype("i8"))


@pytest.mark.one_mpi
def test_a_sparse_matrix_and_one_with_nan_and_infinity(make_inputs: Make) -> None:
    inputs = make_inputs(200, 120, 90)
    A = sp.random_array((200, 120), density=0.05, rng=np.random.default_rng(0))
    B = inputs.B
    B[3, 7], B[5, 2] = np.nan, np.inf
    mmwrite(inputs.folder / "A.mtx", A)
    np.save(inputs.b, B)
    job = Job(inputs, "--grid", "5x5", "--inject", "sleep:all:0.1")
    job.line = tuple(str(inputs.folder / "A.mtx") if word == inputs.a else word for word in job.line)
    with np.errstate(invalid="ignore"):
        assert np.allclose(stop_and_resume(job), A.toarray().T @ B, rtol=1e-9, atol=1e-9, equal_nan=True)


# ---- a full disk -------------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from cmm.run import main
from cmm.runtime.checkpoint import Checkpoint

size, begin = int(sys.argv.pop(1)), Checkpoint.begin

def limited(*args, **named):  # on rank 0, and not earlier: an MPI library may need larger files of shared memory
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    begin(*args, **named)

Checkpoint.begin = limited
sys.exit(main(sys.argv[1:]))
"""


def limited(job: Job, size: int, *flags: str) -> Completed:
    """Files of this run cannot grow beyond `size` bytes."""
    return mpirun(job.ranks, "-c", LIMITED, str(size), *job.line[2:], *flags, timeout=TIMEOUT)


@pytest.mark.one_mpi
def test_a_checkpoint_that_does_not_fit_does_not_stop_the_job(make_inputs: Make) -> None:
    """C is 160 kB, the 16 results with their headers a little more."""
    job = Job(make_inputs(300, 200, 100), "--grid", "4x4")
    done = limited(job, 161_000)
    check_complete(job, done)
    assert "no further results are saved" in done.stderr
    assert "C is complete" in done.stdout
    assert any("no further results are saved" in text for text in job.report["warnings"])
    assert job.report["checkpoint"]["written"] == 15


def test_when_c_does_not_fit_nothing_is_lost(make_inputs: Make) -> None:
    """Results of 10 kB each, C of 160 kB: with both limited to 100 kB some results are saved, and C is not written."""
    job = Job(make_inputs(300, 200, 100), "--grid", "4x4")
    done = limited(job, 100_000)
    assert done.returncode == 73, done
    assert not Path(job.inputs.out).exists()
    assert not list(job.inputs.folder.glob(".cmm-*"))
    kept = job.tasks()
    assert f"{len(kept)} results in {job.folder} are kept" in done.stderr
    assert len(kept) == 9
    check_resumed(job, kept, job.run())


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounts a file system")
def test_a_file_system_that_is_full(make_inputs: Make, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        job = Job(make_inputs(600, 400, 300), "--grid", "8x8", "--inject", "sleep:all:0.05")
        job.folder = place / "ck"
        job.line = tuple(str(job.folder) if word.endswith("/checkpoint") else word for word in job.line)
        (place / "other").write_bytes(bytes(700_000))
        done = job.run()
        assert done.returncode == 73, done  # known before the work
        assert "--checkpoint: needs" in done.stderr
        (place / "other").write_bytes(b"")
        with job.start() as run:
            job.wait_for(run, 10)
            (place / "other").write_bytes(bytes(600_000))  # somebody else takes the room
            done = run.wait(TIMEOUT)
        assert "no further results are saved" in done.stderr
        check_complete(job, done)
    finally:
        subprocess.run(["umount", place], check=True)
