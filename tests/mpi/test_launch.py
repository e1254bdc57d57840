"""The launcher helper itself: what it starts ends, and what does not end is found and killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mpi.launch import environments, launch, mpirun

# One write a line: launchers interleave what they get.
WORLD = "import sys; from mpi4py import MPI; w = MPI.COMM_WORLD; sys.stdout.write(f'rank {w.rank} of {w.size}\\n')"


def test_a_world_of_the_asked_size() -> None:
    done = mpirun(3, "-c", WORLD)
    assert done.returncode == 0, done
    assert sorted(line for line in done.stdout.splitlines() if line) == [f"rank {rank} of 3" for rank in range(3)]
    assert done.leftovers == []


def test_the_exit_code_is_the_ranks() -> None:
    assert mpirun(2, "-c", "from mpi4py import MPI; MPI.Finalize(); raise SystemExit(64)").returncode == 64


def test_a_frozen_job_is_killed_with_all_its_ranks() -> None:
    with launch(3, "-c", f"{WORLD}; w.Barrier(); import time; time.sleep(600)") as job:
        ranks = job.ranks()
        os.kill(ranks[2], signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(3)
    alive = {pid for pid, _ in environments()}
    assert sorted(ranks) == [0, 1, 2]
    assert not alive & set(ranks.values())


def test_a_failure_on_one_rank_ends_the_world(tmp_path: Path) -> None:
    """The others would wait in the barrier for ever. The rank that failed leaves no file that says otherwise."""
    (tmp_path / "test_one.py").write_text(
        "import pytest\nfrom mpi4py import MPI\n\n@pytest.mark.mpi\ndef test_it():\n"
        "    assert MPI.COMM_WORLD.rank != 1, 'of rank 1'\n    MPI.COMM_WORLD.Barrier()\n"
    )
    done = mpirun(3, "-m", "tests.mpi.ranked", tmp_path, "-q", "-m", "mpi", tmp_path / "test_one.py", timeout=30)
    assert done.returncode == 1, done
    assert "rank 1 of 3 FAILED" in done.stderr, done
    assert "of rank 1" in done.stderr, done
    assert not (tmp_path / "rank1.xml").exists()
    assert done.leftovers == []


@pytest.mark.mpi
def test_comm_is_a_copy_of_the_world(comm) -> None:  # type: ignore[no-untyped-def]
    assert comm.allreduce(1) == comm.size
