"""Which results arrive, and in what order. Every table and figure of the simulator names its arrival model.

    uniform            all P tasks are equally fast: a uniformly random order, the first N of it count
    systematic:LOSS    systematic results first, each lost independently with probability LOSS; then the other tasks as
                       numbered, as many as are needed
    ranks:W            tasks are dealt to W ranks as the runtime deals them (position q to rank 1 + q mod W); ranks
                       arrive one after the other in random order, so what is missing is whole ranks (and part of one)
    clustered:SIZE     tasks come in runs of SIZE that follow each other as handed out; whole runs arrive in random
                       order, so losses are clustered (a switch, a rack, a burst)

The same code has different thresholds under different models: systematic FR loses blocks of C in one and repairs in
another. Comparing figures of different models is a mistake, hence the names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cmm.codes.base import Code
from cmm.core.errors import UsageError
from cmm.core.task import IntArray

KINDS = ("uniform", "systematic", "ranks", "clustered")


@dataclass(frozen=True)
class Arrival:
    """An arrival model. `value`: LOSS, W or SIZE; None for uniform."""

    kind: str
    value: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.value is None) != (self.kind == "uniform"):
            self._refuse("must be uniform, systematic:LOSS, ranks:W or clustered:SIZE")
        if self.kind == "systematic" and not 0 <= float(self.value or 0) < 1:
            self._refuse("LOSS must be from 0 to below 1")
        if self.kind in ("ranks", "clustered") and not (self.value or 0) >= 1:
            self._refuse("W or SIZE must be a whole number from 1 on")

    def _refuse(self, rule: str) -> None:
        raise UsageError("--arrival", rule, repr(str(self)), "For example uniform, systematic:0.1 or ranks:100.")

    @classmethod
    def parse(cls, text: str) -> Arrival:
        """Read `KIND[:VALUE]`. Raises UsageError."""
        kind, _, value = text.strip().lower().partition(":")
        if not value:
            return cls(kind)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (kind in ("ranks", "clustered") and number != int(number)):
            raise UsageError("--arrival", "needs a number after the colon (whole for ranks and clustered)", repr(text),
                             "For example systematic:0.1 or ranks:100.")  # fmt: skip
        return cls(kind, number)

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}:{self.value:g}"

    @property
    def label(self) -> str:
        """As tables and figures name it."""
        if self.kind == "uniform":
            return "uniform over P"
        if self.kind == "systematic":
            return f"systematic first, {100 * (self.value or 0):g} % of them lost"
        if self.kind == "ranks":
            return f"whole ranks of {self.value:g} lost together"
        return f"losses in runs of {self.value:g}"

    def order(self, code: Code, rng: np.random.Generator) -> IntArray:
        """Task numbers in the order in which their results arrive; lost ones are not in it.

        Raises UsageError when the code has no systematic tasks and the model needs them.
        """
        if self.kind == "uniform":
            return rng.permutation(code.P)
        if self.kind == "systematic":
            return self._systematic(code, rng)
        return self._grouped(code, rng)

    def _systematic(self, code: Code, rng: np.random.Generator) -> IntArray:
        count = code.systematic
        if not count:
            raise UsageError("--arrival", f"{code.name} as given has no systematic tasks", str(self), "Use uniform.")
        kept = rng.permutation(np.flatnonzero(rng.random(count) >= float(self.value or 0)))
        return np.concatenate([kept, np.arange(count, code.P)])

    def _grouped(self, code: Code, rng: np.random.Generator) -> IntArray:
        size = int(self.value or 1)
        given = np.array(code.order(rng, size if self.kind == "ranks" else 0), dtype=np.intp)
        if self.kind == "ranks":
            groups = [given[w::size] for w in rng.permutation(size)]
        else:
            runs = -(-len(given) // size)
            groups = [given[k * size : (k + 1) * size] for k in rng.permutation(runs)]
        return np.concatenate(groups)
