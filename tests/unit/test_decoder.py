from typing import Any

import numpy as np
import pytest

from cmm.core.errors import FailureKind
from cmm.core.grid import Grid
from cmm.linalg import decoder as module
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import DecodingError
from cmm.linalg.rows import Targets, rows_of
from tests.unit.synthetic import block_tasks, coefficients, random_tasks, rounds, row


def failure(decoder: Decoder) -> DecodingError:
    with pytest.raises(DecodingError) as caught:
        decoder.plan()
    return caught.value


def test_all_blocks_directly_is_a_copy_without_work() -> None:
    decoder = Decoder(4, Targets(4))
    for unknown in (2, 0, 3, 1):
        assert not decoder.decodable()
        decoder.add(10 + unknown, [row([unknown], [1.0])])
    assert decoder.decodable()
    plan = decoder.plan()
    assert (plan.method, plan.block_operations, len(plan.missing), plan.sources) == ("copy", 0, 0, ())
    assert plan.direct[2] == ((12, 0), 1.0)
    assert (decoder.results, decoder.missing) == (4, 0)


def test_counts_gate_and_the_failure_says_how_many_rows_are_needed() -> None:
    decoder = Decoder(5, Targets(5))
    error = failure(decoder)
    assert (error.kind, error.needed) == (FailureKind.INCOMPLETE, 5)
    decoder.add(0, [row([0], [1.0])])
    decoder.add(1, [row([0, 1], [1.0, 1.0])])
    assert failure(decoder).needed == 3
    assert decoder.outstanding().tolist() == [1, 2, 3, 4]
    assert decoder.wanted().tolist() == [2, 3, 4, 1]


def test_a_task_added_twice_and_a_second_direct_result_count_once() -> None:
    decoder = Decoder(2, Targets(2))
    decoder.add(0, [row([0], [2.0])])
    decoder.add(0, [row([1], [1.0])])
    decoder.add(5, [row([0], [1.0])])
    assert decoder.results == 2
    assert decoder.missing == 1
    assert not decoder.decodable()
    decoder.add(6, [row([0, 1], [1.0, 1.0])])
    assert decoder.plan().direct == {0: ((0, 0), 2.0)}


def test_structural_deficiency_is_waited_for_without_further_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    rank = module.structural_rank
    monkeypatch.setattr(module, "structural_rank", lambda matrix: calls.append(matrix.shape[1]) or rank(matrix))
    decoder = Decoder(10, Targets(10))
    rng = np.random.default_rng(0)
    decoder.add(0, [row(range(10), coefficients(rng, 10))])
    for task in range(1, 10):  # nine rows over three unknowns and one over all: rank 4
        decoder.add(task, [row(range(3), coefficients(rng, 3))])
        assert not decoder.decodable()
    assert failure(decoder).needed == 6
    assert calls == [10]
    for unknown in range(3, 9):
        assert not decoder.decodable()
        decoder.add(100 + unknown, [row([unknown], [1.0])])
    assert decoder.decodable()
    assert calls == [10, 4]


def test_uncovered_unknowns_are_waited_for_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(module, "structural_rank", lambda matrix: calls.append(matrix.shape[1]) or matrix.shape[1])
    decoder = Decoder(10, Targets(10))
    rng = np.random.default_rng(0)
    for task in range(10):  # ten rows over three unknowns: seven are untouched
        decoder.add(task, [row(range(3), coefficients(rng, 3))])
        assert not decoder.decodable()
    assert failure(decoder).needed == 7
    for unknown in range(3, 10):
        assert not decoder.decodable()
        decoder.add(100 + unknown, [row([unknown], [1.0])])
    assert decoder.decodable()
    assert calls == [3]


def test_rows_whose_unknowns_are_all_known_are_surplus() -> None:
    decoder = Decoder(3, Targets(3))
    decoder.add(0, [row([0], [1.0])])
    decoder.add(1, [row([1], [1.0])])
    for task in (2, 3, 4):
        decoder.add(task, [row([0, 1], [1.0, float(task)])])
    assert not decoder.decodable()
    assert failure(decoder).needed == 1
    decoder.add(9, [row([0, 2], [1.0, 4.0])])
    plan = decoder.plan()
    assert plan.sources == ((9, 0),)
    assert plan.missing.tolist() == [2]


def test_singular_and_ill_conditioned_systems_are_refused_until_another_row_helps() -> None:
    decoder = Decoder(2, Targets(2))
    decoder.add(0, [row([0, 1], [1.0, 1.0])])
    decoder.add(1, [row([0, 1], [2.0, 2.0])])
    assert not decoder.decodable()
    assert failure(decoder).kind is FailureKind.SINGULAR
    decoder.add(2, [row([0, 1], [1.0, 1.0 + 1e-14])])
    assert not decoder.decodable()
    error = failure(decoder)
    assert error.kind in (FailureKind.ILL_CONDITIONED, FailureKind.SINGULAR)
    assert error.needed == 1
    decoder.add(3, [row([0, 1], [1.0, -1.0])])
    assert decoder.decodable()
    assert (3, 0) in decoder.plan().sources
    assert decoder.plan().condition < 10


def test_realified_rows_count_twice_and_conjugates_add_nothing() -> None:
    rng = np.random.default_rng(1)
    first, second = coefficients(rng, 4, phases=True), coefficients(rng, 4, phases=True)
    decoder = Decoder(4, Targets(4), realify=True)
    decoder.add(0, [row(range(4), first)])
    decoder.add(1, [row(range(4), first.conj())])
    assert not decoder.decodable()
    decoder.add(2, [row(range(4), second)])
    plan = decoder.plan()
    assert set(plan.sources) <= {(0, 0), (1, 0), (2, 0)}
    truth = rng.standard_normal((4, 3))
    rows = {0: first, 1: first.conj(), 2: second}
    results = np.array([rows[task] for task, _ in plan.sources]) @ truth
    assert np.abs(plan.solve(None, results) - truth).max() <= 1e-14 * plan.condition
    plain = Decoder(4, Targets(4))
    for task in (0, 1, 2):
        plain.add(task, [row(range(4), rows[task])])
    assert not plain.decodable()


def test_several_rows_per_task_are_separate_sources() -> None:
    decoder = Decoder(2, Targets(2))
    decoder.add(7, [row([0, 1], [1.0, 1.0]), row([0, 1], [1.0, -1.0])])
    assert set(decoder.plan().sources) == {(7, 0), (7, 1)}


def matdot_rows(p: int, count: int) -> list[Any]:
    nodes = np.cos(np.pi * (2 * np.arange(count) + 1) / (2 * count))
    powers = nodes[:, None] ** np.arange(p)
    return [row(range(p * p), np.multiply.outer(x, x[::-1]).ravel()) for x in powers]


def test_sums_over_the_shared_split_decode_without_full_column_rank() -> None:
    grid = Grid(1, 1, 6)
    decoder = Decoder(grid.unknowns, Targets.blocks(grid))
    rows = matdot_rows(6, 14)
    for task, coded in enumerate(rows[:11]):
        assert not decoder.decodable(), task
        decoder.add(task, [coded])
    assert decoder.decodable()
    plan = decoder.plan()
    truth = np.random.default_rng(2).standard_normal((36, 5))
    results = np.array([rows[task].values for task, _ in plan.sources]) @ truth
    assert plan.method == "combination"
    assert np.abs(plan.solve(None, results) - plan.answer(truth)).max() <= 1e-13 * plan.condition
    assert plan.answer(truth)[0] == pytest.approx(truth.reshape(6, 6, 5).trace())


def test_sums_from_direct_products_use_exactly_those() -> None:
    grid = Grid(2, 1, 2)  # unknown (k, i, l, j); wanted: k = l
    decoder = Decoder(grid.unknowns, Targets.blocks(grid))
    wanted = [grid.unknown(k * 2 + i, k) for k in range(2) for i in range(2)]
    assert sorted(wanted) == decoder.outstanding().tolist()
    for task, unknown in enumerate(wanted):
        assert not decoder.decodable()
        decoder.add(task, [row([unknown], [1.0])])
    plan = decoder.plan()
    assert sorted(plan.sources) == [(task, 0) for task in range(4)]
    assert plan.block_operations == 4
    assert decoder.missing == 0


def test_gradient_sum_from_partial_sums() -> None:
    target = Targets(1, matrix=Targets.blocks(Grid(1, 1, 3)).matrix[:, [0, 4, 8]])
    decoder = Decoder(3, target)
    decoder.add(0, [row([0, 1], [0.5, 1.0])])
    assert not decoder.decodable()
    decoder.add(1, [row([0, 2], [0.5, 1.0])])
    assert decoder.decodable()
    plan = decoder.plan()
    assert np.allclose(plan.solve(None, np.array([[1.0], [2.0]])), 3.0)


def test_rounds_decode_near_k_at_reference_size_and_few_attempts_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    original = Decoder._attempt

    def counted(self: Decoder) -> None:
        attempts.append(self.results)
        original(self)

    monkeypatch.setattr(Decoder, "_attempt", counted)
    grid, rng = Grid(40, 40), np.random.default_rng(11)
    tasks = block_tasks(grid)
    repairs = rounds(grid, rng, grid.K, 6, (2, 8))
    kept = [tasks[k] for k in rng.permutation(grid.K) if rng.random() >= 0.05]
    decoder = Decoder(grid.K, Targets(grid.K))
    for assignment in kept + repairs:
        decoder.add(assignment.task, rows_of(assignment))
        if decoder.decodable():
            break
    assert grid.K <= decoder.results <= grid.K + 10
    assert len(attempts) <= 11
    plan = decoder.plan()
    assert plan.method == "lu"
    assert plan.rank == len(plan.missing) == decoder.missing
    assert plan.condition < 1e6
    assert plan.block_operations == plan.known_coefficients.nnz + decoder.missing**2
    assert plan.reason


def test_any_k_results_with_full_groups_decode() -> None:
    grid, rng = Grid(4, 4), np.random.default_rng(12)
    tasks = block_tasks(grid) + random_tasks(grid, rng, 16, 16)
    for _ in range(50):
        decoder = Decoder(16, Targets(16))
        for k in rng.permutation(32)[:16]:
            assert not decoder.decodable()
            decoder.add(int(k), rows_of(tasks[k]))
        assert decoder.decodable()


def test_later_results_make_the_plan_smaller() -> None:
    grid, rng = Grid(3, 3), np.random.default_rng(13)
    tasks = block_tasks(grid) + random_tasks(grid, rng, 9, 4)
    decoder = Decoder(9, Targets(9))
    for k in [0, 1, 2, 3, 4, 9, 10, 11, 12]:
        decoder.add(k, rows_of(tasks[k]))
    assert len(decoder.plan().sources) == 4
    decoder.add(5, rows_of(tasks[5]))
    assert decoder.decodable()
    assert decoder.plan().missing.tolist() == [6, 7, 8]
    for k in (6, 7, 8):
        decoder.add(k, rows_of(tasks[k]))
    assert decoder.plan().method == "copy"
