"""cmm.matmul in a user's own program: frozen ranks, repeated calls, messages cut small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import mpirun

PROGRAM = """
import json, os, signal, sys, threading, time
import numpy as np
from mpi4py import MPI
import cmm

comm, out = MPI.COMM_WORLD, sys.argv[1]
rng = np.random.default_rng(0)
lines = []
for call in range(4):
    A, B = rng.standard_normal((300, 120)), rng.standard_normal((300, 110))
    inject = ["freeze:2"] if call == 1 else []
    begin = time.monotonic()
    if comm.rank == 0:
        C, report = cmm.matmul(A, B, comm, grid="4x4", seed=call, inject=inject)
        lines.append([time.monotonic() - begin, float(np.abs(C - A.T @ B).max()), report])
    else:
        cmm.matmul(comm=comm, inject=inject)
if comm.rank == 0:
    json.dump(lines, open(out, "w"))
    comm.Abort(0)  # rank 2 is frozen: Finalize would wait for it
time.sleep(30)
"""


def test_a_frozen_rank_is_a_straggler_in_this_call_and_in_the_next(tmp_path: Path) -> None:
    out = tmp_path / "lines.json"
    done = mpirun(5, "-c", PROGRAM, out, timeout=60)
    lines = json.loads(out.read_text())
    assert len(lines) == 4, done
    for number, (seconds, error, report) in enumerate(lines):
        assert report["outcome"] == "complete"
        assert error < 1e-10
        assert seconds < 10
        status = {worker["rank"]: worker["status"] for worker in report["workers"]}
        assert status[2] == ("ok" if number == 0 else "straggler")
    late = [report["workers"][1]["tasks_done"] for _, _, report in lines]
    assert late[0] > 0
    assert late[1:] == [0, 0, 0]


@pytest.mark.parametrize("limit", ["1024", "4096"])
def test_messages_beyond_the_limit_are_cut(tmp_path: Path, limit: str) -> None:
    """Crossing the limit of one message, cheaply: every operand, result and report is sent in pieces."""
    program = (
        "import numpy as np\nfrom mpi4py import MPI\nimport cmm\ncomm = MPI.COMM_WORLD\n"
        "rng = np.random.default_rng(1)\nA, B = rng.standard_normal((2, 90, 70))\n"
        "if comm.rank == 0:\n"
        "    C, report = cmm.matmul(A, B, comm, grid='2x3')\n"
        "    assert np.abs(C - A.T @ B).max() < 1e-11\n    print('right', report['outcome'])\n"
        "else:\n    cmm.matmul(comm=comm)\n"
    )
    done = mpirun(3, "-c", program, timeout=60, env={"CMM_MESSAGE_LIMIT": limit})
    assert done.returncode == 0, done
    assert "right complete" in done.stdout


def test_an_error_in_the_users_own_rank_zero_reaches_the_workers(tmp_path: Path) -> None:
    """The master refuses its input; the workers are told and can go on."""
    program = (
        "import sys\nimport numpy as np\nfrom mpi4py import MPI\nimport cmm\ncomm = MPI.COMM_WORLD\n"
        "try:\n    cmm.matmul(np.ones((3, 2)), np.ones((4, 2)), comm) if comm.rank == 0 else cmm.matmul(comm=comm)\n"
        "except cmm.CmmError as error:\n    sys.stdout.write(f'rank {comm.rank} {int(error.exit_code)}\\n')\n"
    )
    done = mpirun(3, "-c", program, timeout=60)
    assert done.returncode == 0, done
    assert sorted(line for line in done.stdout.splitlines() if "rank" in line) == [f"rank {r} 65" for r in range(3)]
