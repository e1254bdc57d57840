"""Product codes of any number of dimensions, with the MDS code of your choice along each axis.

Lee, Suh, Ramchandran, "High-dimensional coded matrix multiplication", ISIT 2017 (two dimensions: A's chunks along one
axis, B's along the other); Baharav, Lee, Ocal, Ramchandran, "Straggler-proofing massive-scale distributed matrix
multiplication with d-dimensional product codes", ISIT 2018 (A over the first axes, B over the rest). An (n_a, k_a) code
along axis a; the source blocks are the corner of K = k_1 ... k_d cells, a task computes one cell. Which axes are A's
follows from the grid: the first ones with k_1 ... k_j = m.

    axes=(21,18)x(22,19)x(22,19) on an 18x361 grid: P = 10164, K = 6498, needed N 7167 in the median

Decoding solves lines with at most n_a - k_a unknown cells until none is left (cmm/linalg/lines.py). The smallest set of
lost cells that resists is a box of (n_a - k_a + 1) along every axis, so P minus that many plus one results always
suffice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import numpy as np

from cmm.codes.base import Code, Parameter, Threshold
from cmm.codes.coefficients import LAWS, one_of
from cmm.codes.nodes import chebyshev, spread
from cmm.codes.uncoded import product_task
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.task import Array, Assignment, Combination, IntArray
from cmm.linalg.decoder import Decoder
from cmm.linalg.lines import LineCode, LineDecoder

Axes = tuple[tuple[int, int], ...]
_AXIS = r"\(?\s*(\d{1,6})\s*[,:/]\s*(\d{1,6})\s*\)?"
LOST = 0.1  # share of a line's cells planned to be lost when axes are chosen


def read_axes(text: str) -> str:
    """Check `(n,k)x(n,k)...` (also n:k); returns the form with colons, which no shell touches."""
    word = text.strip().lower()
    if not re.fullmatch(f"{_AXIS}(\\s*x\\s*{_AXIS})*", word):
        raise ValueError("Write the (length, dimension) of every axis, six digits at most, as in 12:10x12:10 or "
                         "(21,18)x(22,19)x(22,19).")  # fmt: skip
    axes = axes_of(word)
    for length, dimension in axes:
        if not 1 <= dimension <= length:
            raise ValueError(f"An axis ({length},{dimension}) needs a dimension from 1 to its length.")
    return "x".join(f"{n}:{k}" for n, k in axes)


def axes_of(text: str) -> Axes:
    """((n_1, k_1), ...)."""
    return tuple((int(n), int(k)) for n, k in re.findall(_AXIS, text))


def default_axes(grid: Grid) -> Axes:
    """Two axes; as many parities as let random losses of a tenth of the cells peel (schemes: k-core thresholds 1.00,
    3.35, 5.15, 6.80 lost cells a line for 1 ... 4 parities)."""
    sides = (grid.m, grid.n)
    return tuple((side + next((t for t, most in ((1, 8), (2, 30), (3, 45)) if side <= most), int(LOST * side)), side)
                 for side in sides)  # fmt: skip


class ProductCode(Code):
    """Tasks 0 ... K - 1 are the blocks, the other cells follow in random order."""

    name = "product"
    paper = "Lee, Suh, Ramchandran, ISIT 2017; Baharav et al., ISIT 2018"
    recovery = "about 1.1 K at random; P + 1 - product of (n_a - k_a + 1) in the worst case"
    good_for = "large K: encoding and decoding by short lines"
    fixed_pool = True
    parameters: ClassVar = {
        "axes": Parameter(read_axes, None, "(length,dimension) of every axis, as 12:10x12:10; two axes by default"),
        "component": Parameter(one_of("gaussian", "polynomial", "orthopoly"), "gaussian", "the axes' systematic code: "
                               "gaussian parities, or interpolation at equispaced (polynomial) or Chebyshev nodes"),
    }  # fmt: skip

    @classmethod
    def default_tasks(cls, grid: Grid, params: Mapping[str, Any], workers: int, late: int) -> int:
        """All cells."""
        return prod(n for n, _ in _checked_axes(grid, params))

    def _prepare(self) -> None:
        self.refuse_split()
        axes = _checked_axes(self.grid, self.params)
        self.lines = LineCode(tuple(self._parity(axis, n, k) for axis, (n, k) in enumerate(axes)))
        self._split = _prefix(axes, self.grid.m)
        cells = prod(self.lines.shape)
        if cells < self.P:
            raise UsageError("--tasks", f"must be at most {cells}, the cells of {_text(axes)}", self.P,
                             f"Use --tasks {cells}, or longer axes.")  # fmt: skip
        others = np.setdiff1d(np.arange(cells), self.lines.source)
        self._cells: IntArray = np.concatenate([self.lines.source, self.rng("cells").permutation(others)])

    def _parity(self, axis: int, length: int, dimension: int) -> Array:
        """Parity rows (length - dimension, dimension)."""
        shape = (length - dimension, dimension)
        if self.params["component"] == "gaussian":  # scaled so that coded chunks are as large as chunks
            drawn = LAWS["gaussian"](self.rng("axis", axis), shape[0] * dimension).reshape(shape)
            return np.asarray(drawn / np.sqrt(dimension))
        equispaced = self.params["component"] == "polynomial"
        nodes = (np.linspace(-1, 1, length) if equispaced else chebyshev(length))[spread(length)]
        return lagrange(nodes[:dimension], nodes[dimension:])

    def cell(self, task: int) -> int:
        """The cell of a fixed task."""
        return int(self._cells[task])

    def _task(self, index: int) -> Assignment:
        if index < self.grid.K:
            return product_task(self.grid, index, index)
        places = np.unravel_index(self.cell(index), self.lines.shape)
        rows = [self._generator(axis, int(place)) for axis, place in enumerate(places)]
        a, b = (_kron(part) for part in (rows[: self._split], rows[self._split :]))
        return Assignment.pair(index, Combination.of(range(self.grid.m), a), Combination.of(range(self.grid.n), b),
                               self.grid.chunks_b)  # fmt: skip

    def _generator(self, axis: int, place: int) -> Array:
        dimension = self.lines.sides[axis]
        if place >= dimension:
            return np.asarray(self.lines.parities[axis][place - dimension])
        return np.asarray(np.eye(1, dimension, place)[0])

    @property
    def systematic(self) -> int:
        return self.grid.K

    @property
    def recovery_threshold(self) -> Threshold:
        """Worst case while all cells are tasks; then the smallest stopping set is a box."""
        worst = prod(self.lines.shape) - prod(len(parity) + 1 for parity in self.lines.parities) + 1
        return Threshold(min(max(worst, self.grid.K), self.P), certain=worst <= self.P)

    def decoder(self, *, real_data: bool = True) -> Decoder:
        return LineDecoder(self.lines, self.cell)


def lagrange(at: Array, to: Array) -> Array:
    """(len(to), len(at)): values at `to` of the polynomial through values at `at`, in barycentric form."""
    weights = np.array([1 / np.prod(x - np.delete(at, i)) for i, x in enumerate(at)])
    terms = weights / (to[:, None] - at[None, :])
    return np.asarray(terms / terms.sum(axis=1, keepdims=True))


def _axes(grid: Grid, params: Mapping[str, Any]) -> Axes:
    return default_axes(grid) if params["axes"] is None else axes_of(params["axes"])


def _checked_axes(grid: Grid, params: Mapping[str, Any]) -> Axes:
    """The axes. Raises UsageError when they do not fit the grid."""
    axes = _axes(grid, params)
    if _prefix(axes, grid.m) is None or prod(k for _, k in axes) != grid.K:
        raise UsageError("--param axes", f"dimensions of the first axes must multiply to m = {grid.m}, of the others "
                         f"to n = {grid.n}", params["axes"],
                         "Change --grid: for axes (21,18)x(22,19)x(22,19) it is 18x361 or 342x19.")  # fmt: skip
    return axes


def _prefix(axes: Axes, m: int) -> int | None:
    """How many first axes multiply to m."""
    return next((j for j in range(len(axes) + 1) if prod(k for _, k in axes[:j]) == m), None)


def _text(axes: Axes) -> str:
    return "x".join(f"({n},{k})" for n, k in axes)


def _kron(rows: list[Array]) -> Array:
    out: Array = np.ones(1)
    for row in rows:
        out = np.kron(out, row)
    return out
