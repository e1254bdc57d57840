"""Integer matrices: C exactly, in int64, or a refusal.

Workers multiply in float64, which is exact for integers as long as every sum of absolute values stays below 2^53,
whatever the order of summation. So: columns are not scaled; coefficients are small integers (law `integers`: +-1, 2,
3); `check_bounds` refuses a job whose coded sums or products could reach 2^53; decoding rounds what it solved for, and
`ExactSystem` accepts that only if the equations then hold exactly, which together with full column rank is a proof.
The finished C can be checked exactly once more by `product_holds`, without any of the results.

C is int64 whatever the widths of A and B (NumPy would wrap int16 @ int16); bool counts as 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from cmm.core.errors import DataError, InaccurateError
from cmm.core.rng import secret_generator
from cmm.core.task import Array
from cmm.matrices.files import EXACT, MatrixSource, check_exact, tiles
from cmm.matrices.stored import Matrix

LARGEST_COEFFICIENT = 3
PRIMES = (2147483647, 2147483629)  # below 2^31: products of two residues fit into int64

Int64 = npt.NDArray[np.int64]


def integral(*dtypes: np.dtype[Any]) -> bool:
    """Whether all of these are integers or bool: then C is computed exactly."""
    return all(dtype.kind in "biu" for dtype in dtypes)


# ---- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IntegerRange:
    """Upper bounds on an integer matrix, as Python integers (nothing overflows, and the most negative int64 has its
    absolute value).

    Attributes
    ----------
    largest : largest |x|
    column_sum : largest sum of |x| over a column
    column_square : largest sum of x^2 over a column
    """

    largest: int
    column_sum: int
    column_square: int

    @classmethod
    def of(cls, source: MatrixSource) -> IntegerRange:
        """One look at every element. Raises DataError for an element beyond 2^53, naming its column."""
        check_exact(source)
        array = source.array
        largest, sums, squares_ = 0.0, np.zeros(array.shape[1]), np.zeros(array.shape[1])
        for rows, cols in tiles(array):
            part = np.abs(array[rows, cols].astype(np.float64))
            largest = max(largest, float(part.max(initial=0)))
            sums[cols] += part.sum(axis=0)
            squares_[cols] += np.einsum("ij,ij->j", part, part)
        slack = 1 + (array.shape[0] + 2) * 2.0**-52  # these float sums were rounded; bounds must not be
        return cls(int(largest), _above(sums, slack), _above(squares_, slack))


def _above(sums: Array, slack: float) -> int:
    largest = float(sums.max(initial=0))
    return int(largest if largest < EXACT else np.ceil(largest * slack))  # below 2^53 nothing was rounded


def product_bound(a: IntegerRange, b: IntegerRange) -> int:
    """No |C_ij|, nor any partial sum of it, is larger: the best of three bounds."""
    squares_ = a.column_square * b.column_square
    root = 1 + isqrt(squares_ - 1) if squares_ else 0  # Cauchy-Schwarz, rounded up
    return min(a.column_sum * b.largest, a.largest * b.column_sum, root)


def check_bounds(a: IntegerRange, b: IntegerRange, weight_a: int = 1, weight_b: int = 1) -> int:
    """Refuse what float64 could round; return the bound on |C_ij|.

    Parameters
    ----------
    weight_a, weight_b : largest sum of |coefficients| of a coded operand, for example 3 m with coefficients up to 3
        over all m chunks; 1 when every task is a block of C itself

    Raises
    ------
    DataError : coded chunks or products could reach 2^53
    """
    bound = product_bound(a, b)
    worst = max(weight_a * weight_b * bound, weight_a * a.largest, weight_b * b.largest)
    if worst >= EXACT:
        coded = f", times {weight_a * weight_b} for coding" if weight_a * weight_b > 1 else ""
        remedy = "Convert to float for an approximate product, divide out a common factor"
        remedy += ", or use --code replication, which does not mix blocks." if coded and bound < EXACT else "."
        raise DataError("--a, --b", "an exact integer product needs every sum below 2^53 = 9007199254740992",
                        f"a bound of {bound} for an element of C{coded}", remedy)  # fmt: skip
    return bound


# ---- exact decoding ----------------------------------------------------------------------------------------------


class ExactSystem:
    """The equations M X = Y that decoding solves, in integers.

    Parameters
    ----------
    matrix : (rows, sigma), dense or sparse, integer values: coefficients of the results used on the missing blocks
    bound : no element of X is larger in absolute value (`product_bound`)

    Raises
    ------
    InaccurateError : the columns are not provably independent, so that X would not be unique
    DataError : coefficients that are no integers
    """

    def __init__(self, matrix: Array | sp.csr_array, bound: int) -> None:
        dense = np.asarray(matrix) if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())
        if np.iscomplexobj(dense) or not np.array_equal(dense, np.rint(dense)):
            raise DataError("coefficients", "must be integers for an exact product", dense.dtype,
                            "Use --param coefficients=integers.")  # fmt: skip
        if not full_column_rank(dense.astype(np.int64)):
            raise InaccurateError("the results used do not determine integer blocks uniquely")
        self._matrix, self._bound = sp.csr_array(dense.astype(np.float64)), bound
        if bound * int(np.abs(dense).sum(axis=1).max(initial=0)) >= EXACT:
            raise DataError("coefficients", "an exact check needs every sum below 2^53", bound, "Use a smaller grid.")

    def settle(self, results: Array, solved: Array) -> Array:
        """Round an approximate solution and prove it.

        Parameters
        ----------
        results : (rows, e) float64, Y: the results with known blocks subtracted, integers below 2^53
        solved : (sigma, e) float64, approximately X

        Returns
        -------
        X, (sigma, e) float64 with integer values; the only one with M X = Y

        Raises
        ------
        InaccurateError : M X != Y for the rounded X, or an element of it is out of range
        """
        rounded = np.rint(solved)
        inside = bool((np.abs(rounded) <= self._bound).all())  # a NaN is not
        if not inside or not np.array_equal(self._matrix @ rounded, results):  # exact: all sums below 2^53
            raise InaccurateError("the integer blocks solved for do not satisfy the results exactly")
        return rounded


class ExactSums:
    """Targets that are sums of results with integer coefficients, D Y with D M = T (grids that split the shared
    dimension). D M = T is proved in integers, once; the sums themselves are exact below 2^53.

    Parameters
    ----------
    combination : (targets, equations) D, integers up to rounding
    take : (equations,) which result each equation is
    matrix : (rows, unknowns) sparse, integer values: coefficients of the results
    targets : (targets, unknowns) sparse T
    bound : no element of a result is larger in absolute value

    Raises
    ------
    InaccurateError : D is not of integers, so that nothing is proved
    DataError : sums that float64 could round
    """

    def __init__(self, combination: Array, take: Array, matrix: sp.csr_array, targets: sp.csr_array,
                 bound: int) -> None:  # fmt: skip
        self._combination, self._take = np.rint(combination), take
        difference = sp.csr_array(self._combination) @ sp.csr_array(matrix)[take] - targets
        if np.iscomplexobj(difference.data) or abs(difference).max():
            raise InaccurateError("the results used do not give C with integer coefficients")
        if bound * int(np.abs(self._combination).sum(axis=1).max(initial=0)) >= EXACT:
            raise DataError("coefficients", "an exact sum needs every sum below 2^53", bound, "Use a smaller grid.")

    def settle(self, results: Array, solved: Array) -> Array:
        """The sums (targets, e) from results (rows, e); `solved`, the same with rounding, is not used."""
        exact: Array = self._combination @ results[self._take]
        return exact


def full_column_rank(matrix: Int64) -> bool:
    """Whether the columns of an integer matrix are independent, proved by elimination modulo a prime (independent
    modulo a prime means independent; the converse fails only for primes that divide every minor: two are tried)."""
    return matrix.shape[1] == 0 or any(_rank_modulo(matrix, prime) == matrix.shape[1] for prime in PRIMES)


def _rank_modulo(matrix: Int64, prime: int) -> int:
    work = matrix % prime
    rows, cols = work.shape
    if rows < cols:
        return 0
    for column in range(cols):
        pivots = np.flatnonzero(work[column:, column])
        if not len(pivots):
            return column
        pivot = column + int(pivots[0])
        work[[column, pivot]] = work[[pivot, column]]
        scaled = work[column, column:] * pow(int(work[column, column]), -1, prime) % prime
        below = column + 1 + np.flatnonzero(work[column + 1 :, column])
        work[below, column:] = (work[below, column:] - work[below, column, None] * scaled) % prime
    return cols


def as_int64(C: Array) -> Int64:
    """C as int64 from float64 with integer values below 2^53. Raises InaccurateError if it holds anything else."""
    rounded = np.rint(C)
    if not np.array_equal(rounded, C) or np.abs(C).max(initial=0) >= EXACT:
        raise InaccurateError("C holds values that are not integers below 2^53")
    return C.astype(np.int64)


# ---- the finished C ------------------------------------------------------------------------------------------------


def product_holds(A: Matrix, B: Matrix, C: Int64, rng: np.random.Generator | None = None) -> bool:
    """Freivalds' check in exact arithmetic: C y = A^T (B y) modulo two primes, for secret random y.

    A wrong C passes with a probability below 2^-60, whichever elements are wrong and by how little.

    Parameters
    ----------
    A : (s, r), B : (s, t), any integer dtype or bool, any strides, elements below 2^53
    C : (r, t) int64
    """
    rng = secret_generator() if rng is None else rng
    for prime in PRIMES:
        y = rng.integers(0, prime, size=(B.shape[1],))
        u = _times(B, y, prime)
        if not np.array_equal(_times(C, y, prime), _times(A.T, u, prime)):
            return False
    return True


def _times(matrix: Matrix, vector: Array, prime: int) -> Int64:
    """matrix @ vector modulo a prime, exactly; by tiles."""
    total = np.zeros(matrix.shape[0], dtype=np.int64)
    for rows, cols in tiles(matrix):
        part = matrix[rows, cols].astype(np.int64)
        largest = max(int(part.max(initial=0)), -int(part.min(initial=0)))
        if largest * prime * part.shape[1] < 1 << 63:
            total[rows] += (part @ vector[cols]) % prime
        else:
            total[rows] += (part % prime * vector[cols] % prime).sum(axis=1) % prime
    return total % prime
