"""The plan "inactivation": a schedule, its dense stage and a refinement, chosen by a probe; and the choice of solver.

The cap on the predicted error trades inactivations for accuracy (docs/orders.md). Plans are cheap, so it is not
guessed: schedules are made with ever smaller caps until one decodes random columns with known answers well enough.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cmm.core.errors import FailureKind
from cmm.core.task import Array, IntArray
from cmm.linalg import selfcheck
from cmm.linalg.plan import DecodingError, Plan, Residual, SourceKey
from cmm.linalg.rows import CodedRow
from cmm.linalg.schedule import SparseSystem, make_schedule
from cmm.linalg.solver import SparseSolver

CAPS = (1e18, 1e12, 1e8, 1e5)
"""Caps tried in turn. The first leaves sign coefficients at N = 6500 alone (0.3 inactivations more on average)."""

GOAL = 1e-10
"""Probe error (relative to unit blocks, exact worker results) at which no smaller cap is tried."""

UNUSABLE = 1e-3
"""Probe error beyond which hardly a digit is left; the system then counts as ill-conditioned."""

REFINE_GAIN = 4.0
"""One refinement is recorded in the plan where it makes the probe's error at least so many times smaller."""

PROBE_COLUMNS = 4
LU_ALWAYS_UP_TO = 500  # missing blocks: making a schedule would take longer than the LU of the coefficients
LU_NEVER_FROM = 5000  # missing blocks: the LU of the coefficients takes ten seconds or more, and memory of its own
PASS_COST = 20.0  # a block multiply-add of a sparse pass against one of the LU's substitution (BLAS-3), measured
DENSE_COST = 1.5  # the same for one of the dense stage, which is small
TIE = 1.3  # up to so many times the LU's cost inactivation is preferred: with its refinement it is more accurate

VERIFY_VARIABLE = "CMM_VERIFY_DECODER"


@dataclass(frozen=True, eq=False, kw_only=True)
class InactivationPlan(Plan):
    """Ordered peeling and inactivation. `take`: equations from results, see Plan._equations; `wanted`: the symbol of
    every missing target; `probe_error`: largest error on random unit blocks with exact worker results."""

    method: str = "inactivation"
    solver: SparseSolver
    take: IntArray
    wanted: IntArray
    probe_error: float

    @property
    def workspace(self) -> int:
        """Elements of working memory `solve` needs per element of a block."""
        return self.solver.workspace

    def _solve(self, results: Array) -> Array:
        equations = self._equations(results, self.take)
        if np.iscomplexobj(equations) and not np.iscomplexobj(self.solver.system.matrix.data):
            symbols = self.solver.decode(np.ascontiguousarray(equations).view(np.float64))
            real: Array = symbols[self.wanted]
            return real.view(np.complex128)
        chosen: Array = self.solver.decode(equations)[self.wanted]
        return chosen


def verifying() -> bool:
    """Whether every phase verifies itself: environment variable CMM_VERIFY_DECODER set to anything but 0."""
    return os.environ.get(VERIFY_VARIABLE, "0") not in ("", "0")


@dataclass(frozen=True)
class Probe:
    """How well a solver recovers random columns: largest error without and with one refinement."""

    plain: float
    refined: float

    @property
    def refine(self) -> bool:
        return self.refined * REFINE_GAIN <= self.plain

    @property
    def error(self) -> float:
        return self.refined if self.refine else self.plain


def probe(solver: SparseSolver) -> Probe:
    """Decode PROBE_COLUMNS columns of N(0, 1) blocks (seeded: the plan depends on the coefficients only)."""
    truth, results = solver.system.random_columns(PROBE_COLUMNS)
    errors = []
    for refine in (False, True):
        solver.refine = refine
        with np.errstate(all="ignore"):
            error = np.abs(solver.decode(results) - truth).max(initial=0.0)
        errors.append(float(error) if np.isfinite(error) else np.inf)
    return Probe(*errors)


def best_solver(system: SparseSystem, *, verify: bool | None = None, largest: int | None = None,
                goal: float = GOAL) -> tuple[SparseSolver, Probe] | None:  # fmt: skip
    """The first solver over CAPS whose probe reaches the goal, else the most accurate one.

    Returns None when `largest` is given and every schedule needs more inactive symbols than that.

    Raises
    ------
    DecodingError : SINGULAR when no cap gives full rank (`needed`: the smallest deficiency seen), ILL_CONDITIONED when
        no probe keeps three digits
    InternalError : a phase that verifies itself found a contradiction (`verify`, default `verifying()`)
    """
    verify = verifying() if verify is None else verify
    best: tuple[SparseSolver, Probe] | None = None
    deficiency, refused = system.symbols, False
    for cap in CAPS:
        schedule = make_schedule(system, cap=cap, largest=largest)
        if schedule is None:
            refused = True
            break
        solver = SparseSolver(schedule)
        if verify:
            selfcheck.check(solver)
        deficiency = min(deficiency, solver.deficiency)
        if solver.deficiency:
            if solver.certain:
                break
            continue
        found = probe(solver)
        solver.refine = found.refine
        if best is None or found.error < best[1].error:
            best = solver, found
        if found.error <= goal or schedule.worst_error < CAPS[-1]:
            break
    if best is not None and best[1].error <= UNUSABLE:
        return best
    if refused:
        return None
    raise _refusal(system, best, deficiency)


def _refusal(system: SparseSystem, best: tuple[SparseSolver, Probe] | None, deficiency: int) -> DecodingError:
    if best is None:
        return DecodingError(FailureKind.SINGULAR, f"{system.results} result rows leave {system.symbols} symbols "
                             f"short of {deficiency} equation(s)", deficiency)  # fmt: skip
    return DecodingError(FailureKind.ILL_CONDITIONED, f"decoding loses all digits (probe error {best[1].error:.1e})", 1)


def inactivation_plan(system: Residual, *, reason: str = "asked for", verify: bool | None = None,
                      largest: int | None = None) -> InactivationPlan | None:  # fmt: skip
    """The plan for sparse rows over the missing unknowns, without an outer code.

    Returns None when more than `largest` symbols would be inactive. Raises DecodingError as `best_solver`.
    """
    squares = np.array([float(np.sum(np.abs(row.values) ** 2)) for row in system.rows])
    known = np.array([len(row.indices) for row in system.rows]) - np.diff(system.matrix.indptr)
    noise = squares * (1.0 + known / np.maximum(known + np.diff(system.matrix.indptr), 1))
    equations = system.equations
    copies = equations.shape[0] // max(len(system.rows), 1)
    found = best_solver(SparseSystem(equations, noise=np.tile(noise, copies)), verify=verify, largest=largest)
    if found is None:
        return None
    return plan_of(
        found,
        missing=system.missing,
        wanted=np.arange(len(system.missing)),
        unknowns=system.unknowns,
        direct=system.direct,
        keys=system.keys,
        rows=system.rows,
        realify=system.realify,
        reason=reason,
    )


def plan_of(found: tuple[SparseSolver, Probe], *, missing: IntArray, wanted: IntArray, unknowns: int,
            direct: Mapping[int, tuple[SourceKey, complex]], keys: tuple[SourceKey, ...], rows: tuple[CodedRow, ...],
            realify: bool, reason: str) -> InactivationPlan:  # fmt: skip
    """Wrap a solver as a plan; all results are its sources, because the dense stage weighs all that no step used."""
    solver, probed = found
    plan = InactivationPlan(
        unknowns=unknowns, direct=direct, missing=missing, sources=keys, rows=rows, rank=solver.rank,
        deficiency=solver.deficiency, condition=solver.condition, inactivations=len(solver.inactive),
        refinement=int(solver.refine), reason=reason, realify=realify,
        solver=solver, take=np.arange(solver.system.results), wanted=wanted, probe_error=probed.error,
    )  # fmt: skip
    return replace(plan, block_operations=int(plan.known_coefficients.nnz) + solver.operations)


def sparse_plan(system: Residual, method: str = "auto") -> tuple[InactivationPlan | None, str]:
    """The inactivation plan where it is to be used, else None (use the LU); and the reason.

    The cost model counts block multiply-adds: σ² for the LU, in triangular solves (BLAS-3); for inactivation those
    recorded, each of a pass counting PASS_COST times (memory-bound), of the dense stage DENSE_COST times. A TIE goes to
    inactivation. Raises DecodingError where the LU is out of the question too.
    """
    sigma = len(system.missing)
    if method not in ("auto", "inactivation") or (method == "auto" and sigma <= LU_ALWAYS_UP_TO):
        few = "asked for" if method != "auto" else f"dense LU of {sigma} missing blocks, at most {LU_ALWAYS_UP_TO}"
        return None, few
    forced = method == "inactivation" or sigma >= LU_NEVER_FROM
    try:
        plan = inactivation_plan(system, largest=None if forced else most_inactive(system))
    except DecodingError:
        if forced:
            raise
        return None, f"dense LU of {sigma} missing blocks: inactivation finds no accurate order"
    if plan is None:
        return None, f"dense LU of {sigma} missing blocks: more than {most_inactive(system)} would be inactive"
    reason = f"{plan.inactivations} inactive of {sigma}: {sparse_cost(plan):.3g} weighted operations, LU {sigma**2:.3g}"
    if not forced and sparse_cost(plan) > TIE * sigma**2:
        return None, f"dense LU of {sigma} missing blocks: inactivation would leave {reason}"
    return replace(plan, reason=f"inactivation leaves {reason}"), reason


def sparse_cost(plan: InactivationPlan) -> float:
    """Weighted block multiply-adds of an inactivation plan, in units of a BLAS-3 one."""
    dense = plan.solver.dense
    blas = 0 if dense is None else (1 + plan.refinement) * dense.operations
    return PASS_COST * (plan.solver.operations - blas) + DENSE_COST * blas


def most_inactive(system: Residual) -> int:
    """Inactive symbols beyond which two passes and a dense stage of that size cost more than the LU's σ²."""
    sigma, passes = len(system.missing), 2 * PASS_COST * system.equations.nnz
    return int(np.sqrt(max(TIE * float(sigma) ** 2 - passes, 0.0) / (1.5 * DENSE_COST)))
