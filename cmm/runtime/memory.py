"""Whether a job fits into the memory there is, asked before anything large is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cmm.core.errors import DataError
from cmm.engine.forecast import MemoryForecast, memory_forecast, size_text
from cmm.matrices.room import available

if TYPE_CHECKING:
    from cmm.runtime.session import Session


def forecast_of(session: Session) -> MemoryForecast:
    """Bytes per rank of a session that has not run yet."""
    a, b = session.sources
    return memory_forecast(session.partition, session.code, session.link.workers if session.link else 0,
                           itemsize=session.dtype.itemsize, wire_itemsize=session.worker_dtype.itemsize,
                           input_itemsizes=(a.dtype.itemsize, b.dtype.itemsize),
                           verify=session.options.verify)  # fmt: skip


def least(session: Session, forecast: MemoryForecast) -> int:
    """Bytes of rank 0 that no luck avoids: with p > 1 all results wait outside C, otherwise those of live workers are
    blocks of C and nothing has to be decoded."""
    waiting = forecast.surplus if session.partition.grid.p > 1 else 0
    return forecast.c + forecast.coded + forecast.receiving + waiting


def check_memory(session: Session, hosts: Sequence[str]) -> None:
    """Refuse a job that the node of rank 0 cannot hold even if nobody is late: C, the master's buffers without those of
    the decoder, and the buffers of the workers on that node.

    A and B are not counted: by now they are mapped, or held in memory that is not free any more. Other nodes are not
    asked; a worker that runs out of memory there is killed, and is an erasure.

    Parameters
    ----------
    hosts : host of every rank

    Raises
    ------
    DataError : more is needed than is free, in the machine, the control group (containers, Slurm) or by the limits of
        the process (exit code 65); names what takes the most and what to change
    """
    forecast, have = forecast_of(session), available()
    near = sum(host == hosts[0] for host in hosts[1:])
    master, workers = least(session, forecast), near * forecast.worker
    if master + workers <= have:
        return
    what = f"{size_text(master)} for rank 0 (C {size_text(forecast.c)})"
    if near:
        what += f" and {size_text(forecast.worker)} for each of {near} workers on its node"
    remedy = "Use a finer --grid or more memory" if forecast.c < have else "Use a node with more memory"
    raise DataError("--a, --b", f"must leave the job within the {size_text(have)} of memory that are free", what,
                    f"{remedy}; --dry-run says what takes how much.")  # fmt: skip
