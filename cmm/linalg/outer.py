"""The outer product code of FR: a systematic MDS code on the chunks of A and one on the chunks of B.

Symbols are the coded pairs Â_iᵀB̂_j, numbered i · ñ + j over the m̃ × ñ array; the first m rows and n columns are the
source blocks. Every row of the array is a codeword of B's code, every column one of A's (arXiv 1907.11018, section
III-B):

            n        ñ−n
        ┌────────┬─────┐
      m │ source │  p  │  ← each row: H_B x = 0,  H_B = [G_B, −I]   ((ñ−n) × ñ)
        ├────────┼─────┤
    m̃−m │   p    │  pp │
        └────────┴─────┘
          ↑ each column: H_A x = 0,  H_A = [G_A, −I]   ((m̃−m) × m̃)

Lines are numbered rows first (0 … m̃−1), then columns (m̃ … m̃+ñ−1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from cmm.core.task import Array, IntArray


@dataclass(frozen=True, eq=False)
class ProductCode:
    """A systematic product code over the reals.

    Attributes
    ----------
    parity_a : (m̃ − m, m) float64, the parity rows G_A of A's code: Â_{m+k} = Σ_i G_A[k, i] A_i
    parity_b : (ñ − n, n) float64, likewise for B
    """

    parity_a: Array
    parity_b: Array

    @property
    def m(self) -> int:
        return int(self.parity_a.shape[1])

    @property
    def n(self) -> int:
        return int(self.parity_b.shape[1])

    @property
    def rows(self) -> int:
        """m̃, coded chunks of A."""
        return sum(self.parity_a.shape)

    @property
    def columns(self) -> int:
        """ñ, coded chunks of B."""
        return sum(self.parity_b.shape)

    @property
    def symbols(self) -> int:
        """m̃ñ."""
        return self.rows * self.columns

    @property
    def lines(self) -> int:
        return self.rows + self.columns

    @cached_property
    def source(self) -> IntArray:
        """(mn,) symbol number of source block i · n + j."""
        return (np.arange(self.m)[:, None] * self.columns + np.arange(self.n)).ravel()

    @cached_property
    def check_a(self) -> Array:
        """H_A, (m̃ − m, m̃)."""
        return np.hstack([self.parity_a, -np.eye(len(self.parity_a))])

    @cached_property
    def check_b(self) -> Array:
        """H_B, (ñ − n, ñ)."""
        return np.hstack([self.parity_b, -np.eye(len(self.parity_b))])

    def check(self, line: int) -> Array:
        """Parity checks of a line (checks × length)."""
        return self.check_b if line < self.rows else self.check_a

    def members(self, line: int) -> IntArray:
        """Symbol numbers along a line."""
        if line < self.rows:
            return line * self.columns + np.arange(self.columns)
        return np.arange(self.rows) * self.columns + (line - self.rows)

    def lines_of(self, symbol: int) -> tuple[int, int]:
        """The row line and the column line through a symbol."""
        i, j = divmod(symbol, self.columns)
        return i, self.rows + j

    @cached_property
    def generator_a(self) -> Array:
        """(m̃, m): identity, then parity rows."""
        return np.vstack([np.eye(self.m), self.parity_a])

    @cached_property
    def generator_b(self) -> Array:
        """(ñ, n)."""
        return np.vstack([np.eye(self.n), self.parity_b])

    def encode(self, x: Array) -> None:
        """Fill in the parities of x (m̃ñ, e) from its source symbols, in place."""
        cube = x.reshape(self.rows, self.columns, -1)
        m, n, e = self.m, self.n, cube.shape[2]
        for i in range(m):
            np.matmul(self.parity_b, cube[i, :n], out=cube[i, n:])
        flat = x.reshape(self.rows, self.columns * e)
        np.matmul(self.parity_a, flat[:m], out=flat[m:])

    @cached_property
    def checks(self) -> sp.csr_array:
        """All parity checks as sparse rows ((lines' checks) × m̃ñ), row lines first."""
        by_row = sp.kron(sp.eye_array(self.rows), self.check_b)
        by_column = sp.kron(self.check_a, sp.eye_array(self.columns))
        return sp.csr_array(sp.vstack([by_row, by_column]))

    @property
    def independent_checks(self) -> int:
        """Rank of `checks`: m̃ñ − mn."""
        return self.symbols - self.m * self.n
