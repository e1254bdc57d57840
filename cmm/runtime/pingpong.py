"""`mpirun -n 2 python -m cmm.runtime.pingpong`: latency and bandwidth of messages between ranks 0 and 1, as JSON.

Measured as the runtime sends: buffers, point to point, one message in flight each way. Latency is half the round trip
of 8 bytes, the median; bandwidth is one direction with messages of the size of a block, both warm.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
from mpi4py import MPI

from cmm.runtime.surroundings import version_line

SMALL, LARGE = 8, 1 << 23  # bytes
ROUNDS = {SMALL: 400, LARGE: 40}


def half_trips(comm: MPI.Comm, size: int) -> list[float]:
    """Seconds of half a round trip of `size` bytes, round by round. Collective over ranks 0 and 1."""
    payload = np.zeros(size, dtype=np.uint8)
    found = []
    for _ in range(ROUNDS[size]):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(payload, 1)
            comm.Recv(payload, 1)
        else:
            comm.Recv(payload, 0)
            comm.Send(payload, 0)
        found.append((time.perf_counter() - start) / 2)
    return found[len(found) // 4 :]  # the first ones set up connections and touch pages


def main() -> None:
    """Print one line of JSON on rank 0: latency (s), bandwidth (bytes/s), the MPI library."""
    comm = MPI.COMM_WORLD
    if comm.size < 2:
        raise SystemExit("cmm.runtime.pingpong: needs two ranks: mpirun -n 2 python -m cmm.runtime.pingpong")
    if comm.rank < 2:
        trips = {size: statistics.median(half_trips(comm, size)) for size in (SMALL, LARGE)}
    if comm.rank == 0:
        mpi = version_line(MPI.Get_library_version())[:200]
        print(json.dumps({"latency": trips[SMALL], "bandwidth": LARGE / trips[LARGE], "mpi": mpi}), flush=True)


if __name__ == "__main__":
    main()
