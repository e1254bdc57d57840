"""One line per code and way of using it: the conformance suite runs over these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cmm.codes.base import Code
from cmm.codes.registry import code_class
from cmm.core.grid import Grid


@dataclass(frozen=True)
class Case:
    """A code at one size. `spare`: results beyond the recovery threshold within which it must decode."""

    name: str
    grid: str
    tasks: int
    dispatch: str = "pull"
    params: Mapping[str, str] = field(default_factory=dict)
    spare: int = 0

    def build(self, seed: int = 0) -> Code:
        return code_class(self.name)(Grid.parse(self.grid), self.tasks, seed, self.dispatch, self.params)

    def __str__(self) -> str:
        params = "".join(f"-{key}={value}" for key, value in self.params.items())
        return f"{self.name}-{self.dispatch}-{self.grid}-{self.tasks}{params}"


TABLE = (
    Case("fr", "4x4", 24),
    Case("fr", "4x4", 24, "oneshot"),
    Case("fr", "20x20", 700, "oneshot", {"loss": "0.2"}, spare=12),
    Case("fr", "12x10", 200, "oneshot", {"groups": "6x5"}, spare=12),
    Case("fr", "5x3", 40, "oneshot", {"coefficients": "gaussian"}),
    Case("fr", "6x6", 60, "oneshot", {"coefficients": "signs"}, spare=14),
    Case("fr", "6x6", 80, "oneshot", {"construction": "paper"}, spare=16),
    Case("fr", "5x4", 60, "pull", {"construction": "paper", "outer": "7x6"}, spare=16),
    Case("flt", "6x6", 240, "oneshot", spare=60),
    Case("flt", "4x5", 120, spare=60),
    Case("rkrp", "4x4", 24),
    Case("rkrp", "4x4", 24, "oneshot"),
    Case("rkrp", "3x5", 24, "oneshot", {"systematic": "no"}),
    Case("rkrp", "3x5", 24, "oneshot", {"coefficients": "integers"}, spare=8),
    Case("replication", "4x4", 16),
    Case("replication", "4x4", 40, "oneshot"),
    Case("replication", "2x3x3", 18),
    Case("uncoded", "4x4", 16),
    Case("uncoded", "4x4", 16, "oneshot"),
    Case("uncoded", "3x2x2", 12),
)
