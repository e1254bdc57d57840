"""Is it the same job? What a checkpoint must have in common with the job that goes on from it, and what may differ.

The identity is everything on which a result depends: the contents of A and B, the code with its parameters, the dtype
of the workers, the version of cmm. Workers, threads, tolerance, checks, injections and patience may change.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

import cmm
from cmm.core.errors import CmmError, DataError, Outcome, Refusal, UsageError
from cmm.core.grid import Grid
from cmm.core.spec import JobSpec, split_member
from cmm.core.task import Array
from cmm.matrices.files import MatrixSource, tiles
from cmm.runtime.report import Record, load
from cmm.runtime.session import Session

FORMAT = 1  # of the identity
_TILE = 4 << 20  # bytes hashed at a time
_MOST_THREADS = 4
_FLAGS = {"code.name": "--code", "code.grid": "--grid", "code.K": "--grid", "code.P": "--tasks", "code.seed": "--seed",
          "code.dispatch": "--dispatch", "op": "--op"}  # fmt: skip


def content_hash(source: MatrixSource) -> str:
    """A hash of all elements as they are stored: BLAKE2b of the BLAKE2b hashes of tiles, which threads make."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    total = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[bytes]] = deque()
        for tile in _contiguous_tiles(source):
            waiting.append(pool.submit(_hash, tile))
            if len(waiting) > 2 * threads:
                total.update(waiting.popleft().result())
        for future in waiting:
            total.update(future.result())
    return total.hexdigest()


def _contiguous_tiles(source: MatrixSource) -> Iterator[Array]:
    array = source.array
    flipped = isinstance(array, np.ndarray) and abs(array.strides[0]) < abs(array.strides[1])
    for rows, cols in tiles(array, _TILE):
        tile = array[rows, cols]
        tile = np.ascontiguousarray(tile.T if flipped else tile)
        if tile.size:
            yield tile.reshape(-1).view(np.uint8)


def _hash(tile: Array) -> bytes:
    return hashlib.blake2b(tile.data, digest_size=16).digest()


def identity(session: Session) -> dict[str, Any]:
    """All of it but the contents of A and B."""
    a, b = session.sources
    return {
        "format": FORMAT, "cmm": cmm.__version__, "a": _described(a), "b": _described(b), "op": session.options.op,
        "computed_in": session.worker_dtype.str, "code": _plain(session.code.describe()),
    }  # fmt: skip


def _described(source: MatrixSource) -> dict[str, Any]:
    return {"shape": list(source.shape), "dtype": source.dtype.str}


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def add_contents(now: Mapping[str, Any], session: Session) -> dict[str, Any]:
    """The whole identity: A and B are read, once if they are one file."""
    a, b = session.sources
    first = content_hash(a)
    second = first if a.path is not None and (a.path, a.stamp) == (b.path, b.stamp) else content_hash(b)
    return {**now, "a": {**now["a"], "content": first}, "b": {**now["b"], "content": second}}


# ---- comparing ---------------------------------------------------------------------------------------------------


def refuse_differences(kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError, or DataError for A and B, naming the first thing that has changed since the checkpoint began.
    What `now` does not say yet is not compared."""
    old, new = _flat(kept), _flat(now)
    for key, value in new.items():
        if old.get(key) != value:
            raise _changed(key, old.get(key), value)
    for key in old.keys() - new.keys():
        if not key.endswith(".content"):
            raise _changed(key, old[key], None)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _changed(key: str, old: Any, new: Any) -> Refusal:
    remedy = "Give it as it was, or start again with another --checkpoint."
    name, _, what = key.rpartition(".")
    if name in ("a", "b"):
        said = f"{what} {new}, it was {old}"
        if what == "content":
            said = "other elements, or the same stored in another order"
        return DataError(f"--{name}", "must be as it was when the checkpoint was begun", said, remedy)
    argument = _FLAGS.get(key) or (f"--param {what}" if name == "code.params" else "--resume")
    rule = "must be as it was when the checkpoint was begun" if argument != "--resume" else (
        f"needs a checkpoint of the same {key}")  # fmt: skip
    return UsageError(argument, rule, f"{new}, it was {old}", remedy)


def planned(kept: Mapping[str, Any] | None, spec: JobSpec) -> tuple[Grid, int] | None:
    """Grid and tasks of a checkpoint or report, for what the user leaves to be chosen: the choice depends on the
    number of workers, which may change."""
    try:
        code = kept["code"] if kept is not None else None
        if code is None or code["name"] != spec.code:
            return None
        return Grid.parse(str(code["grid"])), int(code["P"])
    except (CmmError, KeyError, TypeError, ValueError):
        return None


# ---- a job that is complete already ------------------------------------------------------------------------------


def earlier_report(spec: JobSpec) -> Record | None:
    """The report that an earlier run with the same output has left: of a failure, or of a job with a checkpoint that is
    complete; else None."""
    if not os.path.isfile(spec.report):  # a named pipe would keep its reader waiting
        return None
    try:
        record = load(spec.report)
    except (CmmError, RecursionError):
        return None
    if record.job.get("out") != spec.out or (record.outcome is Outcome.COMPLETE and not record.checkpoint.plan):
        return None
    return record


def proves(record: Record, plan: bytes, out: str) -> bool:
    """Whether a report proves that C of this very job is in its place, untouched since."""
    return record.checkpoint.plan == plan.hex() and record.checkpoint.output == stamp(out)


def stamp(out: str) -> list[int] | None:
    """(size, time of change) of the file that C is in."""
    try:
        found = os.stat(split_member(out)[0])
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]
