import numpy as np
import pytest

from cmm.linalg.dense import EPS, PANEL, RowSpace, combinations, factorise


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (7, 3), (120, 100), (PANEL, PANEL), (2 * PANEL + 31, 2 * PANEL + 1)]
)
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("dtype", [float, complex])
def test_solving_the_picked_rows_gives_the_unknowns(rows: int, columns: int, inverted: bool, dtype: type) -> None:
    rng = np.random.default_rng(rows + columns)
    matrix = rng.standard_normal((rows, columns)).astype(dtype)
    if dtype is complex:
        matrix += 1j * rng.standard_normal((rows, columns))
    truth = rng.standard_normal((columns, 11)).astype(dtype)
    factors = factorise(matrix)
    assert len(set(factors.rows.tolist())) == columns
    assert factors.rank == columns
    solver = factors.inverted() if inverted else factors
    solution = solver.solve(np.ascontiguousarray((matrix @ truth)[factors.rows]))
    assert np.abs(solution - truth).max() <= 10 * EPS * columns * factors.condition


def test_real_factors_act_on_real_and_imaginary_parts() -> None:
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((20, 20))
    truth = rng.standard_normal((20, 4)) + 1j * rng.standard_normal((20, 4))
    factors = factorise(matrix)
    solution = factors.solve((matrix @ truth)[factors.rows])
    assert np.abs(solution - truth).max() <= 200 * EPS * factors.condition


def test_the_condition_estimate_is_within_a_small_factor_and_scaling_rows_does_not_change_it() -> None:
    rng = np.random.default_rng(4)
    q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    matrix = q @ np.diag(np.logspace(0, -6, 60)) @ q.T
    factors = factorise(matrix)
    rows = matrix[factors.rows] * factors.scale[:, None]
    exact = np.linalg.cond(rows, 1)
    assert exact / 10 <= factors.condition <= exact * 1.01
    assert factorise(matrix * np.exp2(rng.integers(-30, 30, 60))[:, None]).condition == pytest.approx(factors.condition)


def test_surplus_rows_save_a_nearly_singular_square_system() -> None:
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((40, 40))
    matrix[39] = matrix[38] * (1 + 1e-15)
    assert not factorise(matrix).condition < 1e12
    tall = np.concatenate([matrix, rng.standard_normal((5, 40))])
    factors = factorise(tall)
    assert factors.condition < 1e6
    assert not {38, 39} <= set(factors.rows.tolist())


@pytest.mark.parametrize("deficiency", [1, 3])
def test_exact_rank_deficiency_is_seen(deficiency: int) -> None:
    rng = np.random.default_rng(6)
    left = rng.integers(-3, 4, (30, 20 - deficiency)).astype(float)
    factors = factorise(left @ rng.integers(-3, 4, (20 - deficiency, 20)).astype(float))
    assert factors.rank < 20 or factors.condition > 1e12
    assert factorise(np.zeros((4, 3))).rank == 0


def test_combinations_of_rank_deficient_rows_give_targets_in_their_span_only() -> None:
    # MatDot with p = 6: 36 cross products, rank 11, and still the sum of the 6 wanted ones follows from 11 results
    p, nodes = 6, np.cos(np.pi * (2 * np.arange(11) + 1) / 22)
    powers = nodes[:, None] ** np.arange(p)
    rows = np.einsum("ki,kj->kij", powers, powers[:, ::-1]).reshape(11, -1)
    wanted = np.eye(p).reshape(1, -1)
    found = combinations(rows, wanted)
    assert found.rank == 11
    assert found.residual <= 1
    assert np.abs(found.matrix @ rows - wanted).max() <= 1e-9
    assert combinations(rows[:10], wanted).residual > 1e3


def test_row_space_says_what_is_outside_after_every_row() -> None:
    rng = np.random.default_rng(7)
    targets = rng.standard_normal((2, 30))
    space = RowSpace(targets)
    mixing = rng.standard_normal((4, 5))
    for k in range(4):
        assert space.outside > 1e-3
        space.add(mixing[k] @ np.concatenate([targets, rng.standard_normal((3, 30))]))
        assert space.rank == k + 1
    space.add(targets[0] + 1j * targets[1])
    assert space.outside > 1e-3
    space.add(targets[0] - 1j * targets[1])
    assert space.outside < 1e-12
    assert space.rank == 6
    space.add(targets[0])
    assert space.rank == 6
