"""The laws random coefficients are drawn from, shared by the random codes.

Over the reals every division by a small coefficient amplifies errors, so the default never comes near zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cmm.codes.base import Parameter
from cmm.core.task import Array, Combination, IntArray


def _signs(rng: np.random.Generator, size: int) -> Array:
    return rng.choice(np.array([-1.0, 1.0]), size)


LAWS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "uniform": lambda rng, size: _signs(rng, size) * rng.uniform(0.5, 1.5, size),
    "signs": _signs,
    "gaussian": lambda rng, size: rng.standard_normal(size),
    "integers": lambda rng, size: _signs(rng, size) * rng.integers(1, 4, size),
}
LARGEST_INTEGER = {"signs": 1, "integers": 3}  # largest |coefficient| of the laws of integers
CONTINUOUS = frozenset(
    {"uniform", "gaussian"}
)  # laws under which a generically regular system is regular almost surely


def one_of(*names: str) -> Callable[[str], str]:
    """A reader of parameters that accepts exactly these words."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"Choose one of {', '.join(names)}.")
        return text

    return read


def yes_or_no(text: str) -> bool:
    """Read yes/no (true/false, 1/0 as TOML and Python write them)."""
    word = text.strip().lower()
    if word not in ("yes", "no", "true", "false", "1", "0"):
        raise ValueError("Write yes or no.")
    return word in ("yes", "true", "1")


COEFFICIENTS = Parameter(
    one_of(*LAWS), "uniform",
    "law of the coefficients: uniform (random sign times U[0.5,1.5]), signs (+-1), gaussian or integers (+-1..3)",
)  # fmt: skip


def integer_weights(law: str, chunks_a: int, chunks_b: int) -> tuple[int, int] | None:
    """`Code.integer_weights` of a code that may combine all chunks with coefficients of this law."""
    largest = LARGEST_INTEGER.get(law)
    return None if largest is None else (largest * chunks_a, largest * chunks_b)


def combination(law: str, rng: np.random.Generator, indices: Sequence[int] | IntArray | Iterable[int]) -> Combination:
    """A combination of these chunks with coefficients drawn from `law` (in the order of increasing chunk number)."""
    ids = np.sort(np.fromiter(indices, dtype=np.intp))
    return Combination(ids, LAWS[law](rng, len(ids)))
