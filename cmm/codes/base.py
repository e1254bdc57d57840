"""The contract of a code.

A code knows indices and coefficients; it never sees a matrix, a rank or a clock. The same object serves the MPI
runtime, the simulator and the planner. It is built once from a grid, a number of tasks and a seed, and is then a pure
function of task numbers: `task(i)` gives the same assignment on every machine and in every run.

A new scheme is one file here with a subclass of `Code`, one line in `registry.py` and one line of parameters in the
conformance tests. The subclass has to provide

    _task(index)            the assignment of a fixed task
    systematic              how many of the first tasks are the source blocks themselves (0 when none)
    recovery_threshold      results that suffice, and whether always or typically

and may provide

    _repair(outstanding, index)   a task made on demand that helps for any of the outstanding unknowns
    targets                 what the job wants of the unknowns; the default is every block of C (p = 1),
                            or the sum over the shared split (p > 1)
    decoder(...)            a decoder that uses the scheme's structure; the default is dense on the missing unknowns
    rows(assignment)        coefficient rows, where they do not come from (a, b) pairs (gradient codes)
    order(rng, workers)     the order in which fixed tasks are handed out

Parameters are declared in `parameters` (name -> Parameter) and validated before the code is built, without NumPy
arrays of the job's size and before MPI starts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cmm.codes.sizes import squarest
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.core.task import Assignment, IntArray
from cmm.linalg.decoder import Decoder
from cmm.linalg.rows import CodedRow, Targets, rows_of


@dataclass(frozen=True)
class Parameter:
    """A code's parameter: how to read its text, its default (None: chosen by the code) and what it means."""

    read: Callable[[str], Any]
    default: Any
    meaning: str


@dataclass(frozen=True)
class Threshold:
    """Recovery threshold: any `results` results decode (`certain`), or typically do."""

    results: int
    certain: bool


class Code(ABC):
    """An erasure code over the reals or complex numbers for C = A^T B.

    Parameters
    ----------
    grid : how A and B are cut
    tasks : P, the number of tasks; for pull dispatch also the cap on tasks issued. At least K.
    seed : all coefficients derive from it
    dispatch : "pull" or "oneshot"; a code may construct its redundancy differently for each
    params : the values of the declared parameters

    Raises
    ------
    UsageError : parameters that cannot work, naming parameter, rule, value and remedy
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    recovery: ClassVar[str]
    good_for: ClassVar[str]
    parameters: ClassVar[Mapping[str, Parameter]] = {}
    complex_coefficients: bool = False
    fixed_pool: ClassVar[bool] = False
    """Neither repairs nor copies on demand: the P chosen by default has spare tasks under pull dispatch too."""
    most_spare: ClassVar[int | None] = None
    """Spare tasks at most when P is chosen: the condition of structured codes grows with every one."""

    def __init__(self, grid: Grid, tasks: int, seed: int = 0, dispatch: str = "pull",
                 params: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        if dispatch not in ("pull", "oneshot"):
            raise UsageError("--dispatch", "must be pull or oneshot", repr(dispatch), "Choose one of them.")
        self.grid, self.P, self.seed, self.dispatch = grid, tasks, seed, dispatch
        self.params = self.checked(params or {})
        if tasks < self.minimum_tasks():
            raise UsageError("--tasks", f"must be at least {self.minimum_tasks()} for {self.name} on a {grid} grid",
                             tasks, f"Use --tasks {self.minimum_tasks()} or more, or a smaller --grid.")  # fmt: skip
        self._prepare()

    # ---- what a scheme provides ------------------------------------------------------------------------------

    @abstractmethod
    def _task(self, index: int) -> Assignment:
        """The assignment of fixed task `index`, 0 <= index < P."""

    @property
    @abstractmethod
    def recovery_threshold(self) -> Threshold:
        """How many results are needed, from fixed tasks that arrive in any order."""

    @property
    def systematic(self) -> int:
        """The first so many tasks are source blocks themselves."""
        return 0

    @property
    def repairs(self) -> bool:
        """Whether `repair` can make tasks on demand."""
        return False

    @classmethod
    def minimum_for(cls, grid: Grid) -> int:
        """The least P that can ever decode on this grid."""
        return grid.K

    @classmethod
    def results_for(cls, grid: Grid) -> int:
        """Results that redundancy is planned for when P is chosen from the number of workers (defaults.py)."""
        return cls.minimum_for(grid)

    @classmethod
    def needs(cls, grid: Grid, params: Mapping[str, Any]) -> tuple[int, int]:
        """(`minimum_for`, `results_for`) with these parameters, where they matter."""
        return cls.minimum_for(grid), cls.results_for(grid)

    @classmethod
    def default_grid(cls, limit: int, s: int, r: int, t: int, params: Mapping[str, Any]) -> Grid:
        """The grid to choose for a code that should get along with about `limit` results; sides within s, r and t."""
        return squarest(limit, r, t)

    @classmethod
    def default_tasks(cls, grid: Grid, params: Mapping[str, Any], workers: int, late: int) -> int | None:
        """P to choose for W workers of which `late` may not answer; None: by the general rule (defaults.py)."""
        return None

    @property
    def integer_weights(self) -> tuple[int, int] | None:
        """(largest sum of |coefficients| of one operand of A, the same of B) when all coefficients are integers, so
        that integer matrices can be multiplied exactly; None otherwise."""
        return None

    @property
    def shared_chunks(self) -> tuple[int, int]:
        """Coded chunks of A and of B that neighbouring tasks share and that are worth keeping (a round's, say)."""
        return 0, 0

    def minimum_tasks(self) -> int:
        """The least P that can ever decode."""
        return self.needs(self.grid, self.params)[0]

    def refuse_split(self, *instead: str) -> None:
        """For schemes that do not split the shared dimension. Raises UsageError when p != 1, naming codes that do."""
        if self.grid.p != 1:
            others = " or ".join(instead or ("uncoded", "replication"))
            raise UsageError("--grid", f"{self.name} does not split the shared dimension", self.grid,
                             f"Use {self.grid.m}x{self.grid.n}, or --code {others}.")  # fmt: skip

    def _prepare(self) -> None:
        """Called once, after parameters are checked: derive what `_task` needs; refuse what cannot work."""

    def _repair(self, outstanding: IntArray, index: int) -> Assignment:
        raise NotImplementedError

    # ---- what everyone calls ---------------------------------------------------------------------------------

    def task(self, index: int) -> Assignment:
        """Fixed task `index` (0 <= index < P). Raises IndexError outside that range."""
        if not 0 <= index < self.P:
            raise IndexError(f"task {index} of {self.P}")
        return self._task(index)

    def repair(self, outstanding: Sequence[int] | IntArray, index: int) -> Assignment:
        """A task made on demand, number `index` (>= P), that helps for any of the outstanding unknowns (not empty)."""
        missing = np.unique(np.asarray(outstanding, dtype=np.intp))
        if not len(missing) or not self.repairs:
            raise ValueError(f"{self.name} cannot repair {len(missing)} blocks")
        return self._repair(missing, index)

    def rows(self, assignment: Assignment) -> tuple[CodedRow, ...]:
        """Coefficient rows over the unknowns, one per output of the assignment."""
        return rows_of(assignment)

    @property
    def unknowns(self) -> int:
        """Number of columns of M."""
        return self.grid.unknowns

    @property
    def targets(self) -> Targets:
        """What the job wants: block C_ij = sum over k of A_ki^T B_kj."""
        return Targets.blocks(self.grid)

    def decoder(self, *, real_data: bool = True) -> Decoder:
        """A fresh decoder. `real_data`: the unknowns are real, so complex results count twice."""
        return Decoder(self.unknowns, self.targets, realify=real_data and self.complex_coefficients)

    def order(self, rng: np.random.Generator, workers: int = 0) -> list[int]:
        """The order in which fixed tasks are handed out. Pull: as numbered (row by row), and only the systematic ones
        when repairs are made on demand. Oneshot: systematic tasks in random order, so that one rank's loss is not one
        row of C; then the rest as numbered."""
        if self.dispatch == "pull" or not self.systematic:
            return list(range(self.systematic if self.repairs and self.systematic else self.P))
        first: list[int] = rng.permutation(self.systematic).tolist()
        return first + list(range(self.systematic, self.P))

    def rng(self, *key: int | str) -> np.random.Generator:
        """This code's own stream for `key`."""
        return generator(self.seed, self.name, *key)

    def describe(self) -> dict[str, Any]:
        """JSON-ready identity: {name, grid, K, P, dispatch, params}; builds an equal code."""
        return {"name": self.name, "grid": str(self.grid), "K": self.grid.K, "P": self.P, "seed": self.seed,
                "dispatch": self.dispatch, "params": dict(self.params)}  # fmt: skip

    def __repr__(self) -> str:
        return (f"{type(self).__name__}(Grid({self.grid.m}, {self.grid.n}, {self.grid.p}), {self.P}, "
                f"seed={self.seed}, dispatch={self.dispatch!r}, params={dict(self.params)!r})")  # fmt: skip

    @classmethod
    def checked(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of all parameters, read from those given. Raises UsageError for unknown or unreadable ones."""
        values = {name: parameter.default for name, parameter in cls.parameters.items()}
        for name, value in params.items():
            if name not in cls.parameters:
                known = ", ".join(sorted(cls.parameters)) or "none"
                raise UsageError(f"--param {name}", f"must be a parameter of {cls.name}", repr(name),
                                 f"Its parameters: {known}.")  # fmt: skip
            values[name] = cls._read(name, value)
        return values

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if value is None:
            return cls.parameters[name].default
        try:
            return cls.parameters[name].read(str(value))
        except UsageError as error:
            raise UsageError(f"--param {name}", error.rule, error.value, error.remedy) from None
        except ValueError as error:
            raise UsageError(f"--param {name}", cls.parameters[name].meaning, repr(value), str(error)) from error
