"""A task pool in mpi4py, as strong as one writes it without coding: the rival to beat.

Every worker has A and B memory-mapped; a task is a block of C, named by its number alone, so nothing but numbers goes
out and nothing but results comes back. Two tasks are in flight to every worker. With --copies, an idle worker gets a
copy of the task that has been out longest among those with the fewest holders (speculative execution), and the first
result counts.
With --ulfm (mpirun --with-ft ulfm) a dead worker's tasks are handed out again; otherwise a death ends the job.
The end is a clean MPI_Finalize, which waits for every worker, or with --abort MPI_Abort(0) once C is on disk.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from benchmarks.rivals.programs.common import Matrix, begin, mapped, parser, ready, tiles

TAG_TASK, STOP = 1, -1
IN_FLIGHT = 2
NAP = 2e-4  # seconds between looks: a spinning rank would take a core from a worker


def main() -> None:
    parse = parser(__doc__)
    for flag in ("--copies", "--ulfm", "--abort"):
        parse.add_argument(flag, action="store_true")
    options = parse.parse_args()
    comm = MPI.COMM_WORLD
    if options.ulfm:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Barrier()
    if comm.rank:
        work(comm, options)
        return
    start = time.perf_counter()
    A, B = mapped(options)
    pool = Pool(comm, tiles(options, A.shape[1], B.shape[1]), np.zeros((A.shape[1], B.shape[1])), options.copies)
    pool.run()
    ready(options, start, pool.C, copies=pool.copies)
    if options.abort:
        comm.Abort(0)
    pool.stop()


# ---- the master --------------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """The master's books: what waits, who holds what since when."""

    comm: MPI.Comm
    blocks: list[tuple[slice, slice]]
    C: Matrix
    speculate: bool
    copies: int = 0
    holders: dict[int, list[int]] = field(default_factory=dict)  # task -> workers, in order of issue
    sends: list[MPI.Request] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)  # until their sends are complete

    def __post_init__(self) -> None:
        self.queue = deque(range(len(self.blocks)))
        self.done: set[int] = set()
        self.workers = list(range(1, self.comm.size))
        largest = max((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in self.blocks)
        self.buffers = {w: np.zeros(largest) for w in self.workers}
        self.requests: dict[int, MPI.Request] = {}

    def run(self) -> None:
        for _ in range(IN_FLIGHT):
            for worker in self.workers:
                self.feed(worker)
        for worker in self.workers:
            self.listen(worker)
        while len(self.done) < len(self.blocks):
            heard = [self.heard(worker) for worker in list(self.requests)]
            if not any(heard):
                time.sleep(NAP)

    def listen(self, worker: int) -> None:
        self.requests[worker] = self.comm.Irecv(self.buffers[worker], worker)

    def heard(self, worker: int) -> bool:
        """Take in a result of this worker, if there is one, and give it something to do."""
        status = MPI.Status()
        try:
            if not self.requests[worker].Test(status):
                return False
            task = status.tag - TAG_TASK
            self.take(task, self.buffers[worker])
            self.holders[task].remove(worker)
            self.feed(worker)
            self.listen(worker)
        except MPI.Exception:
            self.lost(worker)
        return True

    def take(self, task: int, block: Matrix) -> None:
        if task not in self.done:
            self.done.add(task)
            rows, cols = self.blocks[task]
            shape = rows.stop - rows.start, cols.stop - cols.start
            self.C[rows, cols] = block[: shape[0] * shape[1]].reshape(shape)

    def feed(self, worker: int) -> None:
        task = self.queue.popleft() if self.queue else self.copy_for(worker)
        if task is None:
            return
        self.holders.setdefault(task, []).append(worker)
        self.kept.append(np.array([task], dtype=np.int64))
        self.sends.append(self.comm.Isend(self.kept[-1], worker, TAG_TASK))

    def copy_for(self, worker: int) -> int | None:
        """The task that has been out longest among those with the fewest holders; only for a worker without work."""
        out = [task for task in self.holders if task not in self.done]
        if not self.speculate or any(worker in self.holders[task] for task in out):
            return None
        chosen = min(out, key=lambda task: len(self.holders[task]), default=None)
        self.copies += chosen is not None
        return chosen

    def lost(self, worker: int) -> None:
        """Dead: its tasks go to others."""
        self.requests.pop(worker, None)
        self.workers.remove(worker)
        for task, holders in self.holders.items():
            if worker in holders:
                holders.remove(worker)
                if task not in self.done and not holders:
                    self.queue.append(task)
        for other in self.workers:
            if self.queue:
                self.feed(other)

    def stop(self) -> None:
        """Tell everybody; hear what is still sent, since a send that nobody takes would hold its sender."""
        for worker in self.workers:
            self.kept.append(np.array([STOP], dtype=np.int64))
            self.sends.append(self.comm.Isend(self.kept[-1], worker, TAG_TASK))
        while self.workers:
            for worker in list(self.workers):
                status = MPI.Status()
                try:
                    if self.requests[worker].Test(status):
                        if status.tag == 0:
                            self.workers.remove(worker)
                        else:
                            self.listen(worker)
                except MPI.Exception:
                    self.workers.remove(worker)
            time.sleep(NAP)


# ---- a worker ----------------------------------------------------------------------------------------------------


def work(comm: MPI.Comm, options: argparse.Namespace) -> None:
    begin(options, comm.rank)
    A, B = mapped(options)
    blocks = tiles(options, A.shape[1], B.shape[1])
    sending: list[tuple[MPI.Request, Matrix]] = []
    with contextlib.suppress(MPI.Exception):  # a master that has gone
        while (task := next_task(comm)) != STOP:
            rows, cols = blocks[task]
            block = np.ascontiguousarray(A[:, rows].T @ B[:, cols])
            sending.append((comm.Isend(block, 0, TAG_TASK + task), block))
            sending = [pair for pair in sending if not pair[0].Test()]
        comm.Send(np.zeros(0), 0, 0)
        MPI.Request.Waitall([request for request, _ in sending])


def next_task(comm: MPI.Comm) -> int:
    task = np.zeros(1, dtype=np.int64)
    request = comm.Irecv(task, 0, TAG_TASK)
    while not request.Test():
        time.sleep(NAP)
    return int(task[0])


if __name__ == "__main__":
    main()
