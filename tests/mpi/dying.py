"""cmm.run with workers that die at a chosen moment: `python -m tests.mpi.dying MOMENT RANKS FOLDER [flags]`.

MOMENT: before (its first receive), mid-send, mid-compute, decode (killed by the master between its last result and
decoding), stop (it hears the stop), bye (it hears the end). RANKS: comma-separated. FOLDER: for the pids.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cmm.run
from cmm.runtime import launch


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plant(moment: str, ranks: list[int], folder: Path) -> None:
    """Change the running code of this rank."""
    rank = launch.my_rank()
    if moment == "decode" and rank == 0:
        _kill_before_decoding(ranks, folder)
    if rank not in ranks:
        return
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    from cmm.runtime import worker
    from cmm.runtime.protocol import Up

    if moment == "before":
        worker.Worker._run = _then(lambda *args: die(), worker.Worker._run)
    elif moment == "mid-send":

        class Dying(worker.Outgoing):
            def __init__(self, *args: Any, **named: Any) -> None:
                super().__init__(*args, **named)
                if args[3].kind == Up.RESULT:
                    die()

        worker.Outgoing = Dying
    elif moment == "mid-compute":
        worker.products = _first_slice_only(worker.products)
    elif moment == "stop":
        worker.Worker._acknowledge = lambda *args: die()
    elif moment == "bye":
        worker.Worker._part = lambda *args: die()


def _then(first: Callable[..., None], second: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        first(*args)
        return second(*args)

    return both


def _first_slice_only(products: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    def dying(*args: Any) -> Iterator[None]:
        yield next(products(*args))
        die()

    return dying


def _kill_before_decoding(ranks: list[int], folder: Path) -> None:
    from cmm.linalg.blocks import BlockStore

    decode = BlockStore.decode

    def deadly(*args: Any) -> Any:
        for rank in ranks:
            os.kill(int((folder / f"pid{rank}").read_text()), signal.SIGKILL)
        time.sleep(0.2)  # the news arrives while the master does not listen
        return decode(*args)

    BlockStore.decode = deadly


def main() -> int:
    moment, ranks, folder = sys.argv[1], [int(rank) for rank in sys.argv[2].split(",")], Path(sys.argv[3])
    run = cmm.run._run

    def planted(*args: Any) -> int:
        plant(moment, ranks, folder)
        return run(*args)

    cmm.run._run = planted
    return cmm.run.main(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
