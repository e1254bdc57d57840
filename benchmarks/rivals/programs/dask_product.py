"""dask.array on a LocalCluster: one process and one thread a worker, chunks read by the workers from the files.

The clock starts when the cluster stands. Work stealing is on (the default); dask copies no tasks, and recomputes those
of a worker that has died once the scheduler notices.
"""

from __future__ import annotations

import argparse
import os
import time

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from benchmarks.rivals.programs.common import begin, cuts, parser, ready


def columns(path: str, part: slice) -> np.ndarray:
    return np.load(path, mmap_mode="r")[:, part]


def chunked(path: str, parts: int) -> da.Array:
    """The matrix in column chunks, each mapped where it is used."""
    whole = np.load(path, mmap_mode="r")
    read = dask.delayed(columns)
    chunks = [da.from_delayed(read(path, part), (whole.shape[0], part.stop - part.start), whole.dtype)
              for part in cuts(whole.shape[1], parts)]  # fmt: skip
    return da.concatenate(chunks, axis=1)


def main() -> None:
    parse = parser(__doc__)
    parse.add_argument("--workers", type=int, required=True)
    options = parse.parse_args()
    dask.config.set({"distributed.admin.tick.interval": "1s", "distributed.worker.memory.target": False,
                     "distributed.worker.memory.spill": False, "distributed.worker.memory.pause": False})  # fmt: skip
    with LocalCluster(n_workers=options.workers, threads_per_worker=1, processes=True, dashboard_address=None,
                      local_directory=str(options.folder)) as cluster, Client(cluster) as client:  # fmt: skip
        client.wait_for_workers(options.workers)
        client.run(np.zeros, 1)  # NumPy is loaded
        pids = list(client.run(os.getpid).values())
        multiply(options, client, pids)


def multiply(options: argparse.Namespace, client: Client, pids: list[int]) -> None:
    m, n = (int(side) for side in options.grid.split("x"))
    start = time.perf_counter()
    for number, pid in enumerate(pids, start=1):
        begin(options, number, pid)
    A, B = chunked(options.a, m), chunked(options.b, n)
    C = client.compute(da.matmul(A.T, B)).result()
    ready(options, start, C)


if __name__ == "__main__":
    main()
