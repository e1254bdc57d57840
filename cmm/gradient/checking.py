"""The last word about theta: the master computes loss and gradient there itself, from the files, and compares.

Codes recover what is missing, not what is wrong. A worker that answers wrongly (memory, disk, another version of a
callable) would move theta without a trace; one more pass over the data at the end shows it, for every code and loss.
Where the sums differ, the answers of the last evaluation are recomputed one by one, which names the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cmm.core.task import Array
from cmm.gradient.data import DataSet, Share, read_coded, read_share
from cmm.gradient.decoding import Combination
from cmm.gradient.encoding import Encoding
from cmm.gradient.losses import Loss

LIMIT = 1e-9  # of a difference, relative to the sum of the pieces' sizes: rounding is 1e-15 to 1e-11
ROUGH = 1e-4  # up to here it is the rounding of a callable (float32) or of the code, if no answer is wrong
LEAST = 1e-13  # of a wrong answer, relative to the same
PIECES, PIECE_BYTES = 16, 1 << 26  # pieces of the data, at least so many and at most so large


@dataclass(frozen=True, eq=False)
class Total:
    """Loss (first element) and gradient over the data, flat, and the sums of the sizes of the pieces' losses and
    gradients (largest elements), which rounding is relative to."""

    value: Array
    sizes: tuple[float, float]

    def difference(self, other: Array) -> float:
        """The larger of the relative differences of loss and gradient; infinite where only one of them is finite."""
        found = 0.0
        for own, its, size in ((self.value[:1], other[:1], self.sizes[0]), (self.value[1:], other[1:], self.sizes[1])):
            found = max(found, relative(own, its, size))
        return found


def relative(a: Array, b: Array, size: float) -> float:
    """max |a - b| / size; NaN and infinities have to be at the same places."""
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return np.inf
    finite = np.isfinite(a)
    largest = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return largest / size if size else (np.inf if largest else 0.0)


class Check:
    """Recomputes on the master.

    Parameters
    ----------
    data, loss : the job's
    between : called after every piece: may raise
    """

    def __init__(self, data: DataSet, loss: Loss, between: Callable[[], None]) -> None:
        self.data, self.loss, self.between = data, loss, between

    def total(self, theta: Array) -> Total:
        """The sum over all data, read piece by piece."""
        rows = self.data.rows
        pieces = min(rows, max(PIECES, -(-rows * self.data.features * 8 // PIECE_BYTES)))
        value, out, sizes = np.zeros(1 + theta.size), np.zeros(1 + theta.size), np.zeros(2)
        for piece in range(pieces):
            self._fill(read_share(self.data, pieces, [piece], [1.0]), theta, out)
            value += out
            sizes += abs(out[0]), np.abs(out[1:]).max(initial=0.0)
        return Total(value, (float(sizes[0]), float(sizes[1])))

    def liars(self, encoding: Encoding, combination: Combination, answers: Mapping[int, Array], theta: Array,
              sizes: tuple[float, float]) -> list[int]:  # fmt: skip
        """The workers whose answers at theta are not what their parts give."""
        read = read_coded if encoding.coded_data else read_share
        weights = np.ones(1) if combination.coefficients is None else combination.coefficients
        allowed = max(LEAST, LIMIT / max(1.0, float(np.abs(weights).max())))
        wrong, out = [], np.zeros(1 + theta.size)
        for worker in sorted(answers):
            parts, coefficients = encoding.parts(worker)
            self._fill(read(self.data, encoding.k, parts, coefficients), theta, out)
            factor = max(1.0, max(map(abs, coefficients)))
            own = Total(out, (sizes[0] * factor, sizes[1] * factor))
            if own.difference(answers[worker].ravel()) > allowed:
                wrong.append(worker)
        return wrong

    def suspicious(self, encoding: Encoding, answers: Mapping[int, Array], total: Total) -> float:
        """How far the answers contradict `total` or each other, those not used for the gradient included, relative to
        the sizes of the pieces; 0 where there is no redundancy in them.

        Binary codes: every complete class gives the total. Others: answers lie in the column space of the code.
        """
        if encoding.classes:
            whole = [members for members in encoding.classes if set(members) <= set(answers)]
            sums = [np.sum([answers[worker].ravel() for worker in members], axis=0) for members in whole]
            return max((total.difference(found) for found in sums), default=0.0)
        stack = np.array([answers[worker].ravel() for worker in sorted(answers)])
        if not np.isfinite(stack).all():
            return np.inf
        basis, values, _ = np.linalg.svd(encoding.columns()[sorted(answers)], full_matrices=False)
        basis = basis[:, values > values[0] * 1e-10]
        rest = np.abs(stack - basis @ (basis.T @ stack))
        sizes = np.array(total.sizes) * max(1.0, float(np.abs(encoding.matrix).max()))
        zero = np.zeros(1)
        return max(relative(rest[:, :1].max(keepdims=True).ravel(), zero, float(sizes[0])),
                   relative(rest[:, 1:].max(initial=0.0, keepdims=True).ravel(), zero, float(sizes[1])))  # fmt: skip

    def _fill(self, share: Share, theta: Array, out: Array) -> None:
        with np.errstate(all="ignore"):  # infinities are judged afterwards
            for _ in share.answer(self.loss, theta, out):
                self.between()
