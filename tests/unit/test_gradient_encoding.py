"""Encoding matrices of gradient coding: loads, balance, span condition, and their decoders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from cmm.core.errors import UsageError
from cmm.core.rng import generator
from cmm.gradient.decoding import ClassDecoder, Combination
from cmm.gradient.encoding import (
    CODES,
    Encoding,
    cyclic,
    decoding_vector,
    generalized_frc,
    heterogeneous_frc,
    imbalance,
    max_load,
    spans,
    tandon_frc,
    total_load,
    uncoded,
)
from cmm.gradient.polynomial import MOST_AMPLIFICATION, amplification, groups_for, interpolation, polynomial
from cmm.gradient.spec import CODES as NAMES

SPEEDS = (4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1)


def test_the_papers_example_of_11_workers_and_3_stragglers() -> None:
    code = generalized_frc(11, 3)
    assert [[code.loads[worker] for worker in members] for members in code.classes] == [
        [4, 4, 3], [4, 4, 3], [4, 4, 3], [6, 5]]  # fmt: skip
    assert (total_load(code.matrix), max_load(code.matrix), imbalance(code.matrix, 3)) == (44, 6, 6)
    assert spans(code.matrix, 3)


@pytest.mark.parametrize("n", range(1, 11))
def test_every_straggler_set_spans(n: int) -> None:
    """All s and three numbers of parts, every set of s stragglers; loads and balance as the theorems say."""
    for s in range(n):
        workers, classes = n // (s + 1), n % (s + 1)
        for k in (n, n + 3, 2 * n + 1):
            B = generalized_frc(n, s, k).matrix
            assert set(np.unique(B)) <= {0, 1}
            assert total_load(B) == k * (s + 1)
            assert max_load(B) == math.ceil(k / workers)
            assert spans(B, s)
            assert s + 1 == n or not spans(B, s + 1)  # a part's s + 1 holders may all be missing
        assert imbalance(generalized_frc(n, s).matrix, s) == 2 * classes * (s + 1 - classes)


def test_one_straggler_more_is_too_many() -> None:
    assert not spans(generalized_frc(11, 3).matrix, 4)
    assert not spans(uncoded(5).matrix, 1)
    assert not spans(cyclic(7, 3).matrix, 4)


def test_tandons_code_is_the_generalised_one_where_it_exists() -> None:
    code = tandon_frc(12, 2)
    np.testing.assert_array_equal(code.matrix, generalized_frc(12, 2).matrix)
    assert imbalance(code.matrix, 2) == 0
    assert set(code.loads) == {3}
    with pytest.raises(UsageError, match="generalized-frc"):
        tandon_frc(11, 3)
    with pytest.raises(UsageError, match="multiple of n"):
        tandon_frc(12, 2, 13)


@pytest.mark.parametrize(("n", "s"), [(1, 0), (5, 0), (5, 4), (7, 3), (10, 2)])
def test_cyclic_spans_with_equal_loads(n: int, s: int) -> None:
    code = cyclic(n, s, seed=3)
    assert set(code.loads) == {s + 1}
    assert imbalance(code.matrix, s) == 0
    for rows in itertools.combinations(range(n), n - s):
        a = decoding_vector(code.matrix, rows)
        assert a is not None
        assert np.abs(a @ code.matrix - 1).max() < 1e-9  # worst 1.6e-14 x condition of the worst set
        assert np.all(a[[i for i in range(n) if i not in rows]] == 0)


def finishing_times(code: Encoding, speeds: tuple[int, ...]) -> list[float]:
    return [max(code.loads[worker] / speeds[worker] for worker in members) for members in code.classes]


def test_unequal_workers_finish_together() -> None:
    code = heterogeneous_frc(SPEEDS, 2, 48)
    times = finishing_times(code, SPEEDS)
    assert max(times) / min(times) <= 1.2
    assert max(times) <= 48 * 3 / sum(SPEEDS) * 1.1  # the ideal is (s + 1)k / sum of speeds
    assert total_load(code.matrix) == 48 * 3
    assert spans(code.matrix, 2)
    even = finishing_times(generalized_frc(12, 2, 48), SPEEDS)
    assert max(even) >= 2 * max(times)


def test_extreme_speeds_still_give_everybody_a_part() -> None:
    code = heterogeneous_frc((1e9, 1, 1, 1e-9, 1), 1, 7)
    assert min(code.loads) >= 1
    assert spans(code.matrix, 1)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: generalized_frc(4, 4), "--stragglers"),
    (lambda: generalized_frc(4, -1), "--stragglers"),
    (lambda: generalized_frc(8, 1, 3), "--parts"),
    (lambda: heterogeneous_frc((1, 0, 1), 1, 9), "--speeds"),
    (lambda: heterogeneous_frc((1, float("nan")), 0, 9), "--speeds"),
    (lambda: polynomial(4, 3), "--parts"),
])  # fmt: skip
def test_refusals(make: Callable[[], Encoding], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_the_table_of_codes_is_the_list_of_the_command_line() -> None:
    assert tuple(CODES) == tuple(sorted(CODES, key=NAMES.index))
    assert set(CODES) == set(NAMES)


# ---- decoding ----------------------------------------------------------------------------------------------------


def decoded_after(code: Encoding, order: list[int]) -> tuple[int, Combination]:
    decoder = code.decoder()
    for count, worker in enumerate(order, 1):
        if decoder.add(worker):
            assert decoder.combination is not None
            return count, decoder.combination
    raise AssertionError("not decodable")


def codes_of_ten() -> list[Encoding]:
    return [generalized_frc(10, 2, 13), heterogeneous_frc(SPEEDS[:10], 2, 40), cyclic(10, 2), polynomial(10, 4),
            uncoded(10), tandon_frc(10, 1)]  # fmt: skip


@pytest.mark.parametrize("code", codes_of_ten(), ids=lambda code: code.name)
def test_any_order_of_answers_decodes_when_promised(code: Encoding) -> None:
    rng = generator(5, code.name)
    G = rng.standard_normal((code.k, 6))
    for _ in range(50):
        order = rng.permutation(code.n).tolist()
        count, combination = decoded_after(code, order)
        assert count <= code.n - code.stragglers
        assert set(combination.workers) <= set(order[:count])
        if not code.coded_data:
            total = combination.apply({w: code.matrix[w] @ G for w in order[:count]})
            np.testing.assert_allclose(total, G.sum(axis=0), atol=1e-9)


def test_binary_codes_decode_at_the_first_complete_class_with_more_stragglers_than_promised() -> None:
    code = generalized_frc(11, 3)
    assert decoded_after(code, [7, 3])[0] == 2
    count, combination = decoded_after(code, [0, 7, 4, 3])
    assert (count, combination.workers, combination.coefficients) == (4, (3, 7), None)
    assert combination.label == "class 3"


def test_the_same_class_gives_the_same_bits_in_any_order() -> None:
    code, rng = generalized_frc(9, 2, 20), generator(8, "bits")
    answers = {worker: rng.standard_normal(1000) * 10.0 ** rng.integers(-8, 8, 1000) for worker in range(9)}
    found = set()
    for _ in range(10):
        order = [2, 5, 8]
        rng.shuffle(order)
        found.add(decoded_after(code, order)[1].apply(answers).tobytes())
    assert len(found) == 1


def test_a_class_decoder_counts_each_worker_once() -> None:
    decoder = ClassDecoder([(0, 2), (1, 3)], 4)
    assert [decoder.add(worker) for worker in (0, 0, 1, 1)] == [False] * 4
    assert decoder.add(3)
    assert decoder.combination is not None
    assert decoder.combination.workers == (1, 3)
    assert decoder.add(2)  # a later class changes nothing
    assert decoder.combination.workers == (1, 3)


def test_what_losses_leave() -> None:
    assert ClassDecoder([(0, 2), (1, 3)], 4).possible({0, 2})
    assert not ClassDecoder([(0, 2), (1, 3)], 4).possible({0, 3})
    assert cyclic(6, 2).decoder().possible({1, 2})
    assert not cyclic(6, 2).decoder().possible({1, 2, 3})
    assert polynomial(9, 4).decoder().possible({1, 2})
    assert not polynomial(9, 4).decoder().possible({1, 2, 3})


# ---- polynomially coded regression -------------------------------------------------------------------------------


def regression_errors(code: Encoding, sets: Iterable[Sequence[int]]) -> list[float]:
    """Relative errors of X^T X theta decoded from each of the sets, in the order of their workers."""
    q, rng = code.k, generator(2, "regression", code.n, code.k)
    X, theta = rng.standard_normal((q, 30, 8)), rng.standard_normal(8)
    exact = sum(X[j].T @ (X[j] @ theta) for j in range(q))
    coded = np.einsum("ij,jab->iab", code.matrix, X)
    answers = {i: coded[i].T @ (coded[i] @ theta) for i in range(code.n)}
    errors = []
    for workers in sets:
        count, combination = decoded_after(code, list(workers))
        assert count == code.n - code.stragglers
        errors.append(float(np.linalg.norm(combination.apply(answers) - exact) / np.linalg.norm(exact)))
    return errors


def some_sets(n: int, size: int, most: int) -> Iterable[Sequence[int]]:
    """All sets, or the n sets of neighbours and random ones where there are more than `most`."""
    if math.comb(n, size) <= most:
        return itertools.combinations(range(n), size)
    rng = generator(4, "sets", n, size)
    neighbours = [[(first + i) % n for i in range(size)] for first in range(n)]
    return neighbours + [rng.choice(n, size, replace=False).tolist() for _ in range(most - n)]


@pytest.mark.parametrize("n", range(1, 25))
def test_polynomial_regression_from_any_threshold_of_answers(n: int) -> None:
    """X^T X theta to 1e-10 from any 2q - 1 answers, every q (q = ceil(n / r) among them): worst 8e-12, at n = 24."""
    for q in range(1, (n + 1) // 2 + 1):
        code = polynomial(n, q)
        assert code.stragglers == n - (2 * q - 1)
        errors = regression_errors(code, some_sets(n, 2 * q - 1, 150))
        assert max(errors) <= 1e-10
        assert max(errors) <= 20 * np.finfo(float).eps * amplification(n, q, range(2 * q - 1))


@pytest.mark.slow
def test_polynomial_regression_from_all_sets_of_13_of_20() -> None:
    assert max(regression_errors(polynomial(20, 7), itertools.combinations(range(20), 13))) <= 1e-11  # 77520: 7.5e-13


@pytest.mark.parametrize("n", [5, 8, 9, 12])
def test_neighbours_are_the_worst_set_of_their_size(n: int) -> None:
    for q in range(1, (n + 1) // 2 + 1):
        for size in range(2 * q - 1, n + 1):
            worst = max(amplification(n, q, workers) for workers in itertools.combinations(range(n), size))
            assert worst <= amplification(n, q, range(size)) * (1 + 1e-6)


def test_what_would_let_through_too_much_rounding_waits_for_more_answers() -> None:
    code = polynomial(40, 10)
    assert 0 < code.stragglers < 40 - 19
    neighbours = list(range(40 - code.stragglers))
    assert amplification(40, 10, neighbours[:-1]) > MOST_AMPLIFICATION
    assert max(regression_errors(code, [neighbours, neighbours[::-1]])) <= 1e-10
    decoder = code.decoder()
    assert decoded_after(code, [*range(0, 40, 2)])[0] == 19  # a set without gaps needs no more than 2q - 1
    assert decoder.possible(range(code.stragglers))
    assert not decoder.possible(range(21))
    assert groups_for(40, 21) < 10


def test_the_kernel_is_a_partition_of_orthogonal_translates() -> None:
    for q in (1, 2, 5, 8):
        code = polynomial(2 * q - 1, q)
        np.testing.assert_allclose(np.linalg.norm(code.matrix, axis=1), 1, atol=1e-14)
        np.testing.assert_allclose(code.matrix.T @ code.matrix, np.eye(q) * code.n / q, atol=1e-13)


def test_interpolation_reproduces_polynomials_of_its_degree() -> None:
    workers = (0, 2, 3, 4, 6, 7, 8)
    found, amplified = interpolation(9, 4, workers)
    assert amplified >= 1
    points, nodes = 2 * np.pi * np.array(workers) / 9, 2 * np.pi * np.arange(4) / 4
    for degree in range(4):
        for shift in (0.3, 1.7):
            expected = np.cos(degree * nodes + shift).sum()
            assert found @ np.cos(degree * points + shift) == pytest.approx(expected, abs=1e-12)


def test_groups_leave_room_for_the_stragglers() -> None:
    for n in [*range(1, 20), 40, 60]:
        for s in range(0, n, 1 if n < 20 else 7):
            code = polynomial(n, groups_for(n, s))
            assert code.stragglers >= s or code.k == 1
