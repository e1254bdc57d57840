"""What is minimised: the coded sum over the data plus what the master adds itself, and the check that it is finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cmm.core.errors import DataError
from cmm.core.task import Array
from cmm.gradient.descent import Evaluate
from cmm.gradient.losses import Answer, find_callable


class Objective:
    """loss(theta) + ridge / 2 |theta|^2 + regulariser(theta), and its gradient.

    Parameters
    ----------
    evaluate : the sum over the data
    ridge : mu of mu / 2 |theta|^2
    regulariser : theta -> (value, gradient), or None
    """

    def __init__(self, evaluate: Evaluate, ridge: float = 0.0,
                 regulariser: Callable[[Array], tuple[float, Any]] | None = None) -> None:  # fmt: skip
        self.evaluate, self.ridge, self.regulariser = evaluate, ridge, regulariser
        self.evaluations = 0

    def __call__(self, theta: Array) -> Answer:
        """Raises DataError when the loss is NaN, or the gradient not finite where the loss is."""
        self.evaluations += 1
        loss, gradient = self.evaluate(theta)
        if self.ridge:
            loss = None if loss is None else loss + 0.5 * self.ridge * float(np.vdot(theta, theta))
            gradient = gradient + self.ridge * theta
        if self.regulariser is not None:
            loss, gradient = self._regularised(theta, loss, gradient)
        self._check(theta, loss, gradient)
        return loss, gradient

    def _regularised(self, theta: Array, loss: float | None, gradient: Array) -> Answer:
        assert self.regulariser is not None
        try:
            value, slope = self.regulariser(theta)
            added = gradient + np.asarray(slope, dtype=np.float64).reshape(theta.shape)
            return (None if loss is None else loss + float(value)), added
        except (Exception, SystemExit) as error:
            raise DataError("--regulariser", "must return (value, gradient of theta's shape) and not raise",
                            f"{type(error).__name__}: {error}", "Call it on the start value.") from error  # fmt: skip

    def _check(self, theta: Array, loss: float | None, gradient: Array) -> None:
        too_far = loss is not None and loss == np.inf  # a step that was too long: the line search sees it
        if (loss is not None and np.isnan(loss)) or not (too_far or np.all(np.isfinite(gradient))):
            what = "the loss is NaN" if loss is not None and np.isnan(loss) else "the gradient is not finite"
            size = float(np.abs(theta).max(initial=0))
            raise DataError("--loss", "must be finite", f"{what} in evaluation {self.evaluations}, where the largest "
                            f"element of theta is {size:.3g}",
                            "Check the data for NaN, scale the features, or use a smaller --step.")  # fmt: skip


def find_regulariser(path: str | None) -> Callable[[Array], tuple[float, Any]] | None:
    return None if path is None else find_callable(path, "--regulariser")
