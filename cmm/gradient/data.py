"""The data set as files, cut into k parts of rows; what a worker reads of it and how it answers.

Parts differ by at most one row, the larger ones first. Features become float64, dense or CSR, whichever the file is;
labels float64. A worker reads its parts only (text formats have to be parsed as a whole, and the rest is dropped).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmm.core.errors import DataError
from cmm.core.grid import cut
from cmm.core.task import Array
from cmm.gradient.losses import Loss
from cmm.matrices.files import MatrixSource, open_matrix
from cmm.matrices.sparse import SparseMatrix
from cmm.matrices.stored import Deferred

BAND = 4096  # rows read at once where a part is encoded


class DataSet:
    """Features N x p and labels (N,), opened but not read.

    Raises
    ------
    CmmError : as `open_matrix`; DataError when the counts do not match or there is nothing

    finite : refuse features that are not finite when they are read (a callable may know what to do with NaN)
    """

    def __init__(self, data: str, labels: str, *, finite: bool = False) -> None:
        self.finite = finite
        self.X = open_matrix(data, "--data", load=False)
        self.y = open_matrix(labels, "--labels", load=False)
        self.rows, self.features = self.X.shape
        for source in (self.X, self.y):
            if source.dtype.kind == "c":
                raise DataError(source.argument, "must be real", f"{source.name} with dtype {source.dtype}",
                                "Pass real features and labels.")  # fmt: skip
        if not self.rows or not self.features:
            raise DataError("--data", "must have rows and columns", f"shape {self.X.shape}", "Pass a sample per row.")
        if self.y.shape != (self.rows, 1):
            raise DataError("--labels", f"must be one label for each of the {self.rows} rows of --data",
                            f"shape {self.y.shape} in {self.y.name}", "Pass the matching file.")  # fmt: skip
        self._labels: Array | None = None

    def all_labels(self) -> Array:
        """(N,) float64. Raises DataError when one is not finite."""
        if self._labels is None:
            found = _floats(self.y, slice(0, self.rows)).ravel()
            bad = np.flatnonzero(~np.isfinite(found))
            if len(bad):
                raise DataError("--labels", "must be finite", f"{found[bad[0]]} in row {bad[0]} of {self.y.name}",
                                "Remove the row, or correct it.")  # fmt: skip
            self._labels = found
        return self._labels

    def read(self, rows: slice) -> tuple[Any, Array]:
        """(features, labels) of some rows; copies."""
        X = self._features(rows)
        if self.finite:
            self._refuse_nonfinite(X, rows.start)
        return X, _floats(self.y, rows).ravel()

    def _refuse_nonfinite(self, X: Any, first: int) -> None:
        values = X.data if sp.issparse(X) else X
        if np.isfinite(values).all():
            return
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)) if sp.issparse(X) else np.arange(X.shape[0])
        bad = rows[~np.isfinite(values)] if sp.issparse(X) else rows[~np.isfinite(values).all(axis=1)]
        raise DataError("--data", "must be finite", f"NaN or infinity in row {first + bad[0]} of {self.X.name}",
                        "Remove the row, correct it, or use a callable that knows what to do.")  # fmt: skip

    def _features(self, rows: slice) -> Any:
        array = self.X.array
        array = array.load() if isinstance(array, Deferred) else array
        if isinstance(array, SparseMatrix):
            return sp.csr_array(array.matrix)[rows].astype(np.float64)
        return np.array(array[rows, :], dtype=np.float64, order="C")

    def memory(self, parts: int, k: int) -> int:
        """Bytes that a worker with so many of the k parts keeps (features and labels; sparse files by their share)."""
        rows = min(self.rows, parts * -(-self.rows // k))
        dense = rows * self.features * 8
        whole = self.X.array.memory if isinstance(self.X.array, Deferred) else None
        share = dense if whole is None else min(dense, whole * rows // self.rows)
        return share + rows * 8


def _floats(source: MatrixSource, rows: slice) -> Array:
    return np.array(source.array[rows, :], dtype=np.float64, order="C")


@dataclass
class Share:
    """What a worker holds: (coefficient, features, labels) of each of its parts."""

    parts: list[tuple[float, Any, Array]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(_size(X) + y.nbytes for _, X, y in self.parts)

    def answer(self, loss: Loss, theta: Array, out: Array) -> Iterator[None]:
        """Fill out (1 + theta.size float64) with the combined loss and gradient; yields after every part.

        Parts are added in the order of their numbers; a coefficient of 1 multiplies nothing. out[0] is 0 where the
        loss has no value; `valued` then says so.
        """
        out.fill(0)
        self.valued = True
        for coefficient, X, y in self.parts:
            value, gradient = loss(X, y, theta)
            self.valued &= value is not None
            scale = coefficient != 1
            out[0] += (coefficient * (value or 0.0)) if scale else (value or 0.0)
            out[1:] += (coefficient * gradient).ravel() if scale else np.ravel(gradient)
            yield

    valued: bool = True


def _size(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if sp.issparse(X) else int(X.nbytes)


def read_share(data: DataSet, k: int, parts: Sequence[int], coefficients: Sequence[float]) -> Share:
    """The parts of a worker, one by one."""
    bounds = cut(data.rows, k)
    share = Share()
    for part, coefficient in zip(parts, coefficients, strict=True):
        X, y = data.read(slice(bounds[part], bounds[part + 1]))
        share.parts.append((float(coefficient), X, y))
    return share


def read_coded(data: DataSet, k: int, parts: Sequence[int], coefficients: Sequence[float]) -> Share:
    """One coded part: the sum of the parts times their coefficients, shorter ones padded with zero rows.

    Every worker reads the whole data set for this, band by band; it keeps 1/k of it.
    """
    bounds = cut(data.rows, k)
    height = bounds[1] - bounds[0]  # the first is the largest
    X, y = np.zeros((height, data.features)), np.zeros(height)
    for part, coefficient in zip(parts, coefficients, strict=True):
        for start in range(bounds[part], bounds[part + 1], BAND):
            stop = min(start + BAND, bounds[part + 1])
            features, labels = data.read(slice(start, stop))
            at = slice(start - bounds[part], stop - bounds[part])
            X[at] += coefficient * (features.toarray() if sp.issparse(features) else features)
            y[at] += coefficient * labels
    return Share([(1.0, X, y)])
