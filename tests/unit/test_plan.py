import numpy as np
import pytest

from cmm.core.errors import ExitCode, FailureKind
from cmm.core.grid import Grid
from cmm.linalg import plan as module
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import DecodingError, LuPlan, Plan
from cmm.linalg.rows import Targets, rows_of, stack
from tests.unit.synthetic import block_tasks, random_tasks


def made(phases: bool = False, realify: bool = False, lost: int = 7) -> Plan:
    grid, rng = Grid(5, 4), np.random.default_rng(1)
    decoder = Decoder(grid.K, Targets(grid.K), realify=realify)
    for assignment in block_tasks(grid)[lost:] + random_tasks(grid, rng, grid.K, lost + 3, phases=phases):
        decoder.add(assignment.task, rows_of(assignment))
    return decoder.plan()


def known_and_results(plan: Plan, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = truth.copy()
    known[plan.missing] = 0
    return known, stack(list(plan.rows), plan.unknowns) @ truth


@pytest.mark.parametrize(("phases", "realify", "data"), [(False, False, float), (False, False, complex),
                                                         (True, False, complex), (True, True, float)])  # fmt: skip
@pytest.mark.parametrize("elements", [1, 6, 400])
def test_solve_returns_the_missing_unknowns(phases: bool, realify: bool, data: type, elements: int) -> None:
    plan = made(phases, realify)
    rng = np.random.default_rng(2)
    truth = rng.standard_normal((20, elements)).astype(data)
    if data is complex:
        truth += 1j * rng.standard_normal(truth.shape)
    known, results = known_and_results(plan, truth)
    for applied in (plan, plan.prepared(elements)):
        solution = applied.solve(known, results.copy())
        assert np.isrealobj(solution) == (data is float)
        assert solution.shape == (7, elements)
        assert np.abs(solution - truth[plan.missing]).max() <= 1e-14 * plan.condition
    subtracted = plan.subtract(known, results.copy())
    assert np.allclose(plan.solve(None, subtracted), truth[plan.missing], rtol=0, atol=1e-13 * plan.condition)


def test_realified_plans_use_fewer_results_than_unknowns() -> None:
    plan = made(phases=True, realify=True, lost=8)
    assert len(plan.sources) < 8 == plan.rank


def test_the_inverse_is_made_only_where_it_pays() -> None:
    plan = made()
    assert isinstance(plan, LuPlan)
    few, many = module.ELEMENTS_PER_UNKNOWN * 7 - 1, module.ELEMENTS_PER_UNKNOWN * 7
    assert plan.prepared(few) is plan
    prepared = plan.prepared(many)
    assert isinstance(prepared, LuPlan)
    assert prepared.factors.inverse is not None
    assert prepared.sources == plan.sources


def test_known_coefficients_leave_missing_unknowns_out() -> None:
    plan = made()
    touched = set(plan.known_coefficients.indices.tolist())
    assert touched <= set(range(20)) - set(plan.missing.tolist())
    assert plan.block_operations == plan.known_coefficients.nnz + 49


def test_a_refusal_carries_kind_count_and_exit_code() -> None:
    error = DecodingError(FailureKind.INCOMPLETE, "3 blocks are missing", 2)
    assert (error.kind, error.needed, error.exit_code) == (FailureKind.INCOMPLETE, 2, ExitCode.INCOMPLETE)
    assert "3 blocks are missing" in str(error)
    assert "2 more" in str(error)
    assert DecodingError(FailureKind.ILL_CONDITIONED, "no digits", 1).exit_code is ExitCode.INACCURATE
