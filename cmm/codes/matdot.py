"""MatDot codes: the shared dimension is split, A = [A_0; ..; A_(p-1)], B likewise, and C = sum_k A_k^T B_k.

Dutta, Fahim, Haddadpour, Jeong, Cadambe, Grover, "On the optimal recovery threshold of coded matrix multiplication",
IEEE Trans. Inf. Theory 2020:

    Ã(x) = sum_k A_k x^k        B̃(x) = sum_k B_k x^(p - 1 - k)        C = coefficient of x^(p - 1)

Any 2p - 1 results decode (p with nodes=circle and real data), the least for storage 1/p, but every result is as large
as C. Real nodes lose about a digit for each further p; orthomatdot does not.
"""

from __future__ import annotations

import numpy as np

from cmm.codes.polynomial import NodeCode
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import IntArray

MOST_PARTS = 8  # chosen by default: all 2p - 1 results, each as large as C, wait for decoding


def refuse_blocks(name: str, grid: Grid) -> None:
    """For codes whose results are all of C: raise UsageError when m or n is not 1."""
    if grid.K != 1:
        raise UsageError("--grid", f"{name} splits the shared dimension only", grid,
                         f"Use {max(grid.p, grid.K)}x1x1, or --code entangled.")  # fmt: skip


def parts_within(results: int, s: int) -> int:
    """p with 2p - 1 <= results, at most MOST_PARTS and s."""
    return max(1, min((results + 1) // 2, MOST_PARTS, s))


class MatDot(NodeCode):
    """Grid p x 1 x 1."""

    name = "matdot"
    paper = "Dutta et al., IEEE Trans. Inf. Theory 66 (2020)"
    recovery = "any 2p - 1 of P; any p with nodes=circle and real data"
    good_for = "a long shared dimension and a small C: each result is as large as C; p up to 6 on real nodes"

    @classmethod
    def coefficients(cls, grid: Grid) -> int:
        return 2 * grid.p - 1

    @classmethod
    def grid_of(cls, coefficients: int, s: int, r: int, t: int) -> Grid:
        return Grid(1, 1, parts_within(coefficients, s))

    def refuse_grid(self) -> None:
        refuse_blocks(self.name, self.grid)

    def exponents(self) -> tuple[IntArray, IntArray]:
        powers = np.arange(self.grid.p)
        return powers, powers[::-1]
