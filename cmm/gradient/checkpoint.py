"""Checkpoints of a descent: theta, the optimiser's state and the loss curve, in one .npz file without pickles.

Written under a temporary name, synced and renamed, so the file is always a whole checkpoint, the old or the new one. It
holds a fingerprint of what is minimised; the code and the workers may change between two runs.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cmm.core.errors import DataError, InputMissingError
from cmm.core.task import Array
from cmm.matrices.files import write_atomic

VERSION = 1


def save(path: str, fingerprint: Mapping[str, Any], state: Mapping[str, Array], curve: list[list[float]]) -> None:
    """Raises OutputError."""
    about = json.dumps({"version": VERSION, "fingerprint": dict(fingerprint), "curve": curve}).encode()
    content = io.BytesIO()
    arrays: dict[str, Any] = {"about": np.frombuffer(about, dtype=np.uint8), **state}
    np.savez(content, **arrays)
    write_atomic(path, content.getvalue(), argument="--checkpoint")


def load(path: str, fingerprint: Mapping[str, Any]) -> tuple[dict[str, Array], list[list[float]]]:
    """(state, loss curve). Raises InputMissingError, or DataError when the file is none of ours or of another job."""
    if os.path.exists(path) and not os.path.isfile(path):  # a named pipe would keep its reader waiting
        raise DataError("--resume", "needs a checkpoint of cmm.gradient", f"{path}, which is no regular file",
                        "Start without --resume.")  # fmt: skip
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            state = {name: found[name] for name in found.files}
        about = json.loads(state.pop("about").tobytes())
        version, known, curve = about["version"], about["fingerprint"], about["curve"]
    except FileNotFoundError:
        raise InputMissingError("--resume", "needs an existing checkpoint", path, "Start without --resume.") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError("--resume", "needs a checkpoint of cmm.gradient", f"{path} ({type(error).__name__}: {error})",
                        "Start without --resume.") from None  # fmt: skip
    if version != VERSION:
        raise DataError("--resume", f"needs a checkpoint of version {VERSION}", version, "Start without --resume.")
    different = [key for key in fingerprint if known.get(key) != fingerprint[key]]
    if different:
        key = different[0]
        raise DataError("--resume", "needs a checkpoint of the same problem and optimiser",
                        f"{key} {known.get(key)!r} in {path}, {fingerprint[key]!r} now",
                        "Start without --resume, or change the job back.")  # fmt: skip
    return state, curve


class Keeper:
    """Writes a checkpoint every `every` seconds, and when asked.

    Parameters
    ----------
    write : writes one
    """

    def __init__(self, write: Callable[[], None], every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.every, self.clock = write, every, clock
        self.last = clock()
        self.written = 0

    def tick(self) -> None:
        if self.clock() - self.last >= self.every:
            self.now()

    def now(self) -> None:
        self.write()
        self.written += 1
        self.last = self.clock()
