"""The master's own loss and gradient against the workers': what is noticed, who is named, what is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.gradient.checking import LIMIT, Check, Total, relative
from cmm.gradient.data import DataSet, read_coded, read_share
from cmm.gradient.encoding import Encoding, cyclic, generalized_frc
from cmm.gradient.losses import make_loss
from cmm.gradient.polynomial import polynomial

CODES = [generalized_frc(7, 2), cyclic(7, 2), polynomial(7, 2)]


class Scene:
    """A least-squares problem on disk with the answers of all workers of a code."""

    def __init__(self, folder: Path, code: Encoding, rows: int = 60) -> None:
        rng = generator(3, "checking", code.name)
        np.save(folder / "X.npy", rng.standard_normal((rows, 4)))
        np.save(folder / "y.npy", rng.standard_normal(rows))
        self.code, self.theta = code, rng.standard_normal(4)
        self.data, self.loss = DataSet(str(folder / "X.npy"), str(folder / "y.npy")), make_loss("least-squares")
        self.check = Check(self.data, self.loss, lambda: None)
        self.total = self.check.total(self.theta)
        self.answers = {worker: self.answer(worker) for worker in range(code.n)}

    def answer(self, worker: int) -> Array:
        read, out = read_coded if self.code.coded_data else read_share, np.zeros(5)
        for _ in read(self.data, self.code.k, *self.code.parts(worker)).answer(self.loss, self.theta, out):
            pass
        return out

    def liars(self) -> list[int]:
        decoder = self.code.decoder()
        assert [decoder.add(worker) for worker in range(self.code.n)][-1]
        assert decoder.combination is not None
        return self.check.liars(self.code, decoder.combination, self.answers, self.theta, self.total.sizes)


def test_the_total_is_the_loss_and_gradient_over_all_rows(tmp_path: Path) -> None:
    scene = Scene(tmp_path, CODES[0])
    loss, gradient = scene.loss(*scene.data.read(slice(0, 60)), scene.theta)
    np.testing.assert_allclose(scene.total.value, [loss, *gradient], rtol=1e-12)
    assert scene.total.sizes[0] == pytest.approx(loss)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_honest_answers_are_consistent(tmp_path: Path, code: Encoding) -> None:
    scene = Scene(tmp_path, code)
    assert scene.check.suspicious(code, scene.answers, scene.total) <= 1e-12
    assert scene.liars() == []


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
@pytest.mark.parametrize("change", [1e-6, 1.0, np.nan, np.inf])
@pytest.mark.parametrize("element", [0, 3])
def test_a_wrong_answer_is_noticed_and_its_worker_named(
    tmp_path: Path, code: Encoding, change: float, element: int
) -> None:
    scene = Scene(tmp_path, code)
    scene.answers[4][element] += change * (1 + abs(scene.total.value[element]))
    assert scene.check.suspicious(code, scene.answers, scene.total) > LIMIT
    assert scene.liars() == [4]


def test_answers_that_were_swapped_or_belong_to_another_theta_are_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path, CODES[0])
    scene.answers[1], scene.answers[4] = scene.answers[4], scene.answers[1]  # the two halves of a class
    scene.theta = scene.theta + 1e-5
    scene.answers[5] = scene.answer(5)
    scene.theta = scene.theta - 1e-5
    assert scene.liars() == [1, 4, 5]


def test_differences_are_relative_to_the_sizes_of_the_terms() -> None:
    total = Total(np.array([2.0, 0.0, 1e-9]), (2.0, 1.0))
    assert total.difference(np.array([2.0, 1e-12, 1e-9])) == 1e-12
    assert total.difference(np.array([2.2, 0.0, 1e-9])) == pytest.approx(0.1)
    assert total.difference(np.array([np.nan, 0.0, 1e-9])) == np.inf
    assert relative(np.zeros(2), np.zeros(2), 0.0) == 0
    assert relative(np.zeros(2), np.ones(2), 0.0) == np.inf
    assert relative(np.array([np.nan]), np.array([np.nan]), 1.0) == 0  # the data's own, not the worker's
