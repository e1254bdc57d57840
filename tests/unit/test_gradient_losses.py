"""Losses against finite differences and against each other; user callables; the data they are computed on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from cmm.core.errors import DataError, InputMissingError, UsageError
from cmm.core.grid import cut
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.gradient.data import DataSet, Share, read_coded, read_share
from cmm.gradient.encoding import generalized_frc
from cmm.gradient.losses import LOSSES, Huber, Loss, Softmax, make_loss
from cmm.gradient.objective import Objective
from cmm.gradient.polynomial import polynomial
from cmm.gradient.spec import LOSSES as NAMES


def problem(name: str, rows: int = 40, features: int = 5) -> tuple[Loss, Array, Array, Array]:
    rng = generator(1, "losses", name)
    X, loss = rng.standard_normal((rows, features)), make_loss(name, 0.7)
    y = {"logistic": rng.integers(0, 2, rows), "softmax": rng.integers(0, 4, rows)}.get(name, rng.standard_normal(rows))
    y = y.astype(float)
    return loss, X, y, rng.standard_normal(loss.shape(features, y))


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_the_derivative_of_the_loss(name: str) -> None:
    loss, X, y, theta = problem(name)
    value, gradient = loss(X, y, theta)
    assert value is not None
    assert gradient.shape == theta.shape
    for at in np.ndindex(theta.shape):
        h = 1e-5
        step = np.zeros_like(theta)
        step[at] = h
        above, below = loss(X, y, theta + step)[0], loss(X, y, theta - step)[0]
        assert above is not None
        assert below is not None
        # central difference: h^2 times the third derivative, and cancellation eps * loss / h
        assert (above - below) / (2 * h) == pytest.approx(gradient[at], abs=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up_and_sparse_data_agree(name: str) -> None:
    loss, X, y, theta = problem(name)
    whole, gradient = loss(X, y, theta)
    parts = [loss(X[a:b], y[a:b], theta) for a, b in ((0, 13), (13, 14), (14, 40))]
    assert sum(value or 0 for value, _ in parts) == pytest.approx(whole, rel=1e-13)
    np.testing.assert_allclose(sum(g for _, g in parts), gradient, atol=1e-12)
    sparse, slope = loss(sp.csr_array(X), y, theta)
    assert sparse == pytest.approx(whole, rel=1e-13)
    np.testing.assert_allclose(slope, gradient, atol=1e-12)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_huge_margins_do_not_overflow(name: str) -> None:
    loss, X, y, theta = problem(name)
    value, gradient = loss(X, y, 1e6 * theta)
    assert value is not None
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_logistic_labels_of_both_kinds_and_softmax_of_two_classes() -> None:
    loss, X, y, theta = problem("logistic")
    value, gradient = loss(X, y, theta)
    assert loss(X, 2 * y - 1, theta)[0] == value
    two = np.stack([np.zeros_like(theta), theta], axis=1)
    softmax, slope = Softmax()(X, y, two)
    assert softmax == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(slope[:, 1], gradient, atol=1e-12)


def test_huber_is_least_squares_for_a_large_delta() -> None:
    loss, X, y, theta = problem("least-squares")
    np.testing.assert_allclose(Huber(1e9)(X, y, theta)[1], loss(X, y, theta)[1], atol=1e-12)
    assert Huber(1e9)(X, y, theta)[0] == pytest.approx(loss(X, y, theta)[0], rel=1e-13)


@pytest.mark.parametrize(("name", "labels"), [
    ("logistic", [0, 1, 2]), ("logistic", [0, 0.5]), ("logistic", [-1, 0, 1]), ("softmax", [0, 1.5]),
    ("softmax", [-1, 0]), ("softmax", [2e9]),
])  # fmt: skip
def test_labels_of_the_wrong_kind(name: str, labels: list[float]) -> None:
    with pytest.raises(DataError, match="--labels"):
        make_loss(name).check_labels(np.asarray(labels, dtype=float))


def test_names() -> None:
    assert set(LOSSES) == set(NAMES)
    with pytest.raises(UsageError, match="--loss"):
        make_loss("hinge")


# ---- callables ---------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_losses.py").write_text(
        "import numpy as np\n"
        "def plain(X, y, theta):\n    return X.T @ (X @ theta - y)\n"
        "def both(X, y, theta):\n    r = X @ theta - y\n    return 0.5 * r @ r, X.T @ r\n"
        "def wrong(X, y, theta):\n    return np.zeros(len(theta) + 1)\n"
        "def broken(X, y, theta):\n    return 1 / 0\n"
        "def leaves(X, y, theta):\n    raise SystemExit(3)\n"
        "def scales(X, y, theta):\n    X *= 2\n    return theta\n"
        "def moves(X, y, theta):\n    theta += 1\n    return theta\n"
        "def scales_sparse(X, y, theta):\n    X.data *= 2\n    return theta\n"
        "def imaginary(X, y, theta):\n    return theta * 1j\n"
        "def nothing(X, y, theta):\n    return None\n"
        "def a_list(X, y, theta):\n    return [1.0, theta]\n"
        "def three(X, y, theta):\n    return 1.0, theta, 2\n"
        "def losses(X, y, theta):\n    return X @ theta, theta\n"
        "def boxed(X, y, theta):\n    return np.array([2.0]), theta.astype('float32')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("users_losses", None)
    return "users_losses"


def test_a_callable_by_its_import_path(module: str) -> None:
    loss, X, y, theta = problem("least-squares")
    value, gradient = loss(X, y, theta)
    assert make_loss(f"{module}:plain")(X, y, theta)[0] is None
    np.testing.assert_array_equal(make_loss(f"{module}:plain")(X, y, theta)[1], gradient)
    assert make_loss(f"{module}:both")(X, y, theta)[0] == value


def test_callables_that_cannot_be_used(module: str) -> None:
    _, X, y, theta = problem("least-squares")
    with pytest.raises(DataError, match="shape"):
        make_loss(f"{module}:wrong")(X, y, theta)
    with pytest.raises(DataError, match="ZeroDivisionError"):
        make_loss(f"{module}:broken")(X, y, theta)
    for name in ("imaginary", "nothing", "a_list", "three", "losses"):
        with pytest.raises(DataError, match=f"must return .* from {module}:{name}"):
            make_loss(f"{module}:{name}")(X, y, theta)
    with pytest.raises(DataError, match="SystemExit"):
        make_loss(f"{module}:leaves")(X, y, theta)
    (Path(sys.modules[module].__file__ or "").parent / "users_exit.py").write_text("raise SystemExit(4)\n")
    with pytest.raises(UsageError, match="SystemExit"):
        make_loss("users_exit:f")
    for path in ("nowhere_at_all:f", f"{module}:missing", f"{module}:number"):
        with pytest.raises(UsageError, match="--loss"):
            make_loss(path)


def test_a_callable_cannot_change_the_data_or_theta(module: str) -> None:
    _, X, y, theta = problem("least-squares")
    before = X.copy(), theta.copy()
    for name, data in (("scales", X), ("moves", X), ("scales_sparse", sp.csr_array(X))):
        with pytest.raises(DataError, match="read-only: they serve"):
            make_loss(f"{module}:{name}")(data, y, theta)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(theta, before[1])
    assert X.flags.writeable
    value, gradient = make_loss(f"{module}:boxed")(X, y, theta)
    assert (value, gradient.dtype) == (2.0, np.float64)


def test_ridge_and_regulariser_are_added_once() -> None:
    theta = np.array([1.0, -2.0])
    objective = Objective(lambda at: (3.0, at * 0), 0.5, lambda at: (float(np.abs(at).sum()), np.sign(at)))
    loss, gradient = objective(theta)
    assert loss == 3 + 0.25 * 5 + 3
    np.testing.assert_array_equal(gradient, 0.5 * theta + np.sign(theta))


@pytest.mark.parametrize(("loss", "gradient"), [(np.nan, 0.0), (1.0, np.nan), (None, np.inf)])
def test_what_is_not_finite_is_refused(loss: float | None, gradient: float) -> None:
    with pytest.raises(DataError, match="evaluation 1"):
        Objective(lambda at: (loss, np.full(2, gradient)))(np.zeros(2))


def test_a_trial_step_into_infinity_is_left_to_the_line_search() -> None:
    assert Objective(lambda at: (np.inf, np.full(2, np.nan)))(np.zeros(2))[0] == np.inf


# ---- data --------------------------------------------------------------------------------------------------------


def written(folder: Path, X: Any, y: Array, kind: str = "npy") -> DataSet:
    np.save(folder / "y.npy", y)
    if kind == "mtx":
        scipy.io.mmwrite(folder / "X.mtx", sp.coo_array(X))
        return DataSet(str(folder / "X.mtx"), str(folder / "y.npy"))
    np.save(folder / "X.npy", X)
    return DataSet(str(folder / "X.npy"), str(folder / "y.npy"))


def sum_over(share: Share, loss: Loss, theta: Array) -> Array:
    out = np.zeros(1 + theta.size)
    assert sum(1 for _ in share.answer(loss, theta, out)) == len(share.parts)
    return out


@pytest.mark.parametrize("kind", ["npy", "mtx"])
def test_every_class_of_workers_has_the_whole_gradient(tmp_path: Path, kind: str) -> None:
    loss, X, y, theta = problem("logistic", rows=53)
    X[np.abs(X) < 1] = 0
    data, code = written(tmp_path, X, y, kind), generalized_frc(11, 3, 14)
    value, gradient = loss(X, y, theta)
    for members in code.classes:
        total = sum(sum_over(read_share(data, 14, *code.parts(worker)), loss, theta) for worker in members)
        np.testing.assert_allclose(total, [value, *gradient], rtol=1e-12, atol=1e-12)


def test_a_worker_reads_its_parts_only_and_as_much_as_forecast(tmp_path: Path) -> None:
    _, X, y, _ = problem("logistic", rows=110)
    data, code = written(tmp_path, X, y), generalized_frc(11, 3)
    share = read_share(data, 11, *code.parts(3))
    assert share.nbytes == data.memory(6, 11) == 60 * (5 + 1) * 8
    bounds = cut(110, 11)
    for part, (_, features, _) in zip(code.parts(3)[0], share.parts, strict=True):
        np.testing.assert_array_equal(features, X[bounds[part] : bounds[part + 1]])


def test_sparse_parts_stay_sparse(tmp_path: Path) -> None:
    X = sp.random_array((200, 300), density=0.01, rng=generator(3, "sparse"))
    data = written(tmp_path, X, np.zeros(200), "mtx")
    share = read_share(data, 10, [2, 3], [1.0, 1.0])
    assert all(sp.issparse(features) for _, features, _ in share.parts)
    np.testing.assert_array_equal(share.parts[1][1].toarray(), X.toarray()[60:80])
    assert share.nbytes < 40 * 300 * 8 / 10


@pytest.mark.parametrize("kind", ["npy", "mtx"])
def test_coded_data_give_loss_and_gradient_by_interpolation(tmp_path: Path, kind: str) -> None:
    loss, X, y, theta = problem("least-squares", rows=43)
    data, code = written(tmp_path, X, y, kind), polynomial(8, 3)
    value, gradient = loss(X, y, theta)
    decoder, answers = code.decoder(), {}
    for worker in (7, 1, 4, 2, 0):
        share = read_coded(data, 3, *code.parts(worker))
        assert share.parts[0][1].shape == (15, 5)
        answers[worker] = sum_over(share, loss, theta)
        decoder.add(worker)
    assert decoder.combination is not None
    np.testing.assert_allclose(decoder.combination.apply(answers), [value, *gradient], rtol=1e-11, atol=1e-11)


def test_features_that_are_not_finite_are_refused_by_row(tmp_path: Path) -> None:
    X = np.eye(6, 3)
    X[4, 1] = np.nan
    written(tmp_path, X, np.arange(6.0))
    scipy.io.mmwrite(tmp_path / "X.mtx", sp.coo_array(X))
    for name in ("X.npy", "X.mtx"):
        data = DataSet(str(tmp_path / name), str(tmp_path / "y.npy"), finite=True)
        data.read(slice(0, 4))
        with pytest.raises(DataError, match="row 4 of"):
            data.read(slice(2, 6))
        DataSet(str(tmp_path / name), str(tmp_path / "y.npy")).read(slice(2, 6))  # left to a callable


def test_data_that_cannot_be_used(tmp_path: Path) -> None:
    X, y = np.ones((6, 2)), np.arange(6.0)
    for other in (np.arange(5.0), np.ones((6, 2)), np.ones((6, 2, 2))):
        with pytest.raises(DataError, match="--labels"):
            written(tmp_path, X, other)
    with pytest.raises(DataError, match="row 3"):
        written(tmp_path, X, np.where(y == 3, np.nan, y)).all_labels()
    with pytest.raises(DataError, match="real"):
        written(tmp_path, X + 1j, y)
    with pytest.raises(DataError, match="--data"):
        written(tmp_path, np.ones((6, 0)), y)
    with pytest.raises(InputMissingError, match="--data"):
        DataSet(str(tmp_path / "none.npy"), str(tmp_path / "y.npy"))
