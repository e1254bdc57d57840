"""The decoding plan: which results give which blocks, found from coefficients alone and applied to blocks later.

A plan is made once (symbolic phase) and then applied to slices of elements (numeric phase), because decoding acts on
every element of a block alike. It can be printed, counted and rehearsed on scalars before any block is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from cmm.core.errors import CmmError, ExitCode, FailureKind, Outcome
from cmm.core.task import Array, IntArray
from cmm.linalg.dense import Factorisation
from cmm.linalg.rows import CodedRow, stack

SourceKey = tuple[int, int]
"""(task, output): one received result."""

ELEMENTS_PER_UNKNOWN = 5
"""An explicit inverse costs 4/3 sigma^3 operations and makes the 2 sigma^2 per element about 1.4 times as fast."""

INVERSE_LIMIT = 1e8
"""Condition number up to which the explicit inverse is used: it is as accurate as the factors while digits are left."""


class DecodingError(CmmError):
    """The results at hand do not give C (exit code 4, or 5 when they do but no digit would be left).

    Attributes
    ----------
    kind : why
    needed : further rows needed at the least
    """

    exit_code = ExitCode.INCOMPLETE
    outcome = Outcome.INCOMPLETE

    def __init__(self, kind: FailureKind, message: str, needed: int) -> None:
        self.kind, self.message, self.needed = kind, message, needed
        if kind is FailureKind.ILL_CONDITIONED:
            self.exit_code, self.outcome = ExitCode.INACCURATE, Outcome.INACCURATE
        super().__init__(f"{kind.value}: {message}; at least {needed} more result row(s) needed")


@dataclass(frozen=True, eq=False)
class Residual:
    """What is left to solve once direct results are in: rows over the outstanding unknowns.

    Attributes
    ----------
    unknowns : number of columns of M
    missing : (sigma,) the outstanding unknowns, increasing
    direct : unknown -> (source, coefficient) of the results that give an unknown at once
    keys, rows : the results with at least one outstanding unknown, by number
    matrix : (len(rows), sigma) CSR, their coefficients on the outstanding unknowns
    realify : the unknowns are real, so a complex row is two real ones
    """

    unknowns: int
    missing: IntArray
    direct: Mapping[int, tuple[SourceKey, complex]]
    keys: tuple[SourceKey, ...]
    rows: tuple[CodedRow, ...]
    matrix: sp.csr_array
    realify: bool

    @property
    def counts(self) -> IntArray:
        """(len(rows),) how many outstanding unknowns each row has."""
        counts: IntArray = np.diff(self.matrix.indptr).astype(np.intp)
        return counts

    @cached_property
    def equations(self) -> sp.csr_array:
        """The rows as equations: `matrix` itself, or (realify) its real parts above its imaginary parts."""
        if not (self.realify and np.iscomplexobj(self.matrix.data)):
            return self.matrix
        both = sp.csr_array(sp.vstack([self.matrix.real, self.matrix.imag]))
        both.eliminate_zeros()
        return both


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Base of all plans; itself the plan "copy", where every target arrived directly.

    Attributes
    ----------
    method : "copy", "lu", "inactivation", "combination"
    unknowns : number of columns of M
    direct : target -> (source, coefficient): the target is that result divided by the coefficient
    missing : targets to be solved for, in the order `solve` returns them
    sources : results used by the solve, in the order of `results`
    rows : their coefficient rows, over all unknowns
    rank, deficiency : of the system that was solved; deficiency 0 unless a plan is only partial
    condition : estimated condition number of the system, rows scaled to norm one
    inactivations, refinement : number of inactivated unknowns and of refinement passes
    block_operations : block multiply-adds, subtraction of known blocks included
    reason : why this solver
    realify : real unknowns with complex results; `results` are complex and split inside
    """

    method: str = "copy"
    unknowns: int
    direct: Mapping[int, tuple[SourceKey, complex]]
    missing: IntArray
    sources: tuple[SourceKey, ...] = ()
    rows: tuple[CodedRow, ...] = ()
    rank: int = 0
    deficiency: int = 0
    condition: float = 1.0
    inactivations: int = 0
    refinement: int = 0
    block_operations: int = 0
    reason: str = "every block arrived directly"
    realify: bool = False

    def answer(self, unknowns: Array) -> Array:
        """What `solve` has to return when the unknowns are these. (unknowns, e) -> (len(missing), e)."""
        chosen: Array = unknowns[self.missing]
        return chosen

    @cached_property
    def known_coefficients(self) -> sp.csr_array:
        """(len(sources), unknowns) CSR: coefficients of `rows` on unknowns that are known, i.e. not in `missing`."""
        matrix = stack(list(self.rows), self.unknowns)
        outstanding = np.zeros(self.unknowns, dtype=bool)
        outstanding[self.missing] = True
        matrix.data[outstanding[matrix.indices]] = 0
        matrix.eliminate_zeros()
        return matrix

    @property
    def workspace(self) -> int:
        """Elements of working memory, results included, that `solve` needs per element of a block."""
        return 2 * len(self.sources)

    def subtract(self, known: Array, results: Array) -> Array:
        """results - (coefficients of known unknowns) known. known: (unknowns, e); results: (len(sources), e).

        In place where the dtype allows it; the returned array counts.
        """
        update: Array = self.known_coefficients @ known
        if np.iscomplexobj(update) and not np.iscomplexobj(results):
            return results - update
        results -= update
        return results

    def solve(self, known: Array | None, results: Array) -> Array:
        """The missing targets from results, one column per element.

        known : (unknowns, e) with zeros at missing unknowns, or None when nothing is known or it is subtracted already
        results : (len(sources), e) C-contiguous float64 or complex128; may be overwritten
        returns : (len(missing), e), real for `realify`
        """
        if known is not None and len(self.sources):
            results = self.subtract(known, results)
        return self._solve(results)

    def prepared(self, elements: int) -> Plan:
        """The same plan with whatever pays off precomputed when it is applied to `elements` elements per block."""
        return self

    def _solve(self, results: Array) -> Array:
        """Solve for the missing targets from results with the known unknowns subtracted (a subclass's part)."""
        return np.empty((0, results.shape[1]), dtype=results.dtype)

    def _equations(self, results: Array, take: IntArray) -> Array:
        """Right-hand sides of the equations: `take` counts results, then (realify) their imaginary parts."""
        if not self.realify:
            # the plan's own order needs no copy
            return results if len(take) == len(results) and _identity(take) else np.ascontiguousarray(results[take])
        imaginary = take >= len(self.sources)
        out = np.empty((len(take), results.shape[1]))
        out[~imaginary] = results.real[take[~imaginary]]
        out[imaginary] = results.imag[take[imaginary] - len(self.sources)]
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class LuPlan(Plan):
    """LU of the coefficients on the missing unknowns. `take`: the equations used, see Plan._equations."""

    factors: Factorisation
    take: IntArray

    def prepared(self, elements: int) -> Plan:
        """With the explicit inverse where there are many more elements than unknowns and digits to spare."""
        pays = elements >= ELEMENTS_PER_UNKNOWN * len(self.missing) and self.condition <= INVERSE_LIMIT
        if not pays:
            return self
        prepared = replace(self, factors=self.factors.inverted())
        prepared.__dict__["known_coefficients"] = self.known_coefficients
        return prepared

    def _solve(self, results: Array) -> Array:
        rhs = self._equations(results, self.take)
        if np.iscomplexobj(self.factors.lu) and not np.iscomplexobj(rhs):
            rhs = rhs.astype(np.complex128)
        return self.factors.solve(rhs)


@dataclass(frozen=True, eq=False, kw_only=True)
class CombinationPlan(Plan):
    """Every target is a combination of results: missing targets = combination @ results (targets that are sums).

    targets : (len(missing), unknowns) CSR, what is wanted of the unknowns
    """

    combination: Array
    take: IntArray
    targets: sp.csr_array

    def answer(self, unknowns: Array) -> Array:
        """The wanted sums of these unknowns."""
        sums: Array = self.targets @ unknowns
        return sums

    def subtract(self, known: Array, results: Array) -> Array:
        """Nothing to subtract: directly known unknowns are among the sources."""
        return results

    def _solve(self, results: Array) -> Array:
        rhs = self._equations(results, self.take)
        if np.iscomplexobj(rhs) and not np.iscomplexobj(self.combination):
            real: Array = self.combination @ rhs.view(np.float64)
            return real.view(np.complex128)
        product: Array = self.combination @ rhs
        return product


def _identity(take: IntArray) -> bool:
    return bool((take == np.arange(len(take))).all())
