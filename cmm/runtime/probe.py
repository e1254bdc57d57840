"""`mpirun -n P python -m cmm.runtime.probe`: what world a launcher makes, for the doctor.

Prints one line of JSON, on rank 0: a world that fell apart into singletons prints several.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
from typing import Any

import numpy as np
from mpi4py import MPI

from cmm.runtime.pingpong import SMALL, half_trips

ROW = 512  # bytes of what a rank tells the others


def world() -> dict[str, Any] | None:
    """The world that the launcher made; on rank 0, None on the others. Collective.

    Returns
    -------
    size, hosts (of every rank), cores (that every rank may use)
    shared_core : whether two ranks on one host are bound to the same single core
    latency : seconds of half a round trip between rank 0 and the first other rank on its host, and on another host
    ulfm : whether MPI itself can name failed ranks and revoke a communicator (cmm needs neither)
    """
    comm = MPI.COMM_WORLD
    affinity = sorted(os.sched_getaffinity(0))
    everyone = _share(comm, [socket.gethostname()[:200], len(affinity), affinity[0]])
    hosts, cores = [str(host) for host, _, _ in everyone], [int(count) for _, count, _ in everyone]
    latency = {}
    for name, peer in _peers(hosts).items():
        pair = comm.Split(0 if comm.rank in (0, peer) else MPI.UNDEFINED, comm.rank)
        if pair != MPI.COMM_NULL:
            latency[name] = statistics.median(half_trips(pair, SMALL))
            pair.Free()
    ulfm = _ulfm(comm)
    single = [(host, first) for host, count, first in everyone if count == 1]
    return None if comm.rank else {"size": comm.size, "hosts": hosts, "cores": cores, "latency": latency, "ulfm": ulfm,
                                   "shared_core": len(set(single)) < len(single)}  # fmt: skip


def _share(comm: Any, mine: list[Any]) -> list[list[Any]]:
    """Every rank's short list, on every rank; as JSON in buffers of one size."""
    row = np.frombuffer(json.dumps(mine).encode().ljust(ROW), dtype=np.uint8)
    rows = np.empty((comm.size, ROW), dtype=np.uint8)
    comm.Allgather(row, rows)
    return [json.loads(row.tobytes()) for row in rows]


def _peers(hosts: list[str]) -> dict[str, int]:
    """Whom rank 0 exchanges messages with: a rank on its own host, and one on another."""
    peers = {}
    for name, same in (("same host", True), ("other host", False)):
        rank = next((rank for rank, host in enumerate(hosts) if rank and (host == hosts[0]) is same), None)
        if rank is not None:
            peers[name] = rank
    return peers


def _ulfm(comm: Any) -> bool:
    """Tried on a duplicate, which is revoked. Collective."""
    duplicate = comm.Dup()
    try:
        duplicate.Get_failed().Free()
        duplicate.Revoke()
    except (NotImplementedError, AttributeError, RuntimeError):  # mpi4py's Exception is a RuntimeError
        return False
    return True


if __name__ == "__main__":
    answer = world()
    if answer is not None:
        print(json.dumps(answer), flush=True)
