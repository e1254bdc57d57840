"""The error estimate: a plan is rehearsed on random scalar columns before any block is touched (design 4c).

Blocks are replaced by random numbers whose products are known, results by their combinations with noise as large as
a worker's rounding, and the plan is applied to them in the job's dtypes. That includes the decoder's own rounding,
which a bound from the noise alone omits, and the true amplification, which condition * size * unit roundoff
overrates by a factor of 1e4 and more. It is an estimate, not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cmm.core.errors import UsageError
from cmm.core.grid import cut
from cmm.core.task import Array
from cmm.linalg.plan import Plan
from cmm.linalg.rows import CodedRow, stack

COLUMNS = 16
PAIRS = 8  # of columns whose sums are looked at, two at least,
ELEMENTS = 1 << 20  # and no more than so many elements
RUN = 384  # rows that kernels of matrix products add up before they touch C
SAFETY = 6.0
"""From the root mean square over columns to the largest of 1e7 elements: 5.5 standard deviations and a margin."""


@dataclass(frozen=True)
class NoiseModel:
    """How much a worker's product of two columns errs, relative to the product of their 2-norms.

    The sum of s products loses about roundoff * |partial sums|: those grow like sqrt(k) for uncorrelated columns and
    like rho * k for correlated ones, so the error is about roundoff * sqrt(1 + rho^2 s / 3). That takes roundings for
    independent. In constant columns all may go the same way, so it is at least what sums of sampled columns show.

    Attributes
    ----------
    roundoff : unit roundoff u of the dtype workers multiply in, e.g. 2**-53
    s : length of the columns (rows of A and B)
    rho : root mean square of |a.b| / (|a| |b|) over sampled columns of A and B, in [0, 1]
    split : p, the parts s is cut into
    spread : root mean square over smallest column norm within A times the same within B, at least 1; repaired blocks
        err relative to the columns of their combination, not to their own. With a split also how uneven the parts of
        columns are
    observed : root mean square error of the sums of sampled columns' products, relative to the norms
    """

    roundoff: float
    s: int
    rho: float = 0.0
    split: int = 1
    spread: float = 1.0
    observed: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (("roundoff", 0.0, 1.0), ("s", 0, np.inf), ("rho", 0.0, 1.0 + 1e-6),
                                ("split", 1, np.inf), ("spread", 1.0, np.inf), ("observed", 0.0, np.inf)):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"NoiseModel.{name}", f"must be between {low} and {high}", value, "Measure it again.")

    @classmethod
    def for_dtype(cls, dtype: npt.DTypeLike, s: int, rho: float, split: int = 1, spread: float = 1.0,
                  observed: float = 0.0) -> NoiseModel:  # fmt: skip
        """With the unit roundoff of the dtype workers multiply in."""
        return cls(float(np.finfo(dtype).eps) / 2, s, rho, split, spread, observed)

    @classmethod
    def measured(cls, a: Array, b: Array, dtype: npt.DTypeLike, s: int | None = None, split: int = 1) -> NoiseModel:
        """From sampled columns: a (s, k) of A, b (s, l) of B. `dtype`: what workers multiply in."""
        norms = [np.linalg.norm(x.astype(np.result_type(x, np.float64)), axis=0) for x in (a, b)]
        rho, spread, observed = 0.0, 1.0, 0.0
        if all(np.any(norm > 0) for norm in norms):
            observed = _rounding(a[: -(-len(a) // split)], b[: -(-len(b) // split)], np.dtype(dtype))
            a, b = (x[:, norm > 0] / norm[norm > 0] for x, norm in zip((a, b), norms, strict=True))
            rho = min(1.0, float(np.sqrt(np.mean(np.abs(a.conj().T @ b) ** 2))))
            spread = float(np.prod([np.sqrt(np.mean(norm**2)) / norm[norm > 0].min() for norm in norms]))
        if split > 1:
            spread *= _unevenness(a, split) * _unevenness(b, split)
        return cls.for_dtype(dtype, len(a) if s is None else s, rho, split, max(1.0, spread), observed)

    @property
    def level(self) -> float:
        """Root mean square error of one product, relative to the norms."""
        return max(self.observed, self.roundoff * float(np.sqrt(1.0 + self.rho**2 * (self.s / self.split) / 3.0)))

    def row(self, row: CodedRow) -> float:
        """Root mean square error of a result with this row, relative to the norms of single columns."""
        if row.factors is None:
            return self.level * float(np.linalg.norm(row.values))
        return self.level * float(np.prod([self._norm(factor.values) for factor in row.factors]))

    def _norm(self, values: Array) -> float:
        """Norm of a combination of columns of norm one with mutual correlation rho, at least that without."""
        alone = float(np.sum(np.abs(values) ** 2))
        aligned = (1.0 - self.rho) * alone + self.rho * float(np.abs(np.sum(values))) ** 2
        return float(np.sqrt(max(alone, aligned)))


def _rounding(a: Array, b: Array, dtype: np.dtype[Any]) -> float:
    """Root mean square error of a few a.b in `dtype`, relative to |a| |b|, summed up as matrix products do.

    Their kernels run down a few hundred rows one by one, for many columns at a time. (A product of a few columns would
    not show that: it is made in another way.)
    """
    wide = np.result_type(dtype, np.float64 if np.finfo(dtype).bits == 32 else np.longdouble)
    pairs = min(a.shape[1], b.shape[1], max(2, min(PAIRS, ELEMENTS // max(1, len(a)))))
    a, b = (x[:, :pairs].astype(dtype) for x in (a, b))
    a = a.conj()
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        found = sum((np.add.accumulate(a[low : low + RUN] * b[low : low + RUN], axis=0)[-1]
                     for low in range(0, len(a), RUN)), np.zeros(pairs, dtype))  # fmt: skip
        exact = np.einsum("sk,sk->k", a.astype(wide), b.astype(wide))
        errors = np.abs(found - exact) / (
            np.linalg.norm(a.astype(wide), axis=0) * np.linalg.norm(b.astype(wide), axis=0)
        )
    errors = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else 0.0


def _unevenness(columns: Array, split: int) -> float:
    """Largest norm of a part of a column over that of an even share, for columns (s, k) cut into `split` parts."""
    whole = np.linalg.norm(columns, axis=0)
    bounds = cut(len(columns), split)
    parts = [np.linalg.norm(columns[low:high], axis=0) for low, high in pairwise(bounds)]
    shares = np.divide(np.array(parts), whole, out=np.zeros((split, len(whole))), where=whole > 0)
    return max(1.0, float(np.sqrt(split) * shares.max(initial=0.0)))


def rehearse(plan: Plan, *, noise: NoiseModel, dtype: npt.DTypeLike, rng: np.random.Generator, columns: int = COLUMNS,
             safety: float = SAFETY) -> float:  # fmt: skip
    """Estimated largest error of C_ij relative to |A_i| |B_j| when `plan` is applied; inf when no digit survives.

    dtype : of C; columns : scalar columns rehearsed; safety : factor on the largest root mean square error
    """
    complex_data = np.dtype(dtype).kind == "c"
    final = float(np.finfo(dtype).eps) / 2
    x = _unknowns(plan.unknowns, columns, noise, rng, complex_data)
    arrived = _noise(x.shape, noise.level, rng, complex_data)
    worst = float(np.sqrt(noise.level**2 + (final * noise.rho) ** 2))
    if len(plan.missing):
        results = stack(list(plan.rows), plan.unknowns) @ x
        levels = np.array([noise.row(row) for row in plan.rows])[:, None]
        results = results + _noise(results.shape, levels, rng, np.iscomplexobj(results))
        known = None
        if plan.direct:
            known = x + arrived
            known[plan.missing] = 0
        with np.errstate(over="ignore", invalid="ignore"):
            solved = plan.solve(known, np.ascontiguousarray(results))
            solved = (solved if complex_data else solved.real).astype(dtype)
            error = np.abs(solved - plan.answer(x))
        worst = max(worst, noise.spread * float(np.sqrt(np.mean(error**2, axis=1)).max()))
    return safety * worst / noise.split if np.isfinite(worst) else np.inf


def _unknowns(count: int, columns: int, noise: NoiseModel, rng: np.random.Generator, complex_data: bool) -> Array:
    """Products as large as those of the columns: half of the columns with random signs, half all of one sign."""
    x = noise.rho * _noise((count, columns), 1.0, rng, complex_data)
    x[:, columns // 2 :] = noise.rho + 0.1 * x[:, columns // 2 :]
    return x


def _noise(shape: tuple[int, ...], level: float | Array, rng: np.random.Generator, complex_data: bool) -> Array:
    real: Array = rng.standard_normal(shape)
    if complex_data:
        real = np.sqrt(0.5) * (real + 1j * rng.standard_normal(shape))
    return real * level
