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
    Case("mds", "6x1", 10),
    Case("mds", "4x3", 24, "oneshot"),
    Case("mds", "5x2", 16, "oneshot", {"coefficients": "gaussian"}),
    Case("polynomial", "3x2", 9),
    Case("polynomial", "2x2", 6, "oneshot", {"nodes": "equispaced"}),
    Case("polynomial", "2x2", 6, "pull", {"nodes": "circle"}),
    Case("polynomial", "3x3", 12, "oneshot", {"nodes": "circle", "data": "complex"}),
    Case("polynomial", "2x2", 5, "pull", {"nodes": "-1,-0.5,0.25,0.5,1"}),
    Case("matdot", "4x1x1", 10),
    Case("matdot", "3x1x1", 6, "oneshot", {"nodes": "circle"}),
    Case("entangled", "2x2x2", 12),
    Case("entangled", "2x2x1", 8, "oneshot", {"nodes": "circle"}),
    Case("product", "4x4", 25),
    Case("product", "3x4", 20, "oneshot", {"component": "orthopoly"}),
    Case("product", "2x6", 48, "oneshot", {"axes": "3:2x4:3x4:2"}),
    Case("product", "3x3", 20, "pull", {"component": "polynomial", "axes": "5,3x5,3"}, spare=2),
    Case("orthopoly", "4x4", 20),
    Case("orthopoly", "3x2", 8, "oneshot"),
    Case("orthomatdot", "6x1x1", 14),
    Case("orthomatdot", "3x1x1", 7, "oneshot"),
    Case("rotation", "4x6", 9),
    Case("rotation", "2x2", 4, "oneshot"),
    Case("lt", "30x1", 60, "oneshot", {"rows": "1"}, spare=12),
    Case("lt", "24x1", 12, spare=6),
    Case("sparse", "3x3", 40, spare=14),
    Case("sparse", "2x4", 40, "oneshot", {"coefficients": "integers"}, spare=16),
    Case("fractional-repetition", "3x4", 11, "oneshot", {"stragglers": "3"}),
    Case("fractional-repetition", "11x1x1", 11, "oneshot", {"stragglers": "3"}),
    Case("fractional-repetition", "5x2x2", 7),
    Case("uncoded", "4x4", 16),
    Case("uncoded", "4x4", 16, "oneshot"),
    Case("uncoded", "3x2x2", 12),
)
