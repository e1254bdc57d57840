"""Losses: the value and the gradient of the sum over the rows of one part.

theta has p elements, or p x c for softmax. X is p columns wide, a float64 array or a SciPy CSR array. All values are
sums, not means, so that the parts' values add up to the whole's. Ridge and other regularisers belong to the master
(cmm.gradient.objective), who adds them once.
"""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from scipy.special import expit, logsumexp

from cmm.core.errors import DataError, UsageError
from cmm.core.task import Array

Answer = tuple[float | None, Array]  # the loss (None where a callable gives none) and its gradient


class Loss(ABC):
    """A loss on one part of the data."""

    name: ClassVar[str]
    has_value = True

    @abstractmethod
    def __call__(self, X: Any, y: Array, theta: Array) -> Answer:
        """(sum of the rows' losses, its gradient with theta's shape)."""

    def check_labels(self, y: Array) -> None:
        """Raise DataError when labels (all of them, float64) are not of the kind this loss knows."""

    def shape(self, features: int, y: Array) -> tuple[int, ...]:
        """The shape of theta."""
        return (features,)


class LeastSquares(Loss):
    """|X theta - y|^2 / 2."""

    name = "least-squares"

    def __call__(self, X: Any, y: Array, theta: Array) -> Answer:
        residual = X @ theta - y
        return 0.5 * float(residual @ residual), X.T @ residual


class Logistic(Loss):
    """sum log(1 + exp(-y x.theta)); labels -1 and 1, or 0 and 1."""

    name = "logistic"

    def __call__(self, X: Any, y: Array, theta: Array) -> Answer:
        signs = np.where(y > 0, 1.0, -1.0)
        margin = signs * (X @ theta)
        return float(np.logaddexp(0, -margin).sum()), X.T @ (-signs * expit(-margin))

    def check_labels(self, y: Array) -> None:
        found = np.unique(y)
        if not (set(found.tolist()) <= {0.0, 1.0} or set(found.tolist()) <= {-1.0, 1.0}):
            raise DataError("--labels", "must be 0 and 1, or -1 and 1, for the logistic loss",
                            f"{_some(found)}", "Use --loss softmax for several classes.")  # fmt: skip


class Softmax(Loss):
    """sum (logsumexp(x.theta) - x.theta_y); labels 0 ... c - 1, theta p x c."""

    name = "softmax"

    def __call__(self, X: Any, y: Array, theta: Array) -> Answer:
        scores = X @ theta
        total = logsumexp(scores, axis=1, keepdims=True)
        rows, labels = np.arange(len(y)), y.astype(np.int64)
        weights = np.exp(scores - total)
        weights[rows, labels] -= 1
        return float(total.sum() - scores[rows, labels].sum()), X.T @ weights

    def check_labels(self, y: Array) -> None:
        if not (np.all(y == np.floor(y)) and np.all(y >= 0) and np.all(y < 1 << 20)):
            raise DataError("--labels", "must be whole numbers from 0 on for the softmax loss", _some(np.unique(y)),
                            "Number the classes 0, 1, 2, ...")  # fmt: skip

    def shape(self, features: int, y: Array) -> tuple[int, ...]:
        return features, max(2, int(y.max(initial=0)) + 1)


class Huber(Loss):
    """sum of r^2 / 2 where |r| <= delta, else delta (|r| - delta / 2); r = x.theta - y."""

    name = "huber"

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = delta

    def __call__(self, X: Any, y: Array, theta: Array) -> Answer:
        residual = X @ theta - y
        size, slope = np.abs(residual), np.clip(residual, -self.delta, self.delta)
        value = np.where(size <= self.delta, 0.5 * residual**2, self.delta * (size - 0.5 * self.delta))
        return float(value.sum()), X.T @ slope


class UserLoss(Loss):
    """A Python callable `grad(X_part, y_part, theta)` by import path, MODULE:NAME.

    It returns the gradient of the sum over the part's rows, or (loss, gradient). Without a loss no line search is
    possible. y_part is float64 (rows,); theta has the shape of --start, else (p,).
    """

    name = "callable"

    def __init__(self, path: str, function: Callable[..., Any]) -> None:
        self.path, self.function = path, function

    def __call__(self, X: Any, y: Array, theta: Array) -> Answer:
        try:
            with _unwritable(X, y, theta):
                found = self.function(X, y, theta)
        except (Exception, SystemExit) as error:  # SystemExit would end the worker without a word
            hint = " (the arrays are read-only: they serve every evaluation)" if "read-only" in str(error) else ""
            raise DataError("--loss", "must not raise", f"{type(error).__name__} from {self.path}: {error}{hint}",
                            "Call it on a few rows of the data in one process.") from error  # fmt: skip
        value, gradient = found if isinstance(found, tuple) and len(found) == 2 else (None, found)
        slope = _real(gradient)
        if slope is None or slope.shape != theta.shape:
            raise DataError("--loss", f"must return a real gradient of theta's shape {theta.shape}, or (loss, "
                            "gradient)", f"{_what(gradient)} from {self.path}", "Correct the callable.")  # fmt: skip
        if value is None:
            return None, slope
        number = _real(value)
        if number is None or number.size != 1:
            raise DataError("--loss", "must return a real number as the loss in (loss, gradient)",
                            f"{_what(value)} from {self.path}", "Correct the callable.")  # fmt: skip
        return float(number.ravel()[0]), slope


@contextmanager
def _unwritable(*arrays: Any) -> Iterator[None]:
    """Whoever writes into them meets an error, not a different data set in the next evaluation."""
    plain = [part for array in arrays for part in
             ((array.data, array.indices, array.indptr) if sp.issparse(array) else (array,))]  # fmt: skip
    before = [array.flags.writeable for array in plain]
    for array in plain:
        array.flags.writeable = False
    try:
        yield
    finally:
        for array, was in zip(plain, before, strict=True):
            array.flags.writeable = was


def _real(value: Any) -> Array | None:
    """A float64 copy of anything numeric and real, or None."""
    try:
        found = np.asarray(value)
    except Exception:  # ragged lists, and whatever an object's own conversion raises
        return None
    return np.array(found, dtype=np.float64) if found.dtype.kind in "biuf" else None


def _what(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = getattr(value, "dtype", type(value).__name__)
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return str(kind) if shape is None else f"{kind} of shape {tuple(shape)}"


LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (LeastSquares, Logistic, Softmax, Huber)}


def make_loss(name: str, delta: float = 1.0) -> Loss:
    """The loss of this name, or the callable MODULE:NAME. Raises UsageError."""
    if ":" in name:
        return UserLoss(name, find_callable(name, "--loss"))
    if name not in LOSSES:
        raise UsageError("--loss", f"must be {', '.join(LOSSES)} or MODULE:NAME", repr(name), "Choose one of them.")
    return Huber(delta) if name == Huber.name else LOSSES[name]()


def find_callable(path: str, argument: str) -> Callable[..., Any]:
    """The callable MODULE:NAME, the current directory included in the search. Raises UsageError."""
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises when it is loaded
        raise UsageError(argument, "must be MODULE:NAME of a callable that can be imported",
                         f"{path} ({type(error).__name__}: {error})", "Check PYTHONPATH.") from error  # fmt: skip
    if not callable(found):
        raise UsageError(argument, "must name a callable", f"{path}, a {type(found).__name__}", "Name a function.")
    return found


def _some(values: Array) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:5])
    return f"{shown}{', ...' if len(values) > 5 else ''}"
