"""Descent: fixed step, backtracking, Nesterov, and SciPy's L-BFGS, all driven by one function `evaluate(theta)`.

evaluate returns (loss, gradient); the loss is None where a user's callable gives none. A method keeps what it needs to
go on in `state`, arrays that a checkpoint stores; `after` is called at the end of every iteration.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from cmm.core.errors import UsageError
from cmm.core.task import Array
from cmm.gradient.losses import Answer

ARMIJO = 1e-4  # of the decrease that the gradient promises
HALVINGS = 60  # of the step before a line search is given up: 2^-60 of it changes nothing any more
MEMORY = 20  # steps that L-BFGS remembers
PATIENCE, TRIES, CURVATURE = 10, 5, 0.5  # of the polish: vain steps, lengths of one, |slope| left of that before
LOG_BYTES = 1 << 26  # of evaluations that L-BFGS keeps in a checkpoint; beyond, it starts afresh from theta

Evaluate = Callable[[Array], Answer]


@dataclass(frozen=True, eq=False)
class Point:
    """Where an iteration has arrived. `loss` and `norm` (the gradient's largest element) are those of theta, or, for
    the methods that do not evaluate there, of the last place evaluated."""

    iteration: int
    theta: Array
    loss: float | None
    norm: float


@dataclass
class Limits:
    """When to stop: after so many iterations, or when the gradient's largest element has fallen to `relative` times
    that of the first gradient, which `scale` keeps (0: not known yet)."""

    iterations: int
    relative: float
    scale: float = 0.0

    def note(self, gradient: Array) -> None:
        """A gradient: the first sets the scale."""
        if not self.scale:
            self.scale = largest(gradient) or 1.0

    @property
    def tolerance(self) -> float:
        return self.relative * self.scale


After = Callable[[Point], None]


class Descent(ABC):
    """A method of descent. `run` may be called once."""

    name: ClassVar[str]
    needs_loss = False

    def __init__(self, step: float | None) -> None:
        self.step = 1.0 if step is None else step
        self.iteration = 0
        self.theta: Array = np.zeros(0)

    def state(self) -> dict[str, Array]:
        """What `restore` needs to go on from here."""
        return {"theta": self.theta, "iteration": np.asarray(self.iteration), "step": np.asarray(self.step)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.theta, self.iteration, self.step = state["theta"], int(state["iteration"]), float(state["step"])

    def run(self, theta: Array, evaluate: Evaluate, limits: Limits, after: After) -> str:
        """Descend from theta, or from the restored place; returns why it stopped. The result is `self.theta`."""
        if not self.theta.size:
            self.theta = np.array(theta, dtype=np.float64)
        return self._run(evaluate, limits, after)

    @abstractmethod
    def _run(self, evaluate: Evaluate, limits: Limits, after: After) -> str: ...

    def _moved(self, theta: Array, loss: float | None, norm: float, after: After) -> None:
        self.theta = theta
        self.iteration += 1
        after(Point(self.iteration, theta, loss, norm))


CONVERGED, EXHAUSTED, FLAT = "converged", "iterations used up", "no further decrease (rounding)"


def largest(gradient: Array) -> float:
    return float(np.abs(gradient).max(initial=0.0))


class FixedStep(Descent):
    """theta <- theta - step * gradient."""

    name = "fixed"

    def __init__(self, step: float | None) -> None:
        if step is None:
            raise UsageError("--step", "is required with --optimiser fixed", "nothing",
                             "Give a step, or use backtracking, nesterov or lbfgs.")  # fmt: skip
        super().__init__(step)

    def _run(self, evaluate: Evaluate, limits: Limits, after: After) -> str:
        while self.iteration < limits.iterations:
            loss, gradient = evaluate(self.theta)
            norm = largest(gradient)
            if norm <= limits.tolerance:
                return CONVERGED
            self._moved(self.theta - self.step * gradient, loss, norm, after)
        return EXHAUSTED


class Backtracking(Descent):
    """Gradient descent with Armijo's rule: twice the last step is tried, and halved until the loss falls enough."""

    name, needs_loss = "backtracking", True

    def _run(self, evaluate: Evaluate, limits: Limits, after: After) -> str:
        loss, gradient = evaluate(self.theta)
        assert loss is not None, "needs_loss"
        while self.iteration < limits.iterations:
            norm, square = largest(gradient), float(np.vdot(gradient, gradient))
            if norm <= limits.tolerance:
                return CONVERGED
            for _ in range(HALVINGS):
                candidate = self.theta - self.step * gradient
                new, slope = evaluate(candidate)
                assert new is not None, "needs_loss"
                if new <= loss - ARMIJO * self.step * square:
                    break
                self.step /= 2
            else:
                return FLAT
            if new == loss:
                return FLAT
            loss, gradient = new, slope
            self.step *= 2
            self._moved(candidate, loss, largest(gradient), after)
        return EXHAUSTED


class Nesterov(Descent):
    """Accelerated gradient (Beck and Teboulle's FISTA without a proximal term), the step halved where the quadratic
    bound fails, momentum dropped when it points uphill (O'Donoghue and Candes, gradient scheme). Without a loss value
    the step stays as given."""

    name = "nesterov"

    def __init__(self, step: float | None) -> None:
        super().__init__(step)
        self.t = 1.0
        self.before: Array = np.zeros(0)

    def state(self) -> dict[str, Array]:
        return {**super().state(), "t": np.asarray(self.t), "before": self.before}

    def restore(self, state: Mapping[str, Array]) -> None:
        super().restore(state)
        self.t, self.before = float(state["t"]), state["before"]

    def _run(self, evaluate: Evaluate, limits: Limits, after: After) -> str:
        if not self.before.size:
            self.before = self.theta
        while self.iteration < limits.iterations:
            t = (1 + math.sqrt(1 + 4 * self.t**2)) / 2
            y = self.theta + (self.t - 1) / t * (self.theta - self.before)
            loss, gradient = evaluate(y)
            norm = largest(gradient)
            if norm <= limits.tolerance:
                self.theta = y
                return CONVERGED
            candidate = self._step_from(y, loss, gradient, evaluate)
            if candidate is None:
                return FLAT
            self.before, uphill = self.theta, float(np.vdot(gradient, candidate - self.theta)) > 0
            self.t = 1.0 if uphill else t
            self._moved(candidate, loss, norm, after)
        return EXHAUSTED

    def _step_from(self, y: Array, loss: float | None, gradient: Array, evaluate: Evaluate) -> Array | None:
        square = float(np.vdot(gradient, gradient))
        for _ in range(HALVINGS):
            candidate = y - self.step * gradient
            if loss is None:
                return candidate
            rounding = 4 * np.finfo(np.float64).eps * abs(loss)  # near the minimum the bound is below the loss's digits
            new, _ = evaluate(candidate)
            if new is not None and new <= loss - 0.5 * self.step * square + rounding:
                return candidate
            self.step /= 2
        return None


class LBFGS(Descent):
    """scipy.optimize.minimize(method="L-BFGS-B") on the coded loss and gradient, then a polish by gradients alone.

    SciPy's line search compares losses, which are equal to the last digit while the gradient is still about the square
    root of the rounding away from zero. The polish goes on from there to nearly all digits of theta.

    SciPy does not give its memory away; but it is deterministic, so a checkpoint holds the evaluations so far and a
    resumed run plays them back before it asks for new ones (up to LOG_BYTES; beyond, it starts afresh from theta).
    """

    name, needs_loss = "lbfgs", True

    def __init__(self, step: float | None) -> None:
        if step is not None:
            raise UsageError("--step", "goes with fixed, backtracking and nesterov", step, "Leave it out for lbfgs.")
        super().__init__(None)
        self.origin: Array = np.zeros(0)
        self.first = 0  # iterations before `origin`
        self.losses: list[float] = []
        self.gradients: list[Array] = []
        self._asked = self._reached = 0  # evaluations asked for; iterations that are played back
        self._full = False  # the log was too long and is not kept any more
        self._search: dict[bytes, tuple[float, Array]] = {}  # what was evaluated since the last iteration, by place
        self._path: deque[tuple[Array, Array]] = deque(maxlen=MEMORY + 1)  # the last iterations' places and gradients

    def state(self) -> dict[str, Array]:
        """The log, or where it has grown too long, theta as a new origin."""
        origin, first = (self.theta, self.iteration) if self._full else (self.origin, self.first)
        log = np.asarray(self.gradients).reshape(len(self.losses), -1) if self.losses else np.zeros((0, origin.size))
        return {**super().state(), "origin": origin, "first": np.asarray(first), "losses": np.asarray(self.losses),
                "gradients": log}  # fmt: skip

    def restore(self, state: Mapping[str, Array]) -> None:
        super().restore(state)
        self.origin, self.first = state["origin"], int(state["first"])
        self.losses = [float(x) for x in state["losses"]]
        self.gradients = [row.reshape(self.origin.shape) for row in state["gradients"]]

    def _run(self, evaluate: Evaluate, limits: Limits, after: After) -> str:
        if not self.origin.size:
            self.origin = self.theta
        self._evaluate, self._after, self._limits = evaluate, after, limits
        self._reached, self.iteration, self._asked = self.iteration, self.first, 0
        self._path.clear()
        start = self.origin.ravel().copy()
        if self.iteration >= limits.iterations:
            return EXHAUSTED
        if largest(self._value(start)[1]) <= limits.tolerance:
            return CONVERGED
        self._asked = 0  # SciPy asks for the same again
        result = minimize(self._value, start, jac=True, method="L-BFGS-B", callback=self._iterated,
                          options={"maxiter": limits.iterations - self.first, "maxfun": 1 << 31, "maxcor": MEMORY,
                                   "ftol": 0.0, "gtol": 0.0, "maxls": 40})  # fmt: skip
        return self._polish(result.x, np.asarray(result.jac))

    def _value(self, x: Array) -> tuple[float, Array]:
        """The loss and gradient at x (flat), from the log as far as it goes."""
        if self._asked < len(self.losses):
            loss, gradient = self.losses[self._asked], self.gradients[self._asked]
        else:
            found, gradient = self._evaluate(x.reshape(self.origin.shape).copy())
            assert found is not None, "needs_loss"
            loss = found
            self._note(loss, gradient)
        self._asked += 1
        self._search[x.tobytes()] = loss, gradient.ravel()
        return loss, gradient.ravel().copy()

    def _note(self, loss: float, gradient: Array) -> None:
        """Into the log, unless it has become too long."""
        self._full |= (len(self.losses) + 1) * gradient.nbytes > LOG_BYTES
        if self._full:
            self.losses, self.gradients = [], []
        else:
            self.losses.append(loss)
            self.gradients.append(gradient)

    def _iterated(self, intermediate_result: OptimizeResult) -> None:
        """SciPy's callback. The place is one of those that its line search has asked for."""
        x = intermediate_result.x
        loss, gradient = self._search.get(x.tobytes()) or self._value(x)
        self._arrive(x, loss, gradient)
        if largest(gradient) <= self._limits.tolerance:
            raise StopIteration

    def _arrive(self, x: Array, loss: float, gradient: Array) -> None:
        """The end of an iteration, played back or new."""
        self._search.clear()
        self._path.append((x.copy(), gradient))
        theta = x.reshape(self.origin.shape).copy()
        if self.iteration < self._reached:
            self.theta, self.iteration = theta, self.iteration + 1
        else:
            self._moved(theta, loss, largest(gradient), self._after)

    def _polish(self, x: Array, gradient: Array) -> str:
        """Quasi-Newton steps that look at gradients only, until PATIENCE of them have not made the gradient smaller;
        the best place is the result. A step is accepted by the curvature condition, which together with a loss that is
        equal up to rounding is Hager and Zhang's approximate Wolfe condition (SIAM J. Optim. 16, 2005)."""
        limits, best, best_x, since = self._limits, largest(gradient), x, 0
        while best > limits.tolerance and since < PATIENCE and self.iteration < limits.iterations:
            direction = -inverse_times(list(self._path), gradient)
            slope, length = float(direction @ gradient), 1.0
            if slope >= 0:
                break
            for _ in range(TRIES):
                place = x + length * direction
                loss, gradient = self._value(place)
                end = float(direction @ gradient)
                if abs(end) <= CURVATURE * abs(slope) or end <= slope:
                    break
                length *= slope / (slope - end)  # where the slope would be zero, were it linear
            x, since = place, since + 1
            if largest(gradient) < best:
                best, best_x, since = largest(gradient), x, 0
            self._arrive(x, loss, gradient)
        self.theta = best_x.reshape(self.origin.shape).copy()
        if best <= limits.tolerance:
            return CONVERGED
        return EXHAUSTED if self.iteration >= limits.iterations else FLAT


def again(method: Descent, step: float | None, theta: Array) -> Descent:
    """A fresh method of the same kind that goes on from theta, without what the former remembers."""
    fresh = type(method)(step)
    fresh.theta, fresh.iteration = theta, method.iteration
    if isinstance(fresh, LBFGS):
        fresh.first = method.iteration
    return fresh


def inverse_times(path: Sequence[tuple[Array, Array]], gradient: Array) -> Array:
    """The L-BFGS approximation of the inverse Hessian times the gradient (two-loop recursion; Nocedal and Wright,
    Numerical Optimization, algorithm 7.4), from the last places and their gradients."""
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(path)]
    steps = [(s, y) for s, y in steps if s @ y > 0]
    q = gradient.copy()
    weights = []
    for s, y in reversed(steps):
        weights.append((s @ q) / (s @ y))
        q -= weights[-1] * y
    if steps:
        s, y = steps[-1]
        q *= (s @ y) / (y @ y)
    for (s, y), weight in zip(steps, reversed(weights), strict=True):
        q += (weight - (y @ q) / (s @ y)) * s
    return q


METHODS: dict[str, type[Descent]] = {m.name: m for m in (LBFGS, Nesterov, Backtracking, FixedStep)}


def make_descent(name: str, step: float | None) -> Descent:
    """The method of this name. Raises UsageError for an unknown one, or a step that is missing or not wanted."""
    if name not in METHODS:
        raise UsageError("--optimiser", f"must be {', '.join(METHODS)}", repr(name), "Choose one of them.")
    return METHODS[name](step)
