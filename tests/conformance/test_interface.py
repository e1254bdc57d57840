"""The interface carries schemes of every further kind, and the suite's controls fail where they must."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cmm.codes.base import Code
from cmm.core.errors import FailureKind
from cmm.core.grid import Grid
from cmm.core.rng import generator
from tests.conformance.harness import Job, estimate, failure, matrices
from tests.conformance.schemes import CirclePolynomial, CyclicGradient, MatDot, Null, Rotation, Sparse, Vandermonde

SCHEMES: list[tuple[Code, int]] = [  # code, results beyond the threshold it may need
    (Rotation(Grid(4, 6), 9), 0),
    (Sparse(Grid(3, 3), 30), 12),
    (MatDot(Grid(1, 1, 3), 8), 0),
    (MatDot(Grid(1, 1, 6), 14), 0),
    (CirclePolynomial(Grid(3, 3), 8), 0),
    (CirclePolynomial(Grid(2, 2), 4), 0),
]


@pytest.mark.parametrize(("code", "spare"), SCHEMES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("shape", [(12, 12, 12), (25, 17, 11), (7, 6, 6)])
def test_schemes_of_every_kind_decode(code: Code, spare: int, shape: tuple[int, int, int]) -> None:
    for trial in range(5):
        job = Job(code, *matrices(trial, *shape))
        order = generator(trial, "order").permutation(code.P).tolist()
        assert job.receive_until_decodable(order)
        assert code.recovery_threshold.results <= job.decoder.results <= code.recovery_threshold.results + spare
        C, plan = job.decode()
        assert C.dtype == np.float64
        assert job.error() <= estimate(job, plan) <= 1e-8
        assert plan.realify == code.complex_coefficients


def test_several_rows_per_assignment_are_keyed_by_output() -> None:
    job = Job(Rotation(Grid(4, 4), 7), *matrices(0, 10, 9, 9))
    job.receive(job.code.task(2))
    assert (job.decoder.results, len(job.code.rows(job.code.task(2))), job.store.parked) == (1, 4, 4)


def test_sums_decode_below_full_rank() -> None:
    """MatDot with p = 6 has 36 unknown cross products, rank 11, and decodes."""
    code = MatDot(Grid(1, 1, 6), 14)
    decoder = code.decoder()
    for task in range(11):
        assert not decoder.decodable()
        decoder.add(task, code.rows(code.task(task)))
    assert decoder.decodable()
    assert decoder.plan().rank == 11 < code.unknowns == 36


def test_complex_data_needs_all_the_complex_results() -> None:
    """With complex unknowns a result is one equation only."""
    code = CirclePolynomial(Grid(2, 2), 8)
    job = Job(code, *matrices(1, 9, 8, 7, np.complex128))
    assert job.receive_until_decodable(range(code.P))
    assert job.decoder.results == 4
    _, plan = job.decode()
    assert not plan.realify
    assert job.error() <= estimate(job, plan)


def test_gradient_rows_without_operands() -> None:
    """Any P - s workers give the sum; fewer do not; the decoder never asks for (a, b)."""
    code = CyclicGradient(Grid(1, 1), 7)
    gradients = generator(0, "gradients").standard_normal((7, 40))
    for survivors in combinations(range(7), 5):
        decoder = code.decoder()
        for task in survivors[:4]:
            decoder.add(task, code.rows(code.task(task)))
        assert not decoder.decodable()
        decoder.add(survivors[4], code.rows(code.task(survivors[4])))
        assert decoder.decodable()
        plan = decoder.plan()
        received = np.concatenate([code.partial(code.task(task), gradients) for task, _ in plan.sources])
        total = plan.solve(None, received)
        bound = 100 * np.finfo(float).eps * 7 * plan.condition * np.abs(gradients).max()
        assert np.abs(total[0] - gradients.sum(axis=0)).max() <= bound


# ---- controls --------------------------------------------------------------------------------------------------


def test_the_null_code_never_decodes() -> None:
    job = Job(Null(Grid(2, 2), 40), *matrices(0, 8, 8, 8))
    assert not job.receive_until_decodable(range(40))
    error = failure(job.decoder)
    assert error.kind is FailureKind.INCOMPLETE
    assert job.decoder.outstanding().tolist() == [1, 2, 3]


def test_repeating_a_row_is_not_rank() -> None:
    """Rows that agree up to a factor count often but give one equation."""
    code = Vandermonde(Grid(2, 2), 8)
    decoder = code.decoder()
    for task in range(4):
        decoder.add(task, code.rows(code.task(0)))
    assert not decoder.decodable()
    assert failure(decoder).kind is not FailureKind.INCOMPLETE


@pytest.mark.parametrize(("side", "condition"), [(2, 5.0), (3, 500.0), (5, 1e7)])
def test_the_worst_case_is_estimated_honestly(side: int, condition: float) -> None:
    """Real equispaced nodes: the condition explodes with K, and the estimate covers the error."""
    job = Job(Vandermonde(Grid(side, side), side**2), *matrices(5, 30, 3 * side, 3 * side))
    assert job.receive_until_decodable(range(job.code.P))
    _, plan = job.decode()
    assert plan.condition > condition
    assert job.error() <= estimate(job, plan)


def test_a_plan_without_digits_is_refused() -> None:
    job = Job(Vandermonde(Grid(8, 8), 64), *matrices(5, 30, 24, 24))
    assert not job.receive_until_decodable(range(64))
    assert failure(job.decoder).kind in (FailureKind.ILL_CONDITIONED, FailureKind.SINGULAR)


@pytest.mark.parametrize("code", [Rotation(Grid(4, 4), 7), MatDot(Grid(1, 1, 3), 8), CirclePolynomial(Grid(2, 2), 4)])
def test_one_wrong_result_exceeds_the_estimate(code: Code) -> None:
    """The comparison that the whole suite rests on notices a relative error of 1e-6 in one result."""
    job = Job(code, *matrices(3, 20, 12, 12))
    assert job.receive_until_decodable(range(1, code.P))
    used = job.arrived[0]
    wrong = Job(code, job.A, job.B)
    for task in job.arrived:
        assignment = code.task(task)
        for q, (block, row) in enumerate(zip(wrong.workers.results(assignment), code.rows(assignment), strict=True)):
            wrong.store.put((task, q), block * (1 + 1e-6 * (task == used)), row)
        wrong.decoder.add(task, code.rows(assignment))
    _, plan = wrong.decode()
    assert wrong.error() > estimate(wrong, plan)
