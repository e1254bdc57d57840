"""What the launchers' variables mean, and who speaks."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cmm.core.errors import InputMissingError, UsageError
from cmm.runtime import launch
from cmm.runtime.launch import Launch, check_world, detect, refuse

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}
VARIABLES = {*OPEN_MPI, *MPICH, *SLURM, "PMIX_RANK"}


@pytest.mark.parametrize(
    ("environ", "rank", "size", "local"),
    [
        ({}, None, None, None),
        (OPEN_MPI, 3, 6, 1),
        (MPICH, 2, 4, 0),
        (SLURM, 1, 2, 1),
        ({**OPEN_MPI, **SLURM}, 3, 6, 1),  # mpirun in an allocation: Slurm's count daemons
        ({**MPICH, **SLURM}, 2, 4, 0),
        ({**OPEN_MPI, **MPICH}, 3, 6, 1),
        ({"PMIX_RANK": "5", **SLURM}, 5, 2, 1),  # srun --mpi=pmix: the size is Slurm's
        ({"PMIX_RANK": "5"}, 5, None, None),
        ({"OMPI_COMM_WORLD_SIZE": "6", **SLURM}, None, None, None),  # an MPI that gives no rank: not Slurm's either
        ({**SLURM, "SLURM_PTY_PORT": "36297"}, None, None, None),  # a shell of srun --pty: the other tasks do not run
        ({**OPEN_MPI, **SLURM, "SLURM_PTY_PORT": "36297"}, 3, 6, 1),  # mpirun in it
        ({"SLURM_PROCID": "0"}, None, None, None),  # a batch script without srun
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, None, None, None),
        ({"PMI_RANK": "-1", "PMI_SIZE": "4"}, None, None, None),
        ({"PMI_RANK": "", "PMI_SIZE": ""}, None, None, None),
    ],
)
def test_rank_and_size(environ: dict[str, str], rank: int | None, size: int | None, local: int | None) -> None:
    found = detect(environ)
    assert (found.rank, found.size, found.local_rank) == (rank, size, local)
    assert found.first == (rank is None or rank == 0)


@pytest.fixture
def as_launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch, "SILENT_WAIT", 0.0)
    return monkeypatch


def give(patch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        patch.setenv(name, value)


def test_a_mismatched_launcher_is_refused(as_launched: pytest.MonkeyPatch) -> None:
    check_world(1)
    check_world(7)  # no launcher: nothing to compare with
    give(as_launched, OPEN_MPI)
    check_world(6)
    with pytest.raises(UsageError, match=r"Open MPI's mpirun started 6 ranks, but MPI sees 1.*Use the mpirun"):
        check_world(1)


@pytest.mark.parametrize("environ", [{}, {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"}, {**MPICH, "PMI_RANK": "0"}])
def test_the_first_rank_speaks(as_launched: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
                               environ: dict[str, str]) -> None:  # fmt: skip
    give(as_launched, environ)
    assert refuse(UsageError("--x", "must be y", "z", "Use y.")) == 64
    out, err = capfd.readouterr()
    assert (out, err) == ("", "cmm: --x: must be y; got z. Use y.\n")


@pytest.mark.parametrize("environ", [OPEN_MPI, MPICH, SLURM])
def test_the_others_are_silent(as_launched: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
                               environ: dict[str, str]) -> None:  # fmt: skip
    give(as_launched, environ)
    assert refuse(UsageError("--x", "must be y", "z", "Use y.")) == 64
    assert capfd.readouterr() == ("", "")


def test_one_rank_on_each_other_node_speaks_of_what_is_missing_there(
    as_launched: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    error = InputMissingError("JOB.toml", "must be a readable file", "j", "No such file.")
    give(as_launched, MPICH)
    assert refuse(error, everywhere=False) == 66
    assert capfd.readouterr().err.startswith(f"cmm: on {socket.gethostname()}: JOB.toml: ")
    give(as_launched, {"MPI_LOCALRANKID": "1"})
    assert refuse(error, everywhere=False) == 66
    assert capfd.readouterr().err == ""


def test_the_environment_is_read_when_asked(as_launched: pytest.MonkeyPatch) -> None:
    assert launch.my_rank() is None
    give(as_launched, OPEN_MPI)
    assert (launch.my_rank(), launch.world_size()) == (3, 6)
    assert detect() == Launch(3, 6, 1, "Open MPI's mpirun")
    assert "OMPI_COMM_WORLD_RANK" in os.environ


def interrupt() -> int:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        return launch.interrupted()


def test_ctrl_c_before_the_job_is_one_line_and_75(capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert interrupt() == 75
    assert capsys.readouterr().err == "cmm: interrupted before the job began\n"


def test_ctrl_c_is_left_to_a_hook_that_ends_the_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)
    with pytest.raises(KeyboardInterrupt):
        interrupt()


# ---- streams that are closed or full -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    rng = np.random.default_rng(1)
    for name, columns in (("A", 12), ("B", 9)):
        np.save(folder / f"{name}.npy", rng.standard_normal((20, columns)))
    return folder


@pytest.mark.parametrize("streams", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"])
def test_a_job_does_not_need_anybody_who_listens(matrices: Path, streams: str) -> None:
    """And no file of the job takes the place of a closed stream."""
    for path in matrices.glob("C.npy*"):
        path.unlink()
    line = f"{shlex.quote(sys.executable)} -m cmm.run --a A.npy --b B.npy --out C.npy --progress bar {streams}"
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(["sh", "-c", line], cwd=matrices, env=environ, timeout=60, check=False)
    assert done.returncode == 0
    A, B, C = (np.load(matrices / f"{name}.npy", allow_pickle=False) for name in "ABC")
    limit = 20 * np.finfo(float).eps * np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
    assert (np.abs(C - A.T @ B) <= limit).all()
    assert json.loads((matrices / "C.npy.report.json").read_text())["outcome"] == "complete"
    done = subprocess.run(["sh", "-c", f"{line} --overwrite --a none.npy"], cwd=matrices, env=environ, timeout=60,
                          check=False)  # fmt: skip
    assert done.returncode == 66
