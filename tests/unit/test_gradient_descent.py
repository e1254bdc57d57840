"""The optimisers on functions whose minimum is known, their checkpoints, and what stops them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cmm.core.errors import DataError, InputMissingError, UsageError
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.gradient import checkpoint
from cmm.gradient.descent import EXHAUSTED, FLAT, METHODS, Descent, Limits, Point, largest, make_descent
from cmm.gradient.losses import Answer, Logistic
from cmm.gradient.spec import OPTIMISERS

STEPS = {"fixed": 0.05, "lbfgs": None, "nesterov": None, "backtracking": None}


def quadratic(size: int = 12, condition: float = 30.0) -> tuple[Callable[[Array], Answer], Array]:
    rng = generator(4, "quadratic")
    Q, _ = np.linalg.qr(rng.standard_normal((size, size)))
    H = Q @ np.diag(np.geomspace(condition, 1, size)) @ Q.T
    best = rng.standard_normal(size)
    return lambda theta: (0.5 * float((theta - best) @ H @ (theta - best)), H @ (theta - best)), best


def nothing(point: Point) -> None:
    pass


def test_the_table_is_the_list_of_the_command_line() -> None:
    assert set(METHODS) == set(OPTIMISERS)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_minimum_of_a_quadratic(name: str) -> None:
    evaluate, best = quadratic()
    method, limits = make_descent(name, STEPS[name]), Limits(3000, 1e-11)
    limits.note(evaluate(np.zeros(12))[1])
    points: list[Point] = []
    method.run(np.zeros(12), evaluate, limits, points.append)
    np.testing.assert_allclose(method.theta, best, atol=1e-8)  # the gradient to 1e-11 |g0|, curvature at least 1
    assert [point.iteration for point in points] == list(range(1, method.iteration + 1))


def test_methods_differ_as_they_should() -> None:
    """Evaluations until the gradient has fallen by 1e-6: L-BFGS before Nesterov before plain descent."""
    evaluate, _ = quadratic(30, 1000.0)
    counts = {}
    for name, step in (("lbfgs", None), ("nesterov", 1e-3), ("fixed", 1e-3)):
        calls = 0

        def counted(theta: Array) -> Answer:
            nonlocal calls
            calls += 1
            return evaluate(theta)

        limits = Limits(20000, 1e-6)
        limits.note(evaluate(np.zeros(30))[1])
        assert make_descent(name, step).run(np.zeros(30), counted, limits, nothing) != EXHAUSTED
        counts[name] = calls
    assert counts["lbfgs"] < counts["nesterov"] < counts["fixed"]


def test_lbfgs_goes_on_where_losses_are_equal_to_the_last_digit() -> None:
    """The gradient reaches the rounding of its own sums, far below the square root of the loss's."""
    evaluate, size = logistic(), 8
    limits = Limits(200, 0.0, 1.0)
    method, norms = make_descent("lbfgs", None), []
    assert method.run(np.zeros(size), evaluate, limits, lambda point: norms.append(point.norm)) == FLAT
    assert largest(evaluate(method.theta)[1]) <= 1e-12  # 60 terms of size 1
    assert min(norms) <= 1e-12


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_gradient_that_is_zero_at_once_is_no_iteration(name: str) -> None:
    limits = Limits(10, 1e-8, scale=1.0)
    method = make_descent(name, STEPS[name])
    assert method.run(np.ones(3), lambda theta: (1.0, np.zeros(3)), limits, nothing) == "converged"
    assert method.iteration == 0
    np.testing.assert_array_equal(method.theta, np.ones(3))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_no_iterations_change_nothing(name: str) -> None:
    evaluate, _ = quadratic()
    method = make_descent(name, STEPS[name])
    assert method.run(np.zeros(12), evaluate, Limits(0, 1e-8, 1.0), nothing) == EXHAUSTED
    np.testing.assert_array_equal(method.theta, np.zeros(12))


@pytest.mark.parametrize("name", ["fixed", "nesterov"])
def test_gradients_without_a_loss(name: str) -> None:
    evaluate, best = quadratic()
    method = make_descent(name, 0.03)
    method.run(np.zeros(12), lambda theta: (None, evaluate(theta)[1]), Limits(3000, 1e-11, 1.0), nothing)
    np.testing.assert_allclose(method.theta, best, atol=1e-8)


@pytest.mark.parametrize("name", ["backtracking", "nesterov"])
def test_a_step_that_is_far_too_long_is_halved(name: str) -> None:
    evaluate, best = quadratic()
    method = make_descent(name, 1e12)
    method.run(np.zeros(12), evaluate, Limits(3000, 1e-10, 1.0), nothing)
    np.testing.assert_allclose(method.theta, best, atol=1e-7)


def test_steps_are_asked_for_where_they_matter() -> None:
    with pytest.raises(UsageError, match="--step"):
        make_descent("fixed", None)
    with pytest.raises(UsageError, match="--step"):
        make_descent("lbfgs", 0.1)
    with pytest.raises(UsageError, match="--optimiser"):
        make_descent("adam", None)


# ---- going on ----------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


def logistic() -> Callable[[Array], Answer]:
    rng = generator(6, "descent")
    X, loss = rng.standard_normal((60, 8)), Logistic()
    y = (X @ rng.standard_normal(8) + 0.3 * rng.standard_normal(60) > 0).astype(float)

    def evaluate(theta: Array) -> Answer:
        value, gradient = loss(X, y, theta)
        assert value is not None
        return value + 0.5 * float(theta @ theta), gradient + theta

    return evaluate


@pytest.mark.parametrize("at", [1, 7, 12])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_interrupted_and_resumed_is_bit_for_bit_as_if_nothing_had_been(tmp_path: Path, name: str, at: int) -> None:
    evaluate, step, path = logistic(), 0.05 if name == "fixed" else None, str(tmp_path / "c.npz")
    limits = Limits(20, 0.0, 1.0)
    whole = make_descent(name, step)
    curve: list[Point] = []
    whole.run(np.zeros(8), evaluate, limits, curve.append)

    first = make_descent(name, step)

    def until(point: Point) -> None:
        if point.iteration == at:
            checkpoint.save(path, {"name": name}, first.state(), [[1, 2.0]])
            raise Interrupted

    with pytest.raises(Interrupted):
        first.run(np.zeros(8), evaluate, limits, until)
    second = make_descent(name, step)
    state, kept = checkpoint.load(path, {"name": name})
    assert kept == [[1, 2.0]]
    second.restore(state)
    rest: list[Point] = []
    second.run(np.ones(8), evaluate, limits, rest.append)  # the start is the checkpoint's, whatever is passed
    np.testing.assert_array_equal(second.theta, whole.theta)
    assert [(p.iteration, p.loss) for p in rest] == [(p.iteration, p.loss) for p in curve[at:]]


def test_a_long_lbfgs_run_starts_afresh_from_theta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmm.gradient.descent.LOG_BYTES", 100)
    evaluate, best = quadratic()
    first = make_descent("lbfgs", None)
    first.run(np.zeros(12), evaluate, Limits(4, 0.0, 1.0), nothing)
    second = make_descent("lbfgs", None)
    second.restore(first.state())
    iterations: list[int] = []
    second.run(np.zeros(12), evaluate, Limits(300, 1e-11, 1.0), lambda point: iterations.append(point.iteration))
    assert iterations[0] == 5
    np.testing.assert_allclose(second.theta, best, atol=1e-9)


def saved(path: Path, method: Descent) -> str:
    checkpoint.save(str(path), {"loss": "huber"}, method.state(), [])
    return str(path)


def test_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    method = make_descent("nesterov", None)
    with pytest.raises(InputMissingError, match="--resume"):
        checkpoint.load(str(tmp_path / "none.npz"), {})
    path = saved(tmp_path / "c.npz", method)
    with pytest.raises(DataError, match="loss 'huber'"):
        checkpoint.load(path, {"loss": "logistic"})
    whole = Path(path).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PK" + whole[2:90], b"nonsense"):
        Path(path).write_bytes(damaged)
        with pytest.raises(DataError, match="--resume"):
            checkpoint.load(path, {"loss": "huber"})
    np.savez(tmp_path / "pickled.npz", about=np.array([{"version": 1}], dtype=object))
    with pytest.raises(DataError, match="--resume"):
        checkpoint.load(str(tmp_path / "pickled.npz"), {})


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path: Path) -> None:
    path = saved(tmp_path / "c.npz", make_descent("nesterov", 0.25))
    with pytest.raises(TypeError):
        checkpoint.save(path, {"loss": object()}, {}, [])
    assert float(checkpoint.load(path, {"loss": "huber"})[0]["step"]) == 0.25
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.npz"]


def test_the_keeper_writes_at_its_times_only() -> None:
    now, times = [0.0], []
    keeper = checkpoint.Keeper(lambda: times.append(now[0]), 10.0, clock=lambda: now[0])
    for now[0] in (3.0, 9.9, 10.0, 12.0, 19.0, 20.5):
        keeper.tick()
    assert times == [10.0, 20.5]
