"""What cmm keeps for a communicator between calls: a private duplicate, the hosts, the number of the call.

Made at the first call on a communicator, which is collective (it duplicates it and gathers the hosts' names); later
calls use point-to-point messages only, so that a rank that has frozen in between holds nobody up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from cmm.runtime.link import MasterLink
from cmm.runtime.worker import Spare

HOST_BYTES = 64


@dataclass
class Endpoint:
    """This rank's side of a communicator. `link`: on rank 0, when there are workers."""

    comm: MPI.Comm
    hosts: list[str]
    jobs: int = 0
    link: MasterLink | None = None
    spare: Spare = field(default_factory=Spare)

    @property
    def master(self) -> bool:
        return self.comm.rank == 0

    def next_job(self) -> int:
        """Number of the job that begins now; equal on all ranks, since all of them count their calls."""
        self.jobs += 1
        if self.link is not None:
            self.link.job = self.jobs
        return self.jobs


_keyval = MPI.KEYVAL_INVALID


def endpoint(comm: MPI.Comm) -> Endpoint:
    """The endpoint of `comm`, made at the first call (collective then)."""
    global _keyval
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Comm.Create_keyval()
    found = comm.Get_attr(_keyval)
    if isinstance(found, Endpoint):
        return found
    private = comm.Dup()
    private.Set_errhandler(MPI.ERRORS_RETURN)
    hosts = _gather_hosts(private)
    made = Endpoint(private, hosts)
    if private.rank == 0 and private.size > 1:
        made.link = MasterLink(private, hosts)
    comm.Set_attr(_keyval, made)
    return made


def _gather_hosts(comm: MPI.Comm) -> list[str]:
    name = np.zeros(HOST_BYTES, dtype=np.uint8)
    raw = MPI.Get_processor_name().encode()[:HOST_BYTES]
    name[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    names = np.zeros((comm.size, HOST_BYTES), dtype=np.uint8)
    comm.Gather([name, MPI.BYTE], [names, MPI.BYTE] if comm.rank == 0 else None, root=0)
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in names]
