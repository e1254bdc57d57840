"""The decoder of a code with an outer product code: it works on the array of coded pairs, not on the source blocks.

A task's row over the mn source blocks is dense wherever it meets a parity chunk; over the m̃ñ coded pairs it is sparse,
and the parity checks of the lines are equations of their own:

              m̃ñ coded pairs
         ┌─────────────────────┐
       N │ a ⊗ b, sparse       │ = results
         ├─────────────────────┤
         │ H_B per row of the  │ = 0        full rank m̃ñ  ⇔  the source blocks follow
         │ array, H_A per col. │
         └─────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import structural_rank

from cmm.core.errors import FailureKind
from cmm.linalg.decoder import Decoder
from cmm.linalg.inactivation import best_solver, plan_of
from cmm.linalg.outer import ProductCode
from cmm.linalg.plan import DecodingError, Plan, SourceKey
from cmm.linalg.rows import CodedRow, Targets, stack
from cmm.linalg.schedule import SparseSystem


class CodedDecoder(Decoder):
    """A decoder with one row per task over the symbols of a product code.

    Parameters
    ----------
    outer : the product code
    coded_row : task number -> its row over the m̃ñ symbols
    """

    def __init__(self, outer: ProductCode, coded_row: Callable[[int], CodedRow]) -> None:
        super().__init__(outer.m * outer.n, Targets(outer.m * outer.n))
        self.outer, self.coded_row = outer, coded_row
        self._coded: dict[SourceKey, CodedRow] = {}

    def add(self, task: int, rows: Sequence[CodedRow]) -> None:
        """Take in an accepted result; `rows` (one) is its row over the source blocks."""
        if task not in self._tasks and len(rows[0].indices) > 1:
            self._coded[task, 0] = self.coded_row(task)
        super().add(task, rows)

    def system(self) -> SparseSystem:
        """All results that are not source blocks themselves, over the symbols; known source blocks count as zero,
        because what is known is subtracted from the results first."""
        matrix = stack([self._coded[key] for key in self._keys], self.outer.symbols)
        known = np.array(sorted(self._direct), dtype=np.intp)
        errors = np.array([1.0 / abs(self._direct[u][1]) ** 2 for u in known.tolist()])
        symbols = self.outer.source[known]
        return SparseSystem(matrix, symbols, errors, outer=self.outer)

    def _attempt(self) -> None:
        if len(self._direct) == self.unknowns:
            self._accept(Plan(unknowns=self.unknowns, direct=self._direct.copy(), missing=np.empty(0, np.intp)))
            return
        system = self.system()
        rank = self._structural_rank(system)
        if rank < self.outer.symbols:
            message = f"{system.results} results and the outer code have rank {rank} of {self.outer.symbols} at most"
            self._refuse(FailureKind.INCOMPLETE, message, self.outer.symbols - rank)
            return
        try:
            found = best_solver(system)
        except DecodingError as failure:
            self._refuse(failure.kind, failure.message, failure.needed)
            return
        if found is not None:
            missing = np.flatnonzero(~self._known)
            self._accept(plan_of(
                found, missing=missing, wanted=self.outer.source[missing], unknowns=self.unknowns,
                direct=self._direct.copy(), keys=tuple(self._keys), rows=tuple(self._rows), realify=False,
                reason="the outer product code makes the rows sparse",
            ))  # fmt: skip

    def _structural_rank(self, system: SparseSystem) -> int:
        """Of results, known symbols and parity checks together."""
        known = sp.csr_array((np.ones(len(system.known)), (np.arange(len(system.known)), system.known)),
                             shape=(len(system.known), system.symbols))  # fmt: skip
        return int(structural_rank(sp.csr_array(sp.vstack([system.matrix, known, self.outer.checks]))))
