"""What is simulated: a code, an arrival model, a decoder, a number of results and a seed, with a content hash.

Two experiments with the same hash are the same; their trials, numbered from 0, may be run in any order, by anybody,
and added up (statistics.py). Trial i depends on (seed, i) only.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cmm.codes.base import Code
from cmm.codes.registry import check_name, code_class
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.core.spec import MOST_TASKS
from cmm.simulate.arrivals import Arrival

DECODERS = ("auto", "peeling", "peeling+outer", "inactivation", "dense")
KINDS = ("recovery", "threshold")
HASH_DIGITS = 16


@dataclass(frozen=True)
class CodeSpec:
    """A code but for its seed.

    Attributes
    ----------
    name : as registered
    grid : `MxN` or `PxMxN`
    tasks : P
    params : (name, text) of the parameters given, by name
    dispatch : "oneshot" (P tasks fixed in advance) or "pull"
    """

    name: str
    grid: str
    tasks: int
    params: tuple[tuple[str, str], ...] = ()
    dispatch: str = "oneshot"

    def __post_init__(self) -> None:
        check_name(self.name)
        Grid.parse(self.grid)
        object.__setattr__(self, "params", tuple(sorted((str(k), str(v)) for k, v in self.params)))

    @classmethod
    def parse(cls, text: str, grid: str, tasks: int, dispatch: str = "oneshot") -> CodeSpec:
        """Read `NAME[:KEY=VALUE,...]`, where `grid=` and `tasks=` stand for the grid and P of this code.

        Raises UsageError.
        """
        name, params = parse_code(text)
        return cls(name, params.pop("grid", grid), read_tasks(params.pop("tasks", tasks)), tuple(params.items()),
                   params.pop("dispatch", dispatch))  # fmt: skip

    def build(self, seed: int) -> Code:
        """The code of this seed. Raises UsageError when the parameters cannot work."""
        return code_class(self.name)(Grid.parse(self.grid), self.tasks, seed, self.dispatch, dict(self.params))

    @property
    def blocks(self) -> int:
        """K."""
        return Grid.parse(self.grid).K

    @property
    def label(self) -> str:
        """Name and parameters."""
        return self.name + (" " + ", ".join(f"{k}={v}" for k, v in self.params) if self.params else "")


def parse_code(text: str) -> tuple[str, dict[str, str]]:
    """(name, {key: value}) of `NAME[:KEY=VALUE,...]`. Raises UsageError."""
    name, _, rest = text.strip().partition(":")
    check_name(name)
    params = {}
    for part in re.split(r",(?=[a-z_]+=)", rest) if rest else ():
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise UsageError("--code", "must be NAME or NAME:KEY=VALUE,KEY=VALUE", repr(text),
                             "For example fr:construction=paper,outer=82x82.")  # fmt: skip
        params[key.strip()] = value.strip()
    return name, params


def read_tasks(value: str | int) -> int:
    """P as a whole number. Raises UsageError."""
    if not re.fullmatch(r"\d{1,9}", str(value)) or not 1 <= int(value) <= MOST_TASKS:
        raise UsageError("--tasks", f"must be a whole number from 1 to {MOST_TASKS}", repr(value), "Use 10000, say.")
    return int(value)


@dataclass(frozen=True)
class Experiment:
    """One point of a sweep.

    Attributes
    ----------
    kind : "recovery" (does the first N decode, and how well) or "threshold" (the smallest N that does)
    code, arrival : what is sent, and which of it arrives in what order
    decoder : "auto" is the code's own; "peeling" and "peeling+outer" look at supports only; "dense" is one LU
    results : N for recovery; None for threshold
    seed : of the sweep
    errors : whether C is decoded from scalar blocks and compared (not with peeling)
    """

    kind: str
    code: CodeSpec
    arrival: Arrival
    decoder: str = "auto"
    results: int | None = None
    seed: int = 0
    errors: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError("kind", "must be recovery or threshold", repr(self.kind), "Choose one of them.")
        if self.decoder not in DECODERS:
            raise UsageError("--decoder", f"must be one of {', '.join(DECODERS)}", repr(self.decoder),
                             "Choose one of them.")  # fmt: skip
        if (self.results is None) != (self.kind == "threshold"):
            raise UsageError("--results", "belongs to recovery, and recovery needs it", self.results,
                             "Give --alpha or --results.")  # fmt: skip
        if self.results is not None and not 0 <= self.results <= self.code.tasks:
            raise UsageError("--results", f"must be from 0 to P = {self.code.tasks}", self.results, "Lower it.")
        if self.errors and self.decoder.startswith("peeling"):
            raise UsageError("--errors", "needs a decoder that makes plans; peeling looks at supports only",
                             self.decoder, "Use --decoder auto, inactivation or dense.")  # fmt: skip

    @property
    def alpha(self) -> float | None:
        """Straggler fraction α = (P − N) / P; None for threshold."""
        return None if self.results is None else 1 - self.results / self.code.tasks

    def describe(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back."""
        return {**asdict(self), "arrival": str(self.arrival)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Experiment:
        """What `describe` wrote."""
        code = dict(data["code"])
        code["params"] = tuple((k, v) for k, v in code["params"])
        return cls(**{**data, "code": CodeSpec(**code), "arrival": Arrival.parse(data["arrival"])})

    def to_json(self) -> str:
        """Canonical JSON: what is hashed."""
        return json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))

    @property
    def key(self) -> str:
        """Content hash."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:HASH_DIGITS]

    def trial(self, number: int) -> tuple[Code, np.random.Generator]:
        """The code of trial `number`, and the stream of everything else it draws."""
        rng = generator(self.seed, "trial", number)
        return self.code.build(int(rng.integers(2**62))), rng
