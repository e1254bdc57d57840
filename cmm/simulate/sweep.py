"""Many experiments, on all cores, resumable: batches of trials go to processes, rows come back and are written at once.

Every trial is seeded by its number, so results do not depend on the number of processes or on who runs what. Ctrl-C
loses the batches in work and nothing else; the same command goes on from there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TypeVar

from cmm.core.errors import StoppedError
from cmm.simulate.experiment import Experiment
from cmm.simulate.recovery import refusal, run
from cmm.simulate.statistics import Batch, Store

BATCH = 5  # trials a batch, at most
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
T = TypeVar("T")
R = TypeVar("R")
Job = tuple[Experiment, int, int]  # first trial, number of trials


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs(experiments: Iterable[Experiment], trials: int, store: Store, batch: int = BATCH) -> list[Job]:
    """What is still to be done for `trials` trials of every experiment."""
    missing: list[Job] = []
    for experiment in experiments:
        done = store.done(experiment)
        start = 0
        while start < trials:
            if start in done:
                start += 1
                continue
            stop = start + 1
            while stop < min(start + batch, trials) and stop not in done:
                stop += 1
            missing.append((experiment, start, stop - start))
            start = stop
    return missing


def sweep(experiments: Sequence[Experiment], trials: int, store: Store, processes: int | None = None,
          progress: bool = True, batch: int = BATCH) -> Store:  # fmt: skip
    """Run what `store` lacks of `trials` trials of every experiment.

    Parameters
    ----------
    store : taken up from and added to
    processes : default: all cores; 1 stays in this process
    progress : a bar (on a terminal) or a line at the end, on stderr
    batch : trials between two rows

    Raises
    ------
    Refusal : an experiment that cannot be built (before anything is run)
    StoppedError : Ctrl-C; the store holds everything that was finished
    """
    for experiment in experiments:
        refused = refusal(experiment)
        if refused is not None:
            raise refused
    todo = jobs(experiments, trials, store, batch)
    spread(run_batch, todo, store.add, processes, progress)
    return store


def run_batch(job: Job) -> Batch:
    """For a process of a sweep."""
    experiment, first, trials = job
    return Batch(experiment, first, run(experiment, trials, first))


def spread(function: Callable[[T], R], todo: Sequence[T], keep: Callable[[R], None], processes: int | None = None,
           progress: bool = True) -> None:  # fmt: skip
    """keep(function(job)) for every job, on several processes, in any order.

    function : importable by name; `keep` is called here, as results come
    processes : default: all cores; 1 stays in this process

    Raises StoppedError on Ctrl-C.
    """
    count = min(processes or cores(), max(len(todo), 1))
    results: Iterator[R] = map(function, todo) if count == 1 else _pooled(function, todo, count)
    try:
        for result in _shown(results, len(todo), progress):
            keep(result)
    except KeyboardInterrupt:
        raise StoppedError("stopped; with --csv the same command goes on from here") from None


def _pooled(function: Callable[[T], R], todo: Sequence[T], count: int) -> Iterator[R]:
    """Processes started afresh (forking a process that has BLAS threads is unsafe), one BLAS thread each."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        pool = multiprocessing.get_context("spawn").Pool(count, _initialise)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    with pool:  # leaving it terminates the processes, also on Ctrl-C
        yield from pool.imap_unordered(function, todo)


def _initialise() -> None:
    """Ctrl-C is the parent's to handle."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Nothing; the parent terminates the pool."""


def _shown(results: Iterator[R], count: int, progress: bool) -> Iterator[R]:
    """The same, with a bar when stderr is a terminal and a line every tenth otherwise."""
    bar = None
    if progress and count and sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=count, unit="batch", file=sys.stderr)
    step = max(1, -(-count // 10))
    for number, result in enumerate(results, start=1):
        yield result
        if bar is not None:
            bar.update()
        elif progress and (number % step == 0 or number == count):
            print(f"cmm.simulate: {number} of {count}", file=sys.stderr, flush=True)
    if bar is not None:
        bar.close()
