"""Memory that a node needs for its ranks, from the plan of the job (cmm.runtime.dryrun)."""

from __future__ import annotations

import math
from dataclasses import replace

from cmm.engine.forecast import MemoryForecast, size_text
from cmm.slurm.options import Request

# Python, NumPy, SciPy, an MPI with its shared memory, and the supervisor: 115 MB measured for rank 0, 80 for a worker.
RANK = 128 << 20
MARGIN = 1.2
# Rank 0 keeps what it has sent to a worker that does not answer: room for a quarter of them.
UNRESPONSIVE = 4


def with_memory(request: Request) -> Request:
    """The request with the memory of its nodes, unless --mem says it. Reads shapes only.

    Raises
    ------
    CmmError : whatever the job itself would refuse before it computes
    """
    if request.mem:
        return request
    from cmm.runtime.dryrun import prepare

    forecasts = [prepare(spec, request.ranks - 1).memory for spec in request.specs]
    largest = max(forecasts, key=lambda forecast: node_bytes(forecast, request)[0])
    first, other = (math.ceil(size / 2**20) for size in node_bytes(largest, request))
    return replace(request, memory=(first, other), memory_note=note(largest, request))


def node_bytes(forecast: MemoryForecast, request: Request) -> tuple[int, int]:
    """Bytes of the node with rank 0, and of one with workers only (0 when there is none)."""
    beside = 0 if request.master_apart else request.tasks_per_node - 1
    master = RANK + forecast.master(math.ceil(forecast.workers / UNRESPONSIVE)) + beside * (RANK + forecast.worker)
    others = request.tasks_per_node * (RANK + forecast.worker) if request.nodes > 1 else 0
    return math.ceil(MARGIN * master), math.ceil(MARGIN * others)


def note(forecast: MemoryForecast, request: Request) -> str:
    """One line that says where the figure comes from."""
    master = size_text(forecast.master(math.ceil(forecast.workers / UNRESPONSIVE)))
    return (f"rank 0 {master} with A, B and C, a worker {size_text(forecast.worker)}, {size_text(RANK)} more for every "
            f"rank, and a fifth on top")  # fmt: skip
