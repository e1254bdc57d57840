from typing import Any

import numpy as np
import pytest

from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.linalg.plan import Plan
from cmm.linalg.rehearse import NoiseModel, rehearse
from tests.unit.synthetic import Bench, block_tasks, draw, random_tasks, rounds

CODES = ["full", "sparse", "rounds", "targeted", "complex", "no systematic"]


def random_case(seed: int) -> tuple[float, float]:
    """(estimate, true error) of one random job: sizes, code, losses, dtype and kind of data all drawn."""
    rng = np.random.default_rng(seed)
    grid = Grid(int(rng.integers(2, 9)), int(rng.integers(2, 9)))
    s = int(rng.choice([3, 20, 300, 1000]))
    dtype, code = str(rng.choice(["f4", "f8", "c8", "c16"])), str(rng.choice(CODES))
    positive = bool(rng.random() < 0.5)
    A = draw(rng, (s, grid.m * int(rng.integers(1, 9))), dtype, positive)
    B = draw(rng, (s, grid.n * int(rng.integers(1, 9))), dtype, positive)
    bench = Bench(A, B, grid, realify=code == "complex" and dtype[0] == "f")
    lost = set(rng.permutation(grid.K)[: rng.integers(1, grid.K + 1)].tolist())
    systematic = [] if code == "no systematic" else [task for task in block_tasks(grid) if task.task not in lost]
    support = [np.unique([divmod(u, grid.n)[side] for u in lost]) for side in (0, 1)]
    options: dict[str, Any] = {
        "sparse": {"degree": 3}, "complex": {"phases": True}, "targeted": {"support": support},
    }.get(code, {})  # fmt: skip
    coded = random_tasks(grid, rng, grid.K, 3 * grid.K + 20, **options)
    if code == "rounds":
        coded = rounds(grid, rng, grid.K, 3 * grid.K, (min(2, grid.m), min(3, grid.n)))
    for assignment in systematic + coded:
        if bench.decoder.decodable():
            break
        bench.receive(assignment)
    plan = bench.decoder.plan()
    noise = NoiseModel.measured(A, B, dtype)
    estimate = rehearse(plan, noise=noise, dtype=dtype, rng=rng)
    bench.store.decode(plan)
    return estimate, bench.error()


@pytest.mark.parametrize("dtype", ["f4", "c8", "f8"])
@pytest.mark.parametrize("s", [300, 5000])
def test_roundings_that_all_go_the_same_way_are_seen(dtype: str, s: int) -> None:
    """Constant columns: 20 to 100 units of roundoff where independent roundings would leave 10 to 37."""
    rng = np.random.default_rng(6)
    A, B = (np.broadcast_to(draw(rng, (1, 150), dtype), (s, 150)).copy() for _ in "AB")
    noise = NoiseModel.measured(A[:, :16], B[:, :16], dtype)
    wide = np.result_type(dtype, np.float64 if dtype != "f8" else np.longdouble)
    exact = s * A[0].conj().astype(wide)[:, None] * B[0].astype(wide)
    errors = np.abs(A.conj().T @ B - exact) / (s * np.abs(np.outer(A[0], B[0])))
    true = float(np.sqrt(np.mean(errors**2)))
    assert noise.level >= 0.5 * true
    assert noise.observed <= 4 * true
    apart = NoiseModel.measured(draw(rng, (s, 16), dtype), draw(rng, (s, 16), dtype), dtype)
    assert apart.observed < noise.roundoff < apart.level  # the formula is on the safe side there


def test_the_estimate_is_never_below_the_true_error_and_close_to_it() -> None:
    figures = np.array([random_case(seed) for seed in range(200)])
    ratios = figures[:, 0] / figures[:, 1]
    assert ratios.min() >= 1.0, int(ratios.argmin())
    assert np.median(ratios) <= 30.0


def plan_of(lost: int, positive: bool = False) -> Plan:
    grid, rng = Grid(6, 6), np.random.default_rng(1)
    bench = Bench(draw(rng, (10, 6), "f8", positive), draw(rng, (10, 6), "f8", positive), grid)
    for assignment in block_tasks(grid)[lost:] + random_tasks(grid, rng, grid.K, lost):
        bench.receive(assignment)
    return bench.decoder.plan()


def test_a_plan_without_missing_blocks_has_the_error_of_the_products() -> None:
    noise = NoiseModel.for_dtype("f8", 1000, 0.0)
    estimate = rehearse(plan_of(0), noise=noise, dtype="f8", rng=np.random.default_rng(2))
    assert noise.roundoff < estimate < 20 * noise.roundoff


def test_the_estimate_grows_with_amplification_precision_length_and_spread() -> None:
    def estimate(lost: int = 10, dtype: str = "f8", s: int = 100, rho: float = 0.0, spread: float = 1.0) -> float:
        noise = NoiseModel.for_dtype(dtype, s, rho, spread=spread)
        return rehearse(plan_of(lost), noise=noise, dtype=dtype, rng=np.random.default_rng(3))

    assert estimate() > 3 * estimate(lost=0)
    assert estimate(dtype="f4") > 1e8 * estimate()
    assert estimate(s=100000, rho=0.8) > 20 * estimate(s=100, rho=0.8)
    assert estimate(spread=100.0) == pytest.approx(100 * estimate())


def test_it_is_reproducible_and_leaves_the_plan_alone() -> None:
    plan, noise = plan_of(10), NoiseModel.for_dtype("f8", 100, 0.3)
    twice = [rehearse(plan, noise=noise, dtype="f8", rng=np.random.default_rng(4)) for _ in range(2)]
    assert twice[0] == twice[1] > 0


def test_the_noise_model_is_measured_from_columns() -> None:
    rng = np.random.default_rng(5)
    apart = NoiseModel.measured(draw(rng, (500, 20), "f4"), draw(rng, (500, 20), "f4"), "f4")
    alike = NoiseModel.measured(draw(rng, (500, 20), "f8", True), draw(rng, (500, 20), "f8", True), "f8")
    assert apart.rho < 0.1
    assert 0.7 < alike.rho < 0.8
    assert (apart.roundoff, alike.roundoff, apart.s) == (2.0**-24, 2.0**-53, 500)
    assert 1.0 <= apart.spread < 1.5
    zero = NoiseModel.measured(np.zeros((5, 3)), np.ones((5, 2)), "f8")
    assert (zero.rho, zero.spread) == (0.0, 1.0)


@pytest.mark.parametrize("wrong", [{"rho": 1.5}, {"s": -1}, {"spread": 0.5}, {"split": 0}, {"roundoff": float("nan")},
                                   {"observed": -1.0}])  # fmt: skip
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        NoiseModel(**({"roundoff": 1e-16, "s": 10} | wrong))
