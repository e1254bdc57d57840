"""The check of the finished C: the same check as for single results, with one chunk each of A and B.

C y must equal A^T (B y) for a random y. A and B are looked at as the code saw them, in columns scaled by powers of two,
so that columns of any size carry equal weight. C may come as it was decoded (scaled) or as the user gets it (unscaled).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cmm.core.grid import Grid, Partition
from cmm.core.task import Array, Assignment, Combination
from cmm.verify.freivalds import ResultCheck, Verdict
from cmm.verify.passes import times
from cmm.verify.recompute import Operand, wide

_EXACT_RANGE = 400  # scaling x by powers of two up to here loses nothing that matters
_ESTIMATES = 6  # an estimate is none of the largest element's error, but of what few elements exceed
_SLAB = 1 << 20  # bytes of C copied at a time


class ScaledOperand(Operand, Protocol):
    """A or B in scaled columns: column j is the user's times 2^-exponents[j], or zero where it is not finite."""

    @property
    def exponents(self) -> Array: ...
    @property
    def finite(self) -> Array: ...


@dataclass(frozen=True)
class ProductVerdict:
    """What the check of C found.

    Attributes
    ----------
    ok : C is the product
    residual, limit : largest residual of a row and its limit, relative to |A_i| sqrt(sum_j y_j^2 |B_j|^2)
    missed : an error of one element below this, relative to the norms of its two columns, may go unseen (for columns
        of B of equal norm; scaled ones differ by less than 2)
    rows, columns : how much of C could be checked: lines of columns with NaN or infinity cannot
    examined : rows recomputed element by element
    reason : why C was not accepted
    """

    ok: bool
    residual: float
    limit: float
    missed: float
    rows: int
    columns: int
    examined: int = 0
    reason: str = ""


def check_product(a: ScaledOperand, b: ScaledOperand, C: Array, *, unscaled: bool, error: float = 0.0,
                  tolerance: float = 0.0, rng: np.random.Generator | None = None,
                  results: ResultCheck | None = None) -> ProductVerdict:  # fmt: skip
    """Check C against A^T B: two skinny products over A and B and one over C, no copies of any of them.

    Parameters
    ----------
    a, b : A (conjugated for op = H) and B in scaled columns
    C : (r, t), float32, float64, complex64 or complex128, any strides
    unscaled : whether C has been unscaled already. Elements that then overflowed count as wrong; before unscaling
        they do not exist
    error : what the elements of C may be off on top of the rounding of a product, relative to the norms of their
        columns: 0 if every block was received as such, else the error estimate of the decoding (six times a root
        mean square)
    tolerance : of the job: an element that is recomputed may be off by six estimates where that is less
    rng : where y comes from; the operating system's entropy unless given
    results : the check of the job's results on the same a and b: where it is ready, its vectors are used again and only
        C is looked at
    """
    if results is not None and results.ready:
        check = results.whole(rng)
    else:
        check = ResultCheck(Partition(Grid(1, 1), a.shape[0], a.shape[1], b.shape[1]), a, b, rng).prepare()
    view = _Product(C, a, b, unscaled)
    found: Verdict = check.judge(Assignment.pair(0, Combination.unit(0), Combination.unit(0), 1), 0, view, error,
                                 min(_ESTIMATES * error, tolerance))  # fmt: skip
    rows, columns = int(np.count_nonzero(view.rows_checked)), int(np.count_nonzero(b.finite))
    missed = check.unseen(found.most) if found.ok else float("nan")
    return ProductVerdict(found.ok, found.residual, found.limit, missed, rows, columns, found.examined, found.reason)


class _Product:
    """C seen in scaled columns; rows of columns of A that are not finite are not checked, columns of B likewise."""

    def __init__(self, C: Array, a: ScaledOperand, b: ScaledOperand, unscaled: bool) -> None:
        self._C, self._finite = C, b.finite
        self._scaled = unscaled and bool(a.exponents.any() or b.exponents.any())
        self._left = a.exponents if self._scaled else np.zeros_like(a.exponents)
        self._right = b.exponents if self._scaled else np.zeros_like(b.exponents)
        self.rows_checked: Array | bool = np.asarray(a.finite)

    def times(self, x: Array) -> Array:
        reach = max(np.abs(self._left).max(initial=0), np.abs(self._right).max(initial=0))
        if reach > _EXACT_RANGE:
            rows = [self.row(index)[0] @ x for index in range(len(self._C))]
            return np.array(rows)
        x = np.ldexp(x, -self._right)
        if self._finite.all():
            return _ldexp(times(self._C, x), -self._left)
        height = max(1, _SLAB // max(1, self._C.shape[1] * 16))
        slabs = [self._C[k : k + height] for k in range(0, max(1, len(self._C)), height)]
        return _ldexp(np.concatenate([times(np.where(self._finite, slab, 0), x) for slab in slabs]), -self._left)

    def slack(self, x: Array) -> Array | float:
        """Elements below the normal range were rounded to a multiple of the smallest number when C was unscaled."""
        if not self._scaled:
            return 0.0
        with np.errstate(over="ignore", under="ignore"):
            smallest = np.ldexp(self._smallest(), -np.add.outer(self._left, [int(self._right.min(initial=0))]))[:, 0]
            return np.where(smallest > 1e-30, smallest, 0.0) * float(np.abs(x).sum())

    def row(self, index: int) -> tuple[Array, Array | float]:
        powers = -(self._left[index] + self._right)
        with np.errstate(over="ignore", under="ignore"):
            values = _ldexp(np.where(self._finite, wide(self._C[index]), 0), powers)
            return values, np.ldexp(self._smallest(), powers) if self._scaled else 0.0

    def _smallest(self) -> float:
        return float(np.finfo(self._C.dtype).smallest_subnormal)


def _ldexp(values: Array, exponents: Array) -> Array:
    if values.dtype.kind != "c":
        return np.ldexp(values, exponents)
    return np.ldexp(values.real, exponents) + 1j * np.ldexp(values.imag, exponents)
