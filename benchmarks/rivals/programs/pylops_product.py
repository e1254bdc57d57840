"""PyLops-MPI's MPIMatrixMult: every rank holds blocks of A and B, all multiply, C is gathered on rank 0.

kind: "block" (1-D) or "summa" (2-D). The operator computes A X, so A^T is handed over as A. It needs a square number of
ranks.
"""

from __future__ import annotations

import time

import numpy as np
import pylops_mpi
from mpi4py import MPI
from pylops_mpi.basicoperators.MatrixMult import block_gather, local_block_split

from benchmarks.rivals.programs.common import begin, mapped, parser, ready


def main() -> None:
    parse = parser(__doc__)
    parse.add_argument("--kind", default="summa", choices=("block", "summa"))
    options = parse.parse_args()
    comm = MPI.COMM_WORLD
    comm.Barrier()
    start = time.perf_counter()
    begin(options, comm.rank)
    A, B = mapped(options)
    s, r, t = A.shape[0], A.shape[1], B.shape[1]
    side = int(comm.size**0.5)
    row, column = divmod(comm.rank, side)
    if options.kind == "summa":
        rows, columns = local_block_split((r, s), comm.rank, comm)
        mine = np.ascontiguousarray(A[columns, rows].T)
        rows, columns = local_block_split((s, t), comm.rank, comm)
        other = np.ascontiguousarray(B[rows, columns])
    else:
        per = -(-r // side)
        mine = np.ascontiguousarray(A[:, column * per : (column + 1) * per].T)
        per = -(-t // side)
        other = np.ascontiguousarray(B[:, row * per : (row + 1) * per])
    operator = pylops_mpi.basicoperators.MPIMatrixMult(mine, t, base_comm=comm, kind=options.kind, dtype="float64")
    sizes = comm.allgather(other.size)
    x = pylops_mpi.DistributedArray(global_shape=sum(sizes), local_shapes=[(size,) for size in sizes], base_comm=comm,
                                    partition=pylops_mpi.Partition.SCATTER, dtype="float64")  # fmt: skip
    x[:] = other.ravel()
    y = operator @ x
    C = gathered(comm, y, r, t, options.kind)
    if comm.rank == 0:
        ready(options, start, C)


def gathered(comm: MPI.Comm, y: pylops_mpi.DistributedArray, r: int, t: int, kind: str) -> np.ndarray:
    """C on every rank for SUMMA, as the library does it; rank 0's is used."""
    if kind == "summa":
        return block_gather(y, (r, t), comm)
    parts = comm.gather(y.local_array, root=0)
    side = int(comm.size**0.5)
    if parts is None:
        return np.zeros(0)
    per = -(-t // side)
    widths = [min(t, (k + 1) * per) - k * per for k in range(side)]
    return np.hstack([parts[k * side].reshape(r, widths[k]) for k in range(side)])


if __name__ == "__main__":
    main()
