"""Random numbers: always a Generator derived from the job's seed and the place that draws.

Two places with different keys draw independently; the same place draws the same numbers on every rank and in every
run, so a task can be made anywhere from (seed, key) alone.
"""

from __future__ import annotations

import secrets
import zlib

import numpy as np


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """A Generator for (seed, key): `generator(seed, "fr", 17)` is the stream of task 17 of code fr."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else int(part) for part in key]
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=words))


def secret_generator() -> np.random.Generator:
    """A Generator seeded from the operating system: for checks that a worker must not be able to predict."""
    return np.random.default_rng(secrets.randbits(128))
