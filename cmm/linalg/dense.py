"""Dense factorisations of coefficient matrices: LU of a tall system, least squares for sums, row spaces.

Only coefficients are factorised here (sigma x sigma numbers, sigma missing blocks); blocks come later. Over the reals
a pivot is not just nonzero or zero: every factorisation reports rank and condition, and the caller decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import get_lapack_funcs

from cmm.core.task import Array, IntArray

EPS = float(np.finfo(np.float64).eps)

CONDITION_LIMIT = 2.0**40
"""Largest accepted condition number, about 1/(4096 eps): beyond it fewer than four digits would be left."""


PANEL = 96
"""Rows per panel of the substitution."""


@dataclass(frozen=True, eq=False)
class Factorisation:
    """LU with partial pivoting of the rows picked from a tall matrix, rows scaled by powers of two.

    Attributes
    ----------
    lu : (n, n) C-contiguous float64 or complex128; unit lower triangle and upper triangle of diag(scale) M[rows]
    rows : (n,) rows of the tall matrix that were picked, in pivot order
    scale : (n,) powers of two that bring each picked row to a norm of about one (so does the noise of its result)
    condition : estimate of the 1-norm condition number of the scaled square matrix (LAPACK xGECON); inf when singular
    rank : columns minus tiny pivots; a lower bound of the rank, exact when it equals n and condition is moderate
    inverse : the inverse of M[rows], where it was asked for
    """

    lu: Array
    rows: IntArray
    scale: Array
    condition: float
    rank: int
    inverse: Array | None = field(default=None, repr=False)

    def inverted(self) -> Factorisation:
        """With the explicit inverse of M[rows], for very many columns: one GEMM is faster still than substitution."""
        (getri,) = get_lapack_funcs(("getri",), (self.lu,))
        inverse, _ = getri(np.asfortranarray(self.lu), np.arange(len(self.lu), dtype=np.int32))
        return replace(self, inverse=np.ascontiguousarray(inverse * self.scale))

    def solve(self, results: Array) -> Array:
        """Solve M[rows] X = results, in place if not inverted; X is returned. results: C-contiguous (n, e).

        Real factors act on the real and imaginary parts of complex results alike.
        """
        if np.iscomplexobj(results) and not np.iscomplexobj(self.lu):
            return self.solve(results.view(np.float64)).view(np.complex128)
        if self.inverse is not None:
            product: Array = self.inverse @ results
            return product
        results *= self.scale[:, None]
        self._substitute(results)
        return results

    def _substitute(self, x: Array) -> None:
        """Forward and back substitution in place, by panels: all but small diagonal blocks is GEMM on row-major x."""
        panels = self._panels
        part = np.empty((PANEL, x.shape[1]), dtype=x.dtype)
        for low, high, lower, _ in panels:
            rest = part[: high - low]
            x[low:high] -= np.matmul(self.lu[low:high, :low], x[:low], out=rest)
            x[low:high] = np.matmul(lower, x[low:high], out=rest)
        for low, high, _, upper in reversed(panels):
            rest = part[: high - low]
            x[low:high] -= np.matmul(self.lu[low:high, high:], x[high:], out=rest)
            x[low:high] = np.matmul(upper, x[low:high], out=rest)

    @cached_property
    def _panels(self) -> list[tuple[int, int, Array, Array]]:
        """(low, high, inverse of the lower, of the upper triangle) of the diagonal blocks."""
        (trtri,) = get_lapack_funcs(("trtri",), (self.lu,))
        panels = []
        for low in range(0, len(self.lu), PANEL):
            high = min(len(self.lu), low + PANEL)
            block = np.asfortranarray(self.lu[low:high, low:high])
            lower = np.tril(trtri(block, lower=1, unitdiag=1)[0], -1) + np.eye(high - low)
            panels.append((low, high, lower, np.triu(trtri(block, lower=0)[0])))
        return panels


def factorise(matrix: Array) -> Factorisation:
    """LU with partial pivoting of a tall matrix (rows >= columns >= 1, float64 or complex128).

    Pivoting over all rows picks a well-conditioned square system where there are more rows than unknowns.
    """
    scale = _row_scale(matrix)
    scaled = np.asfortranarray(matrix * scale[:, None])
    columns = scaled.shape[1]
    getrf, gecon = get_lapack_funcs(("getrf", "gecon"), (scaled,))
    factors, swaps, _ = getrf(scaled)
    rows = _picked(swaps, len(scaled))[:columns]
    lu = np.ascontiguousarray(factors[:columns])
    pivots = np.abs(lu.diagonal())
    tiny = pivots <= columns * EPS * pivots.max(initial=0.0)
    condition = np.inf
    if not tiny.any():
        rcond, _ = gecon(np.asfortranarray(lu), float(np.abs(scaled[rows]).sum(axis=0).max()))
        condition = 1.0 / rcond if rcond > 0 else np.inf
    return Factorisation(lu, rows, scale[rows], float(condition), columns - int(np.count_nonzero(tiny)))


def _row_scale(matrix: Array) -> Array:
    norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix.conj()).real)
    norms[norms == 0] = 1.0
    scale: Array = np.exp2(-np.rint(np.log2(norms)))
    return scale


def _picked(swaps: Array, rows: int) -> IntArray:
    """Row numbers after LAPACK's sequence of interchanges."""
    order = np.arange(rows, dtype=np.intp)
    for k, other in enumerate(swaps.tolist()):
        if other != k:
            order[k], order[other] = order[other], order[k]
    return order


@dataclass(frozen=True, eq=False)
class Combinations:
    """D with D M = T in the least-norm sense, and whether it does.

    Attributes
    ----------
    matrix : (targets, rows) D
    residual : largest |D M - T| relative to what rounding explains, eps * size * |D|; at most 1 when T is in the row
        space of M
    condition : ratio of the largest to the smallest singular value kept, rows scaled to norm one; at most
        CONDITION_LIMIT
    rank : number of singular values kept
    """

    matrix: Array
    residual: float
    condition: float
    rank: int


def combinations(matrix: Array, targets: Array) -> Combinations:
    """Least-norm D with D matrix = targets. matrix: (rows, columns), targets: (targets, columns)."""
    scale = _row_scale(matrix)
    scaled = matrix * scale[:, None]
    size = max(matrix.shape)
    # Directions beyond the limit are not used: what can be had without them is, what cannot shows in the residual.
    cutoff = max(size * EPS, 1.0 / CONDITION_LIMIT)
    solution, _, rank, singular = np.linalg.lstsq(scaled.T, targets.T, rcond=cutoff)
    weights = solution.T
    weights[np.abs(weights) <= 4 * EPS * size * np.abs(weights).max(initial=0.0)] = 0
    error = np.abs(weights @ scaled - targets).max(axis=1, initial=0.0)
    allowed = 100 * EPS * size * (np.linalg.norm(weights, axis=1) + 1.0)
    condition = float(singular[0] / singular[rank - 1]) if rank else np.inf
    return Combinations(weights * scale, float((error / allowed).max(initial=0.0)), condition, int(rank))


class RowSpace:
    """Orthonormal basis of the rows seen so far and what of the targets lies outside: a cheap necessary condition.

    Adding a row costs O((rank + targets) * columns), so the question can be asked after every result.
    """

    def __init__(self, targets: Array) -> None:
        self._outside: Array = np.array(targets)
        self._basis = np.empty((16, targets.shape[1]), dtype=targets.dtype)
        self.rank = 0

    def add(self, row: Array) -> None:
        """Take in one row (columns,), real or complex."""
        if np.iscomplexobj(row) and not np.iscomplexobj(self._basis):
            self._basis, self._outside = self._basis.astype(np.complex128), self._outside.astype(np.complex128)
        norm = float(np.linalg.norm(row))
        if norm == 0.0:
            return
        rest = row / norm
        basis = self._basis[: self.rank]
        for _ in range(2):  # orthogonalising twice is enough (Parlett and Kahan)
            rest = rest - (basis.conj() @ rest) @ basis
        length = float(np.linalg.norm(rest))
        if length <= 1e-10:
            return
        direction = rest / length
        if self.rank == len(self._basis):
            self._basis = np.concatenate([self._basis, np.empty_like(self._basis)])
        self._basis[self.rank] = direction
        self.rank += 1
        self._outside -= np.multiply.outer(self._outside @ direction.conj(), direction)

    @property
    def outside(self) -> float:
        """Largest norm of a target's component outside the row space."""
        return float(np.linalg.norm(self._outside, axis=1).max(initial=0.0))
