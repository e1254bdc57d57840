"""What things cost on a machine: seconds of products, copies and messages, for the simulated clock."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cmm.core.errors import DataError, InputMissingError, UsageError
from cmm.linalg.inactivation import InactivationPlan
from cmm.linalg.plan import CombinationPlan, LuPlan, Plan


@dataclass(frozen=True)
class MachineProfile:
    """A machine in five numbers.

    Attributes
    ----------
    gemm : flop/s of one worker's product (one core, float64)
    copy : bytes/s read plus written by a memory-bound pass of the master (NumPy copy, one core, both directions)
    latency : seconds of one message
    bandwidth : bytes/s of the master's link, one direction, all workers together
    name : for tables

    The defaults were measured: 50 Gflop/s and 12 GB/s (read plus write) on one core of an EPYC, 12 GB/s for messages in
    shared memory, which is also what 100 Gbit/s bring; 20 µs is a round figure.

    Raises
    ------
    UsageError : a value that is not positive (latency: negative)
    """

    gemm: float = 50e9
    copy: float = 12e9
    latency: float = 20e-6
    bandwidth: float = 12e9
    name: str = "default"

    def __post_init__(self) -> None:
        for entry in ("gemm", "copy", "bandwidth", "latency"):
            value = getattr(self, entry)
            if not isinstance(value, (int, float)) or not value >= 0 or (entry != "latency" and not value):
                raise UsageError(f"profile.{entry}", "must be positive", value, "Measure it again.")

    @classmethod
    def load(cls, path: str | Path) -> MachineProfile:
        """Read a JSON object with these fields; those left out keep their default. What stands under "measured"
        (how, on which machine, what else) is for people and ignored.

        Raises InputMissingError, DataError.
        """
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise InputMissingError("--profile", "cannot be read", str(path), str(error)) from error
        except ValueError as error:
            raise DataError("--profile", "must be JSON", str(path), str(error)) from error
        known = {entry.name for entry in fields(cls)}
        if isinstance(data, dict):
            data.pop("measured", None)
        if not isinstance(data, dict) or not set(data) <= known:
            raise DataError("--profile", f"must be an object with {', '.join(sorted(known))}", str(path), "Correct it.")
        return cls(**{"name": Path(path).stem, **data})

    @classmethod
    def named(cls, text: str) -> MachineProfile:
        """`default`, `ideal` (everything but the products is free, as in the papers), or the path of a JSON file."""
        return PROFILES[text] if text in PROFILES else cls.load(text)

    def to_json(self) -> str:
        """What `load` reads."""
        return json.dumps(asdict(self), indent=1)

    def product(self, s: float, rows: float, columns: float) -> float:
        """Seconds of one worker's (rows × s)(s × columns)."""
        return 2.0 * s * rows * columns / self.gemm

    def message(self, size: float) -> float:
        """Seconds the master's link is busy with a message of so many bytes; its latency comes on top, elsewhere."""
        return size / self.bandwidth

    def axpy(self, size: float) -> float:
        """Seconds of y += c x on blocks of so many bytes, memory-bound: two reads and a write."""
        return 3.0 * size / self.copy

    def decoding(self, plan: Plan, block: float) -> float:
        """Seconds of the numeric phase on blocks of so many bytes, and of factorising.

        Triangular solves and dense combinations run at `gemm`. Known blocks are subtracted by a GEMM over the distinct
        a's where that is cheaper, else at `copy`, like sparse passes (linalg/subtract.py).
        """
        dense, blas = 0.0, 2.0 * (block / 8) / self.gemm
        sigma = len(plan.missing)
        if isinstance(plan, LuPlan):
            dense = float(sigma) ** 2
        elif isinstance(plan, CombinationPlan):
            dense = float(plan.block_operations)
        elif isinstance(plan, InactivationPlan) and plan.solver.dense is not None:
            dense = float((1 + plan.refinement) * plan.solver.dense.operations)
        dense = min(dense, float(plan.block_operations))
        rest = (plan.block_operations - dense) * self.axpy(block)
        if isinstance(plan, LuPlan) and all(row.factors is not None for row in plan.rows):
            gemm, axpys = _factored(plan)
            rest = min(rest, gemm * blas + axpys * self.axpy(block))
        factorising = 2 / 3 * float(sigma if isinstance(plan, LuPlan) else plan.inactivations) ** 3 / self.gemm
        return dense * blas + rest + factorising


def _factored(plan: Plan) -> tuple[float, float]:
    """Block operations of subtracting by factors: (of the GEMM of all distinct a's with C, of applying the b's)."""
    factors = [row.factors for row in plan.rows if row.factors is not None]
    columns = max((int(b.indices[-1]) + 1 for _, b in factors), default=0)
    distinct = {a.key: a.degree for a, _ in factors}
    return float(sum(distinct.values()) * columns), float(sum(b.degree for _, b in factors))


PROFILES = {
    "default": MachineProfile(),
    "ideal": MachineProfile(copy=math.inf, latency=0.0, bandwidth=math.inf, name="ideal"),
}
