"""The symbolic decoder: from the coefficients of what has arrived to "decodable?" and to a plan.

The question is asked after every result, so it is gated: counts first, then structural rank, only then a
factorisation. A failed attempt tells how many more rows are needed at the least, and none is made before they are
there; a successful one stays valid, because more results never take anything away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import structural_rank

from cmm.core.errors import FailureKind
from cmm.core.task import IntArray
from cmm.linalg.dense import CONDITION_LIMIT, RowSpace, combinations, factorise
from cmm.linalg.directs import Directs
from cmm.linalg.inactivation import sparse_plan
from cmm.linalg.plan import CombinationPlan, DecodingError, LuPlan, Plan, Residual, SourceKey
from cmm.linalg.rows import CodedRow, Targets, stack

__all__ = ["Decoder", "DecodingError"]


class Decoder:
    """Collects coefficient rows of accepted results; says when the targets follow from them, and how.

    The plan depends on which results there are and not on the order in which they arrived: the same results give the
    same C, bit for bit.

    Parameters
    ----------
    unknowns : number of columns of M
    targets : what is wanted; the identity when its matrix is None
    realify : the unknowns are real, so that a complex row counts as two real ones (conjugate rows are dependent)
    method : "auto", or the name of a solver
    """

    def __init__(self, unknowns: int, targets: Targets, *, realify: bool = False, method: str = "auto") -> None:
        self.unknowns, self.targets, self.realify, self.method = unknowns, targets, realify, method
        self._tasks: set[int] = set()
        self._direct = Directs(unknowns)
        self._known = np.zeros(unknowns, dtype=bool)
        self._touched = np.zeros(unknowns, dtype=bool)
        self._keys: list[SourceKey] = []
        self._rows: list[CodedRow] = []
        self._weight = 0  # equations so far, repeated directs not counted: the rank is at most this
        self._retry = unknowns if targets.identity else 1  # no attempt below this weight
        self._decodable = False
        self._plan: Plan | None = None
        self._failure: tuple[FailureKind, str] | None = None
        self._support = np.ones(unknowns, dtype=bool)
        self._space: RowSpace | None = None
        if targets.matrix is not None:
            self._support[:] = False
            self._support[targets.matrix.indices] = True
            dtype = np.float64 if realify or not np.iscomplexobj(targets.matrix.data) else np.complex128
            self._space = RowSpace(targets.matrix.toarray().astype(dtype))

    # ---- results in --------------------------------------------------------------------------------------------

    @property
    def results(self) -> int:
        """N: results (tasks) added so far."""
        return len(self._tasks)

    def add(self, task: int, rows: Sequence[CodedRow]) -> None:
        """Take in an accepted result: one row per output. A task that was added already is ignored."""
        if task in self._tasks:
            return
        self._tasks.add(task)
        self._plan = None
        for output, row in enumerate(rows):
            if len(row.indices) == 1:
                self._add_direct((task, output), row)
            elif len(row.indices):
                place = bisect_left(self._keys, (task, output))  # by number, not by arrival: see the class
                self._keys.insert(place, (task, output))
                self._rows.insert(place, row)
                self._touched[row.indices] = True
                self._weight += self._equations_of(row)
                self._extend_space(row)

    def _add_direct(self, key: SourceKey, row: CodedRow) -> None:
        unknown = int(row.indices[0])
        known = self._direct.get(unknown)
        if known is None or key < known[0]:
            self._direct[unknown] = key, row.values[0].item()
        if known is None:
            self._known[unknown] = True
            self._weight += 1
            self._extend_space(row)

    def _equations_of(self, row: CodedRow) -> int:
        return 2 if self.realify and np.iscomplexobj(row.values) and row.values.imag.any() else 1

    def _extend_space(self, row: CodedRow) -> None:
        if self._space is None:
            return
        dense = np.zeros(self.unknowns, dtype=row.values.dtype)
        dense[row.indices] = row.values
        if self.realify:
            self._space.add(dense.real)
            if self._equations_of(row) == 2:
                self._space.add(dense.imag)
            return
        self._space.add(dense)

    # ---- questions ---------------------------------------------------------------------------------------------

    @property
    def missing(self) -> int:
        """Number of outstanding unknowns."""
        if self.targets.identity:
            return self.unknowns - len(self._direct)
        return len(self.outstanding())

    def outstanding(self) -> IntArray:
        """Wanted unknowns without a direct result, increasing."""
        return np.flatnonzero(self._support & ~self._known)

    def wanted(self) -> IntArray:
        """Unknowns whose direct computation would help most: outstanding ones that no result touches, then the rest."""
        outstanding = self.outstanding()
        covered = self._touched[outstanding]
        return np.concatenate([outstanding[~covered], outstanding[covered]])

    def decodable(self) -> bool:
        """Whether all targets follow from the results so far, with digits left. Cheap enough to ask after every one."""
        if not self._decodable and self._weight >= self._retry:
            self._attempt()
        return self._decodable

    def plan(self) -> Plan:
        """The plan for the results so far; made once per result.

        Raises DecodingError (kind, needed) when they do not suffice.
        """
        if self._plan is None and self._weight >= self._retry:
            self._attempt()
        if self._plan is None:
            kind, message = self._failure or (FailureKind.INCOMPLETE, f"{self._weight} result rows are too few")
            raise DecodingError(kind, message, max(1, self._retry - self._weight))
        return self._plan

    # ---- attempts ----------------------------------------------------------------------------------------------

    def _attempt(self) -> None:
        """Try to make a plan; on failure note why and the least number of further rows before another attempt."""
        if not self.targets.identity:
            self._attempt_combinations()
        elif len(self._direct) == self.unknowns:
            self._accept(Plan(unknowns=self.unknowns, direct=self._direct.copy(), missing=np.empty(0, np.intp)))
        else:
            self._attempt_residual()

    def _accept(self, plan: Plan) -> None:
        self._plan, self._decodable, self._failure = plan, True, None

    def _refuse(self, kind: FailureKind, message: str, needed: int) -> None:
        self._decodable, self._failure, self._retry = False, (kind, message), self._weight + max(1, needed)

    def _attempt_residual(self) -> None:
        uncovered = int(np.count_nonzero(~(self._known | self._touched)))
        if uncovered:
            self._refuse(FailureKind.INCOMPLETE, f"{uncovered} blocks are met by no result", uncovered)
            return
        system = self.residual()
        sigma, equations = len(system.missing), system.equations
        rank = equations.shape[0] if equations.shape[0] < sigma else int(structural_rank(equations))
        if rank < sigma:
            message = f"{sigma} blocks are missing and their equations have rank {rank} at most"
            self._refuse(FailureKind.INCOMPLETE, message, sigma - rank)
            return
        try:
            plan, reason = sparse_plan(system, self.method)
        except DecodingError as failure:
            self._refuse(failure.kind, failure.message, failure.needed)
            return
        if plan is not None:
            self._accept(plan)
        else:
            self._attempt_lu(system, reason)

    def _attempt_lu(self, system: Residual, reason: str) -> None:
        sigma = len(system.missing)
        factors = factorise(system.equations.toarray())
        if factors.rank < sigma:
            self._refuse(FailureKind.SINGULAR, f"the equations of {sigma} missing blocks have rank {factors.rank}", 1)
        elif not factors.condition <= CONDITION_LIMIT:
            message = f"the equations of {sigma} missing blocks have condition {factors.condition:.1e}"
            self._refuse(FailureKind.ILL_CONDITIONED, message, 1)
        else:
            used, take = self._used(factors.rows, len(system.rows))
            rows = tuple(system.rows[k] for k in used)
            known = sum(len(row.indices) for row in rows) - int(system.counts[used].sum())
            plan = LuPlan(
                method="lu", unknowns=self.unknowns, direct=system.direct, missing=system.missing,
                sources=tuple(system.keys[k] for k in used), rows=rows,
                rank=sigma, condition=factors.condition, block_operations=known + sigma * sigma, reason=reason,
                realify=self.realify, factors=factors, take=take,
            )  # fmt: skip
            self._accept(plan)

    @staticmethod
    def _used(picked: IntArray, rows: int) -> tuple[list[int], IntArray]:
        """Rows behind the picked equations, each once, and where each equation finds its right-hand side."""
        owner = picked % rows
        used = list(dict.fromkeys(owner.tolist()))
        position = {row: k for k, row in enumerate(used)}
        take = [position[row] + (len(used) if equation >= rows else 0)
                for row, equation in zip(owner.tolist(), picked.tolist(), strict=True)]  # fmt: skip
        return used, np.array(take, dtype=np.intp)

    def residual(self) -> Residual:
        """The rows of the results so far over the outstanding unknowns; rows without any are left out."""
        missing = np.flatnonzero(~self._known)
        matrix = stack(self._rows, self.unknowns)
        column = np.full(self.unknowns, -1, dtype=np.intp)
        column[missing] = np.arange(len(missing))
        keep = column[matrix.indices] >= 0
        counts = np.add.reduceat(np.append(keep, False), matrix.indptr[:-1]) if self._rows else np.empty(0, np.intp)
        alive = np.flatnonzero(counts)
        indptr = np.concatenate([[0], np.cumsum(counts[alive])])
        entries = matrix.data[keep], column[matrix.indices[keep]], indptr
        inner = sp.csr_array(entries, shape=(len(alive), len(missing)))
        return Residual(
            self.unknowns, missing, self._direct.copy(), tuple(self._keys[k] for k in alive),
            tuple(self._rows[k] for k in alive), inner, self.realify,
        )  # fmt: skip

    def _attempt_combinations(self) -> None:
        assert self._space is not None, "made with the targets' matrix"
        assert self.targets.matrix is not None
        if self._space.outside > 1e-6:
            self._refuse(FailureKind.INCOMPLETE, "the wanted sums are not in the span of the results", 1)
            return
        direct = sorted(self._direct)
        keys = [self._direct[u][0] for u in direct] + self._keys
        singles = [CodedRow(np.array([u], np.intp), np.array([self._direct[u][1]])) for u in direct]
        rows = singles + self._rows
        matrix = stack(rows, self.unknowns)
        touched = np.unique(np.concatenate([matrix.indices, self.targets.matrix.indices]))
        dense, wanted = matrix[:, touched].toarray(), self.targets.matrix[:, touched].toarray()
        if self.realify and np.iscomplexobj(dense):
            dense = np.concatenate([dense.real, dense.imag])
        found = combinations(dense, wanted)
        if found.residual > 1.0:
            message = f"the wanted sums need a combination of condition above {CONDITION_LIMIT:.1e}"
            self._refuse(FailureKind.ILL_CONDITIONED, message, 1)
            return
        equations = np.flatnonzero(np.abs(found.matrix).max(axis=0) > 0)
        used, take = self._used(equations, len(rows))
        self._accept(CombinationPlan(
            method="combination", unknowns=self.unknowns, direct={}, missing=np.arange(self.targets.count),
            sources=tuple(keys[k] for k in used), rows=tuple(rows[k] for k in used), rank=found.rank,
            condition=found.condition, block_operations=int(np.count_nonzero(found.matrix)),
            reason="the targets are sums of unknowns", realify=self.realify,
            combination=np.ascontiguousarray(found.matrix[:, equations]), take=take,
            targets=self.targets.matrix,
        ))  # fmt: skip
