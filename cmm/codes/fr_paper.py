"""FR as published: an outer product code on the chunks, then factored LT combinations of the coded pairs.

arXiv 1907.11018, section III-B. A's m chunks become m̃ by a systematic (m̃, m) MDS code (identity, then random parity
rows as in RKRP codes), B's n become ñ; a task combines d_A of the coded Â and d_B of the coded B̂:

    C̃_p = (Σ_i a_i Â_i)ᵀ (Σ_j b_j B̂_j),     over the source blocks the row (G_Aᵀ a) ⊗ (G_Bᵀ b)

Workers see the latter only, an ordinary assignment. The decoder works on the m̃ × ñ array of coded pairs, where the
rows are sparse and every line is a codeword (linalg/outer.py, linalg/coded.py).

Departures and reconstructions: ERRATA.md, items 1 to 6.
"""

from __future__ import annotations

import math

import numpy as np

from cmm.codes.base import Threshold
from cmm.codes.coefficients import LAWS
from cmm.codes.flt import FactoredStream, read_omega
from cmm.codes.fr import Construction, FactoredRaptor
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Array, Assignment, Combination, IntArray
from cmm.linalg.coded import CodedDecoder
from cmm.linalg.decoder import Decoder
from cmm.linalg.outer import ProductCode
from cmm.linalg.rows import CodedRow

PARITIES = 2  # a side unless `outer` is given: one leaves an error floor (schemes.md D)


class Paper(Construction):
    """The published construction; parameters outer, omega, pair_rule, infeasible, coefficients."""

    def __init__(self, code: FactoredRaptor) -> None:
        super().__init__(code)
        self.repairs = code.dispatch == "pull"
        rows, columns = read_outer(code.params["outer"], self.grid)
        self.outer = ProductCode(self._parity("outer a", rows - self.grid.m, self.grid.m),
                                 self._parity("outer b", columns - self.grid.n, self.grid.n))  # fmt: skip
        omega = read_omega(code.params, rows, columns)
        self.stream = FactoredStream(lambda page: code.rng("page", page), rows, columns, omega,
                                     code.params["pair_rule"], self.law)  # fmt: skip

    def _parity(self, key: str, parities: int, chunks: int) -> Array:
        """Parity rows, scaled by 1/√chunks so that coded chunks are as large as chunks (ERRATA.md, item 4). Signs
        would make two parity rows dependent on few erasures, so they are drawn as ±U[0.5, 1.5] then."""
        law = "gaussian" if self.law == "gaussian" else "uniform"
        drawn: Array = LAWS[law](self.code.rng(key), parities * chunks) / np.sqrt(chunks)
        return drawn.reshape(parities, chunks)

    def task(self, index: int) -> Assignment:
        a, b = self.stream.factors(index)
        return Assignment.pair(index, source_combination(a, self.outer.parity_a),
                               source_combination(b, self.outer.parity_b), self.grid.chunks_b)  # fmt: skip

    def repair(self, outstanding: IntArray, index: int) -> Assignment:
        """The code is rateless: more of the stream."""
        return self.task(index)

    def coded_row(self, index: int) -> CodedRow:
        """A task's row over the m̃ñ coded pairs."""
        return self.stream.row(index)

    def threshold(self) -> Threshold:
        """Typical under inactivation: 1.25 % and a few (K = 6400: 6484; 0 of 150 failed at 6480, schemes.md 0.3)."""
        return Threshold(self.grid.K + math.ceil(0.0125 * self.grid.K) + 4, certain=False)

    def decoder(self, real_data: bool) -> Decoder:
        return CodedDecoder(self.outer, self.coded_row)


def source_combination(coded: Combination, parity: Array) -> Combination:
    """A combination of coded chunks as one of source chunks: Gᵀ a, G = [I; parity]."""
    chunks = parity.shape[1]
    split = int(np.searchsorted(coded.indices, chunks))
    if split == len(coded.indices):
        return coded
    dense = coded.values[split:] @ parity[coded.indices[split:] - chunks]
    dense[coded.indices[:split]] += coded.values[:split]
    return Combination.of(np.arange(chunks), dense)


def _grid(text: str, grid: Grid) -> Grid:
    try:
        return Grid.parse(text)
    except UsageError as error:
        raise UsageError("--param outer", error.rule, error.value,
                         f"Use for example outer={grid.m + PARITIES}x{grid.n + PARITIES}.") from None  # fmt: skip


def read_outer(text: str | None, grid: Grid) -> tuple[int, int]:
    """(m̃, ñ) from `MxN`; two parities a side when not given. Raises UsageError when smaller than the grid."""
    if text is None:
        return grid.m + PARITIES, grid.n + PARITIES
    outer = _grid(text, grid)
    if outer.p != 1 or outer.m < grid.m or outer.n < grid.n:
        raise UsageError("--param outer", f"must be at least the grid {grid}", text,
                         f"Use for example outer={grid.m + PARITIES}x{grid.n + PARITIES}.")  # fmt: skip
    return outer.m, outer.n
