"""Results of an earlier job, late receivers, jobs that do not fit into memory, and what stays in shared memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.processes import SharedMemory
from tests.mpi.conftest import Inputs
from tests.mpi.launch import launch, mpirun, python, vendor

STALE = """
import time
import numpy as np
from mpi4py import MPI
from cmm.runtime.link import MasterLink
from cmm.runtime.protocol import Header, Up
from cmm.runtime.transport import UP, Outgoing

comm, dtype = MPI.COMM_WORLD.Dup(), np.dtype(float)
if comm.rank == 0:
    link = MasterLink(comm, ["here", "here"])
    link.job = 5
    link.open((4, 3), dtype)
    found, until = [], time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < until:
        found += link.poll()
    print([(arrival.header.job, arrival.header.task, float(arrival.blocks[0][0, 0])) for arrival in found],
          "discarded", link.discarded, flush=True)
    link._close()
else:
    sends = []
    for job, task in ((4, 7), (5, 7), (3, 1), (5, 8)):
        header = Header(Up.RESULT, job, task, 1, 2, 4, 3)
        sends.append(Outgoing(comm, 0, UP, header, [np.full((4, 3), 10.0 * job + task)]))
    while not all([item.test() for item in sends]):
        time.sleep(1e-3)
"""


def test_results_of_an_earlier_job_are_dropped_by_their_number() -> None:
    """Same shape, same task, another job: received, so that the sender is not held up, counted and not used."""
    done = mpirun(2, "-c", STALE, timeout=60)
    assert done.returncode == 0, done
    assert "[(5, 7, 57.0), (5, 8, 58.0)] discarded 2" in done.stdout, done


@pytest.mark.parametrize("verify", ["final", "none"])
def test_an_exact_product_from_wrong_results_is_unverified_and_not_inaccurate(
    make_inputs: Callable[..., Inputs], verify: str
) -> None:
    """The remedy is a check of the results and no other tolerance."""
    inputs = make_inputs(60, 30, 20, dtype="i8")
    done = mpirun(3, "-m", "cmm.run", *inputs.flags, "--verify", verify, "--inject", "corrupt:1:1", timeout=60)
    assert done.returncode == 3, done
    assert "--verify all, which finds a worker that sends wrong ones" in done.stderr


LATE = """
import time, weakref
import numpy as np
from mpi4py import MPI
from cmm.runtime.protocol import TAG_DOWN, TAG_DOWN_DATA, Down, Header
from cmm.runtime.transport import DOWN, Outgoing, keep_unfinished, unfinished

comm = MPI.COMM_WORLD.Dup()
if comm.rank == 0:
    items = [Outgoing(comm, 1, DOWN, Header(Down.TASK, 1), [np.zeros(1 << 20)]) for _ in range(3)]
    seen = [weakref.ref(item) for item in items]
    keep_unfinished(items)
    kept = unfinished()
    del items
    alive = sum(ref() is not None for ref in seen)
    comm.Barrier()
    until = time.monotonic() + 20
    while unfinished() and time.monotonic() < until:
        time.sleep(1e-3)
    print(kept, alive, unfinished(), sum(ref() is not None for ref in seen), flush=True)
else:
    comm.Barrier()
    for _ in range(3):
        for tag, array in ((TAG_DOWN, np.zeros(16, np.int64)), (TAG_DOWN_DATA, np.zeros(1 << 20))):
            comm.Recv([array.view(np.uint8), MPI.BYTE], 0, tag)
"""


def test_what_a_frozen_worker_received_late_is_freed() -> None:
    """Otherwise every freeze would cost rank 0 the buffers that were on their way."""
    done = mpirun(2, "-c", LATE, timeout=60)
    assert done.returncode == 0, done
    assert "True 3 False 0" in done.stdout, done


MEMORY = """
from types import SimpleNamespace
import numpy as np
from cmm.core.errors import DataError
from cmm.core.grid import Grid
from cmm.runtime import memory
from cmm.runtime.master import Clock
from cmm.runtime.report import Record
from cmm.runtime.session import Options, Session, as_source

A, B = np.ones((50, 4000)), np.ones((50, 3000))
for workers, hosts, near in ((0, ["n1"], 0), (3, ["n1", "n1", "n2", "n1"], 2)):
    link = SimpleNamespace(workers=workers) if workers else None
    session = Session(as_source(A, "--a"), as_source(B, "--b"), Options(grid=Grid(4, 4)), link, Record(), Clock())
    plan = memory.forecast_of(session)
    assert plan.c == 8 * 4000 * 3000 and (plan.worker > 0) == (workers > 0)
    need = plan.c + plan.coded + plan.receiving + near * plan.worker
    assert memory.least(session, plan) == plan.c + plan.coded + plan.receiving <= plan.c + plan.beyond
    memory.available = lambda: need
    memory.check_memory(session, hosts)
    memory.available = lambda: need - 1
    try:
        memory.check_memory(session, hosts)
    except DataError as error:
        print(int(error.exit_code), error)
"""


def test_a_job_that_does_not_fit_is_refused_with_the_parts_it_needs() -> None:
    done = python("-c", MEMORY)
    assert done.returncode == 0, done
    alone, shared = done.stdout.splitlines()
    assert alone.startswith("65 --a, --b: must leave the job within the ")
    assert "workers" not in alone
    assert "for rank 0 (C 96 MB)" in alone
    assert "each of 2 workers on its node" in shared
    assert "--dry-run" in shared


@pytest.mark.parametrize("inject", ["freeze:2", "kill:1", "kill:all"])
def test_an_aborted_job_leaves_nothing_in_shared_memory(make_inputs: Callable[..., Inputs], inject: str) -> None:
    inputs = make_inputs(300, 200, 100)
    words = ("-m", "cmm.run", *inputs.flags, "--grid", "4x4", "--inject", inject, "--inject", "sleep:all:0.05")
    with launch(4, *words) as job, SharedMemory(job.processes) as shared:
        done = job.wait(60)
    assert done.returncode == 0, done
    assert shared.leftovers() == []


def test_a_single_rank_leaves_nothing_in_shared_memory(make_inputs: Callable[..., Inputs]) -> None:
    inputs = make_inputs(300, 200, 100)
    program = (
        "import os, sys, cmm.run\nfrom pathlib import Path\n"
        "code = cmm.run.main(sys.argv[1:])\n"
        "names = {line.split(maxsplit=5)[-1] for line in Path('/proc/self/maps').read_text().splitlines()}\n"
        "print(code, [name for name in names if name.startswith('/dev/shm/') and os.path.exists(name)])\n"
    )
    done = python("-c", program, *inputs.flags, "--grid", "2x2")
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == "0 []", (vendor(), done)
