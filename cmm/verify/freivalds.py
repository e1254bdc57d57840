"""Freivalds' check of single results and of C, over the reals.

For a random vector x, unknown to the workers, an output row C~ = sum of A~^T B~ must satisfy C~ x = sum of
A~^T (B~ x). One x serves every B chunk (chunks are padded to one width), so u_j = B_j x and w_ij = A_i^T u_j are made
once, and a coded result is checked against the same combination of w's that the worker multiplied out. The entries of
x are +- uniform[0.5, 1.5] from the operating system's entropy: never small, and no two equal, so neither swapped nor
paired errors cancel. Freivalds 1977, with real numbers; AVCC (arXiv 2107.12958) uses it for single workers.

Limit. Row k of the result deviates by sum_c x_c G_kc, G the rounding errors, which know nothing of x's signs. With
|G_kc| about g u |A~_k| |B~_c| that is about g u R_k, R_k = |A~_k| sqrt(sum_c x_c^2 |B~_c|^2), with a normal tail. The
factor g is 0.1 to 0.3 for data of mean zero, about 2 for positive data, up to 90 for constant columns (OpenBLAS,
s = 100 ... 20000). So g is taken from the result itself, as the median over its rows, which single wrong elements
cannot move, but not below a floor. A row beyond 6 g u R_k is suspect, and g itself may not be larger than rounding
explains. Suspects are recomputed element by element (`recompute`), with a bound that rounding cannot exceed: what a
limit this sharp flags wrongly costs a moment, not the result. Nothing is relative to |C|, which for orthogonal A and B
would be all noise.

Precision. In single precision u and w are made in single precision as well, without copies of A and B. What that rounds
off is of the order of the result's own rounding, and less where sums are short: it counts as such. Whether an error is
seen does not depend on it, since the same w stands against the right result and the wrong one. C~ x is made in double
precision: what rounds off there would differ between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cmm.core.grid import Grid, Partition
from cmm.core.rng import secret_generator
from cmm.core.task import Array, Assignment, Combination, IntArray
from cmm.verify.passes import TILE, squares, tile_size, tiles, times
from cmm.verify.recompute import Operand, Recomputation, disagreement, double, unit_roundoff, wide

_SIGMAS = 6.0  # 2e-9 for a normal tail; exceeding it only leads to a recomputation
_EXAMINED = 4  # rows recomputed at most
_FEW = 16  # rows below which a median says nothing about g


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes
    ----------
    ok : accepted
    residual : largest |C~ x - sum A~^T B~ x| of a row, relative to R_k (module docstring)
    limit : what `residual` may be; at least the residual of a result accepted after recomputation
    most : no row of an accepted result has a residual beyond this; rows known to be noisy are allowed more than others
    examined : rows that were recomputed
    reason : why it was not accepted
    """

    ok: bool
    residual: float
    limit: float
    most: float = 0.0
    examined: int = 0
    reason: str = ""


class ResultCheck:
    """Checks results of workers, each for about the cost of a block times a vector.

    Parameters
    ----------
    partition : how A and B are cut
    a, b : A and B as the workers get them (scaled, in the working dtype; A conjugated for op = H)
    rng : where x comes from; the operating system's entropy unless given

    Attributes
    ----------
    checked, examined, rejected : results looked at, recomputed in part, refused
    residual, limit : the largest ratio residual : limit among accepted results, as that pair

    Call `prepare()`, or run through `steps()` between other work, before the first check. Holds
    s n + p^2 r n + r p numbers in double precision.
    """

    def __init__(self, partition: Partition, a: Operand, b: Operand, rng: np.random.Generator | None = None) -> None:
        rng = secret_generator() if rng is None else rng
        grid = partition.grid
        self.partition, self._a, self._b = partition, a, b
        self.roundoff = max(unit_roundoff(a.dtype), unit_roundoff(b.dtype))
        self._kind = np.result_type(a.dtype, b.dtype)
        kind = double(self._kind)
        self._x = random_vector(partition.block_cols, rng)
        if self.roundoff > 1e-12:  # exactly what a product in single precision multiplies by
            self._x = self._x.astype(np.float32).astype(np.float64)
        self._u = [np.zeros((_length(rows), grid.n), kind) for rows in self._row_parts()]
        self._w = np.zeros((grid.p, grid.chunks_b, partition.r), kind)  # w_ij of part k of A, all its i in a row
        self._squares_a = np.zeros((grid.chunks_a, partition.block_rows))
        self._squares_b = np.zeros(grid.chunks_b)  # sum_c x_c^2 |B_c|^2 by chunk
        self._least = self._smallest_scale()
        self._floor, self._trusted = noise_levels(partition.chunk_rows, self.roundoff)
        self._known = np.full((grid.chunks_a, partition.block_rows), self._floor)  # g by row, as far as it is known
        self._ready = False
        self.checked = self.examined = self.rejected = 0
        self.residual, self.limit = 0.0, _SIGMAS * self._floor * self.roundoff
        self._most = self.limit

    @property
    def missed(self) -> float:
        """`unseen` of the largest residual that a row of an accepted result may have had."""
        return self.unseen(self._most)

    def unseen(self, limit: float) -> float:
        """Errors of one element below this, relative to the norm of its column of A and the largest norm of a column of
        B, may pass under a limit: |x_c| is at least 1/2, and the row's own rounding may use up the limit once more."""
        return 2 * limit * float(np.linalg.norm(self._x)) / float(np.abs(self._x).min(initial=np.inf))

    # ---- preparation ---------------------------------------------------------------------------------------------

    def prepare(self) -> ResultCheck:
        """Make all u and w: one pass over A and one over B."""
        for _ in self.steps():
            pass
        return self

    def steps(self) -> Iterator[None]:
        """The preparation in pieces of up to 4 MB of A or B."""
        for jb in range(self.partition.grid.chunks_b):
            yield from self._multiply_b(jb)
        for part, rows in enumerate(self._row_parts()):
            yield from self._multiply_a(part, rows)
        self._u = []
        self._ready = True

    @property
    def ready(self) -> bool:
        """Whether it has been prepared."""
        return self._ready

    def whole(self, rng: np.random.Generator | None = None) -> ResultCheck:
        """A check of all of C without another look at A and B: C y = A^T B y for the y whose part j is x times a random
        factor of its own (as x, so that exchanged blocks do not cancel either), from the w's."""
        grid, p = self.partition.grid, self.partition
        factors = random_vector(grid.n, secret_generator() if rng is None else rng)
        found = ResultCheck(Partition(Grid(1, 1), p.s, p.r, p.t), self._a, self._b, rng)
        parts = [(j, _length(p.b_slices(j)[1])) for j in range(grid.n)]
        found._x = np.concatenate([factors[j] * self._x[:width] for j, width in parts])
        found._squares_b[0] = float(self._b.norms**2 @ found._x**2)
        found._squares_a[0] = self._a.norms**2
        for k in range(grid.p):
            found._w[0, 0] += factors @ self._w[k, k * grid.n : (k + 1) * grid.n]
        found._u, found._ready = [], True
        return found

    def _row_parts(self) -> list[slice]:
        bounds = self.partition.bounds_s
        return [slice(*bounds[k : k + 2]) for k in range(self.partition.grid.p)]

    def _multiply_b(self, jb: int) -> Iterator[None]:
        part, j = divmod(jb, self.partition.grid.n)
        rows, cols = self.partition.b_slices(jb)
        x = self._x[: _length(cols)]
        if known := self.partition.grid.p == 1:
            self._squares_b[jb] = float(self._b.norms[cols] ** 2 @ x**2)
        for down, across, block in tiles(self._b, rows, cols, TILE):
            piece = x[across.start - cols.start : across.stop - cols.start]
            self._u[part][down.start - rows.start : down.stop - rows.start, j] += block @ piece.astype(block.real.dtype)
            if not known:
                self._squares_b[jb] += float(squares(block) @ piece**2)
            yield

    def _multiply_a(self, part: int, rows: slice) -> Iterator[None]:
        """All w of the row part `part` of A: its columns do not care where the chunks end."""
        grid, total = self.partition.grid, np.zeros(self.partition.r)
        us = [u.astype(self._kind, copy=False) for u in self._u]
        for down, across, block in tiles(self._a, rows, slice(0, len(total)), tile_size(grid.n, self._kind)):
            for k, u in enumerate(us):
                piece = u[down.start - rows.start : down.stop - rows.start]  # may be one row short: that row is padding
                self._w[part, k * grid.n : (k + 1) * grid.n, across] += piece.T @ block[: len(piece)]
            if grid.p > 1:
                total[across] += squares(block)
            yield
        for i in range(grid.m):
            cols = self.partition.a_slices(i)[1]
            norms = total[cols] if grid.p > 1 else self._a.norms[cols] ** 2
            self._squares_a[part * grid.m + i, : _length(cols)] = norms

    # ---- checks --------------------------------------------------------------------------------------------------

    def check(self, assignment: Assignment, output: int, block: Array) -> Verdict:
        """Judge output row `output` of an assignment.

        Parameters
        ----------
        block : (block_rows, block_cols) as the worker sent it, padding included, any floating dtype

        Raises
        ------
        ValueError : a block of another shape, or no preparation
        """
        if block.shape != (self.partition.block_rows, self.partition.block_cols):
            raise ValueError(f"a block of shape {block.shape}")
        verdict = self.judge(assignment, output, Block(block))
        self.checked += 1
        self.examined += verdict.examined > 0
        self.rejected += not verdict.ok
        self._most = max(self._most, verdict.most)
        if verdict.ok and verdict.residual * self.limit >= self.residual * verdict.limit:
            self.residual, self.limit = verdict.residual, verdict.limit
        return verdict

    def judge(self, assignment: Assignment, output: int, block: BlockView, error: float = 0.0,
              allowed: float = 0.0) -> Verdict:  # fmt: skip
        """`check` for any view of a result.

        error : what elements may be off on top of rounding, relative to the norms of their two columns: six times a
            root mean square, or more
        allowed : what a recomputed element may be off, likewise; at least `error`
        """
        allowed = max(allowed, error)
        if not self._ready:
            raise ValueError("prepare() comes first")
        expected, reference = self._expected(assignment, output)
        with np.errstate(all="ignore"):
            deviation = np.abs(block.times(self._x) - expected) - block.slack(self._x)
            deviation = np.where(block.rows_checked, deviation, 0)
            ratio = np.where(deviation > 0, deviation / (self.roundoff * reference), 0)
        if np.isnan(deviation).any():
            return Verdict(False, float("nan"), self.limit, reason="the result holds a NaN or an infinity")
        least, worst = _SIGMAS * self._floor + error / self.roundoff, int(np.argmax(ratio)) if len(ratio) else 0
        if not len(ratio) or ratio[worst] <= least:  # whatever the rows show, limits are no smaller
            residual = float(ratio[worst]) * self.roundoff if len(ratio) else 0.0
            return Verdict(True, residual, least * self.roundoff, least * self.roundoff)
        level = np.max([self._known[left.indices].max(axis=0) for left in self._lefts(assignment, output)], axis=0)
        seen = self._seen(ratio[reference > 0])
        limits = _SIGMAS * np.maximum(level, min(seen, self._trusted)) + error / self.roundoff
        worst = int(np.argmax(ratio / limits))
        suspects = np.flatnonzero(ratio > limits)
        if not len(suspects):
            return Verdict(True, *self._pair(ratio, limits, worst), float(limits.max()) * self.roundoff)
        return self._examine(assignment, output, block, allowed, ratio, limits, suspects)

    def _expected(self, assignment: Assignment, output: int) -> tuple[Array, Array]:
        """(sum of A~^T B~ x, R) by row of the output; R on top of what underflow may do."""
        values: Array = np.zeros(self.partition.block_rows)
        scale = np.zeros(self.partition.block_rows)
        for x, y in assignment.outputs[output]:
            a, b = assignment.a[x], assignment.b[y]
            values = values + self._combined(a, b)
            left = np.abs(a.values) ** 2 @ self._squares_a[a.indices]
            right = np.abs(b.values) ** 2 @ self._squares_b[b.indices]
            scale = np.hypot(scale, np.sqrt(left) * np.sqrt(right))
        return values, np.where(scale > 0, scale + self._least, 0)

    def _smallest_scale(self) -> float:
        """Where the shared dimension is split, parts of columns can be so small that products underflow: what that
        makes of a row at most, each product and coded element being off by the smallest normal number, by u."""
        if self.partition.grid.p == 1:  # the columns are scaled
            return 0.0
        norms = 1.0 + sum(float(operand.norms.max(initial=0.0)) for operand in (self._a, self._b))
        sums = 2 * (self.partition.chunk_rows + 1) * float(np.abs(self._x).sum()) * norms
        return sums * float(np.finfo(self._kind).tiny) / self.roundoff

    def _combined(self, a: Combination, b: Combination) -> Array:
        if a.is_unit and b.is_unit:
            part, cols = self._place(int(a.indices[0]))
            w = self._w[part, b.indices[0], cols]
            return w if len(w) == self.partition.block_rows else np.append(w, 0)  # a chunk that is one short
        kind = np.result_type(self._w.dtype, a.values.dtype, b.values.dtype)
        total: Array = np.zeros(self.partition.block_rows, kind)
        for ia, value in zip(a.indices.tolist(), a.values, strict=True):
            part, cols = self._place(ia)
            total[: _length(cols)] += value * (b.values @ self._w[part, b.indices, cols])
        return total

    def _place(self, ia: int) -> tuple[int, slice]:
        """Row part of a chunk of A and its columns."""
        part, i = divmod(ia, self.partition.grid.m)
        bounds = self.partition.bounds_r
        return part, slice(bounds[i], bounds[i + 1])

    @staticmethod
    def _lefts(assignment: Assignment, output: int) -> list[Combination]:
        return [assignment.a[x] for x, _ in assignment.outputs[output]]

    @staticmethod
    def _seen(ratio: Array) -> float:
        """The noise factor g that most rows show; 0 where they are too few to tell."""
        return float(np.median(ratio)) / 0.67 if len(ratio) >= _FEW else 0.0

    def _pair(self, ratio: Array, limits: Array, worst: int) -> tuple[float, float]:
        return float(ratio[worst]) * self.roundoff, float(limits[worst]) * self.roundoff

    def _examine(self, assignment: Assignment, output: int, block: BlockView, allowed: float, ratio: Array,
                 limits: Array, suspects: IntArray) -> Verdict:  # fmt: skip
        worst = suspects[np.argsort(ratio[suspects] / limits[suspects])[::-1]]
        residual, limit = self._pair(ratio, limits, int(worst[0]))
        if ratio[worst[0]] > self._hopeless(assignment, output) + allowed / self.roundoff * self._root:
            return Verdict(False, residual, limit, reason=f"row {worst[0]}: residual {residual:.3g}, limit {limit:.3g}")
        rows = worst[:_EXAMINED]
        again = Recomputation(self.partition, self._a, self._b, assignment, output, rows)
        found = [block.row(int(row)) for row in rows]
        with np.errstate(all="ignore"):
            wrong = disagreement([values for values, _ in found], [extra for _, extra in found], again, allowed)
        if wrong is not None:
            reason = f"row {rows[wrong]} is not the product: residual {residual:.3g}, limit {limit:.3g}"
            return Verdict(False, residual, limit, examined=len(rows), reason=reason)
        for combination in self._lefts(assignment, output):
            for ia in combination.indices:  # these rows are noisier than most: known from now on
                self._known[ia, suspects] = np.maximum(self._known[ia, suspects], 2 * ratio[suspects] / _SIGMAS)
        most = float(max(ratio.max(), limits.max())) * self.roundoff
        return Verdict(True, residual, max(residual, limit), most, len(rows))

    @property
    def _root(self) -> float:
        return 2 * float(np.sqrt(max(self.partition.block_cols, 1)))

    def _hopeless(self, assignment: Assignment, output: int) -> float:
        """A ratio that no rounding in any order of summation reaches: nothing needs to be recomputed then."""
        degrees = [assignment.a[x].degree * assignment.b[y].degree for x, y in assignment.outputs[output]]
        terms = self.partition.chunk_rows + self.partition.block_cols + 8 + max(degrees)  # of the result and of u
        return 4 * terms * float(np.sqrt(sum(degrees))) * self._root


def noise_levels(s: int, roundoff: float) -> tuple[float, float]:
    """(floor, most) of the noise factor g for sums of `s` products. Single precision needs the sharp floor to see a
    relative change of 1e-3; double precision sees 1e-6 with a floor that correlated data stay below as well."""
    root = float(np.sqrt(max(s, 1)))
    return (0.6 if roundoff > 1e-12 else 4 + root / 8), 64 + root


def random_vector(length: int, rng: np.random.Generator) -> Array:
    """Entries +- uniform[0.5, 1.5], float64."""
    return rng.uniform(0.5, 1.5, length) * rng.choice([-1.0, 1.0], length)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


# ---- results as they are stored --------------------------------------------------------------------------------------


class BlockView(Protocol):
    """What a check needs of a result."""

    @property
    def rows_checked(self) -> Array | bool:
        """Which rows can be checked."""

    def times(self, x: Array) -> Array:
        """The result times x, in double precision."""

    def slack(self, x: Array) -> Array | float:
        """What `times` may be off by row because of how the result is stored."""

    def row(self, index: int) -> tuple[Array, Array | float]:
        """A row in double precision and what its elements may be off."""


class Block:
    """A result as the worker sent it."""

    rows_checked: Array | bool = True

    def __init__(self, array: Array) -> None:
        self.array = array

    def times(self, x: Array) -> Array:
        return times(self.array, x)

    def slack(self, x: Array) -> Array | float:
        return 0.0

    def row(self, index: int) -> tuple[Array, Array | float]:
        return wide(self.array[index]), 0.0
