import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.core.errors import DataError, InternalError
from cmm.core.grid import Grid, Partition
from cmm.linalg import blocks, subtract
from cmm.linalg.blocks import BlockStore
from cmm.linalg.plan import Plan
from cmm.linalg.rows import rows_of
from cmm.linalg.subtract import Subtraction
from tests.unit.synthetic import Bench, block_tasks, coefficients, draw, random_tasks, rounds, row

DTYPES = ["f4", "f8", "c8", "c16"]
SHAPES = [
    (Grid(4, 3), (30, 16, 18)), (Grid(4, 3), (30, 18, 19)), (Grid(2, 5), (9, 2, 5)), (Grid(1, 1), (5, 3, 4)),
    (Grid(3, 2, 2), (11, 7, 5)), (Grid(4, 4), (0, 5, 6)),
]  # fmt: skip


def limit(bench: Bench, plan: Plan) -> float:
    """Largest error that rounding explains: coefficients up to 1.5 a side, rows over all blocks, the condition."""
    u = np.finfo(bench.A.dtype).eps
    work = 4.0 * (bench.grid.K + len(bench.A)) * (2.25 * bench.grid.unknowns if plan.sources else 1)
    return float(u * work * plan.condition)


def run(grid: Grid, shape: tuple[int, int, int], dtype: str, seed: int, *, phases: bool = False,
        shuffled: bool = True) -> tuple[Bench, Plan]:  # fmt: skip
    rng = np.random.default_rng(seed)
    s, r, t = shape
    bench = Bench(draw(rng, (s, r), dtype), draw(rng, (s, t), dtype), grid, realify=phases and dtype[0] == "f")
    kept = [task for task in (block_tasks(grid) if grid.p == 1 else []) if rng.random() >= 0.4]
    coded = random_tasks(grid, rng, grid.unknowns, 3 * grid.unknowns + 20, phases=phases)
    tasks = kept + coded
    if shuffled:
        tasks = [tasks[k] for k in rng.permutation(len(tasks))]
    for assignment in tasks:
        if bench.decoder.decodable():
            break
        bench.receive(assignment)
    plan = bench.decoder.plan()
    bench.store.decode(plan)
    return bench, plan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize(("grid", "shape"), SHAPES)
def test_c_is_the_product_for_every_dtype_and_shape(
    grid: Grid, shape: tuple[int, int, int], dtype: str, phases: bool
) -> None:
    with np.errstate(invalid="ignore", divide="ignore"):
        bench, plan = run(grid, shape, dtype, seed=1, phases=phases)
        error = bench.error() if shape[0] else float(np.abs(bench.store.C).max())
    assert error <= limit(bench, plan)
    assert bench.store.C.dtype == np.dtype(dtype)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_order_and_loss(data: st.DataObject) -> None:
    m, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    r, t = data.draw(st.integers(m, 20)), data.draw(st.integers(n, 20))
    s, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 2**16))
    bench, plan = run(Grid(m, n), (s, r, t), data.draw(st.sampled_from(DTYPES)), seed,
                      phases=data.draw(st.booleans()), shuffled=data.draw(st.booleans()))  # fmt: skip
    A, B = np.abs(bench.A).max(axis=0), np.abs(bench.B).max(axis=0)
    wide = bench.A.astype(np.complex128).T @ bench.B.astype(np.complex128)
    assert np.abs(bench.store.C - wide).max() <= limit(bench, plan) * len(bench.A) * A.max() * B.max()


@pytest.mark.parametrize(("r", "t"), [(40, 48), (43, 48), (40, 53), (43, 53), (8, 48), (9, 53)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workspace", [1, 3000, 1 << 20])
def test_the_gemm_form_equals_the_sparse_product(
    r: int, t: int, dtype: str, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, rng = Grid(8, 8), np.random.default_rng(5)
    monkeypatch.setattr(blocks, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(subtract, "MIXED_BYTES", workspace)
    results = []
    for fast in (True, False):
        rng = np.random.default_rng(5)
        bench = Bench(draw(rng, (12, r), dtype), draw(rng, (12, t), dtype), grid)
        for task in block_tasks(grid)[6:] + rounds(grid, rng, grid.K, 4, (2, 4)):
            bench.receive(task)
        plan = bench.decoder.plan()
        subtraction = Subtraction(plan, bench.partition, bench.store.C, bench.store._slots)
        assert subtraction.fast, "rounds share their combinations"
        if not fast:
            monkeypatch.setattr(Subtraction, "_factor", lambda self, plan: None)
        bench.store.decode(plan)
        assert bench.error() <= limit(bench, plan)
        results.append(bench.store.C)
    assert np.abs(results[0] - results[1]).max() <= limit(bench, plan) * np.abs(results[0]).max()


def test_complex_combinations_of_real_data_subtract_by_gemm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subtract, "FLOPS_PER_AXPY", 1e9)
    bench, plan = run(Grid(5, 4), (20, 23, 19), "f8", seed=3, phases=True, shuffled=False)
    assert Subtraction(plan, bench.partition, bench.store.C, bench.store._slots).fast
    assert bench.error() <= limit(bench, plan)


def test_rows_without_factors_use_the_sparse_product() -> None:
    rng = np.random.default_rng(6)
    partition = Partition(Grid(3, 3), 4, 7, 8)
    C = rng.standard_normal((7, 8))
    store, decoder = BlockStore(partition, "f8"), Bench(np.ones((4, 7)), np.ones((4, 8)), Grid(3, 3)).decoder

    def padded(i: int, j: int) -> np.ndarray:
        block = np.zeros((3, 3))
        part = C[partition.c_slices(i, j)]
        block[: part.shape[0], : part.shape[1]] = part
        return block

    for u in range(7):
        coded = row([u], [2.0])
        store.put((u, 0), 2 * padded(*divmod(u, 3)), coded)
        decoder.add(u, [coded])
    for task in (20, 21):
        values = coefficients(rng, 9)
        coded = row(range(9), values)
        block = sum(v * padded(*divmod(u, 3)) for u, v in enumerate(values))
        store.put((task, 0), np.asarray(block), coded)
        decoder.add(task, [coded])
    plan = decoder.plan()
    store.decode(plan)
    assert np.abs(store.C - C).max() <= 1e-14 * plan.condition


def test_parked_blocks_sit_in_empty_slots_and_move_on_when_the_block_itself_arrives() -> None:
    grid, rng = Grid(3, 3), np.random.default_rng(7)
    bench = Bench(draw(rng, (6, 9), "f8"), draw(rng, (6, 12), "f8"), grid)
    for assignment in random_tasks(grid, rng, 9, 4):
        bench.receive(assignment)
    assert (bench.store.parked, bench.store.surplus_bytes) == (4, 0)
    for assignment in block_tasks(grid)[::-1][:4]:  # the slots that were taken first
        bench.receive(assignment)
    assert (bench.store.parked, bench.store.surplus_bytes) == (4, 0)
    for assignment in block_tasks(grid)[:1]:
        bench.receive(assignment)
    assert bench.store.surplus_bytes == 0
    for assignment in random_tasks(grid, rng, 20, 1):
        bench.receive(assignment)
    assert bench.store.surplus_bytes == 3 * 4 * 8
    plan = bench.decoder.plan()
    bench.store.decode(plan)
    assert bench.store.surplus_bytes == 0
    assert bench.error() <= limit(bench, plan)


def test_edges_that_do_not_fit_a_smaller_slot_are_the_only_other_memory() -> None:
    grid, rng = Grid(3, 3), np.random.default_rng(8)
    bench = Bench(draw(rng, (6, 10), "f8"), draw(rng, (6, 11), "f8"), grid)  # slots 4,3,3 x 4,4,3
    for assignment in random_tasks(grid, rng, 9, 9):
        bench.receive(assignment)
    edges = sum(4 * 4 - rows * cols for rows in (4, 3, 3) for cols in (4, 4, 3))
    assert bench.store.surplus_bytes >= edges * 8
    assert bench.store.surplus_bytes <= edges * 8 + 4 * 8  # the corner of two edges may be kept twice
    plan = bench.decoder.plan()
    bench.store.decode(plan)
    assert bench.error() <= limit(bench, plan)


def test_a_result_may_be_overwritten_after_put_and_a_second_one_is_ignored() -> None:
    grid, rng = Grid(2, 2), np.random.default_rng(9)
    bench = Bench(draw(rng, (6, 4), "f8"), draw(rng, (6, 4), "f8"), grid)
    for assignment in block_tasks(grid)[1:] + random_tasks(grid, rng, 4, 1):
        (coded,) = rows_of(assignment)
        block = bench.result(assignment)
        bench.store.put((assignment.task, 0), block, coded)
        bench.decoder.add(assignment.task, [coded])
        block[:] = np.nan
        bench.store.put((assignment.task, 0), block, coded)
    plan = bench.decoder.plan()
    bench.store.decode(plan)
    assert bench.error() <= limit(bench, plan)
    late = bench.store.C.copy()
    bench.store.put((99, 0), np.ones((2, 2)), row([0, 1], [1.0, 1.0]))
    bench.store.put((98, 0), np.ones((2, 2)), row([0], [1.0]))
    assert np.array_equal(bench.store.C, late)


def test_results_that_arrive_between_plan_and_decode_do_no_harm() -> None:
    grid, rng = Grid(3, 3), np.random.default_rng(10)
    bench = Bench(draw(rng, (6, 9), "f8"), draw(rng, (6, 9), "f8"), grid)
    systematic = block_tasks(grid)
    for assignment in systematic[:6] + random_tasks(grid, rng, 9, 3):
        bench.receive(assignment)
    plan = bench.decoder.plan()
    for assignment in systematic[6:8] + random_tasks(grid, rng, 30, 2):
        bench.receive(assignment)
    bench.store.decode(plan)
    assert bench.error() <= limit(bench, plan)


def test_float32_blocks_are_solved_in_double_precision() -> None:
    rng = np.random.default_rng(11)
    grid = Grid(6, 6)
    bench = Bench(np.ones((1, 12), "f4"), rng.integers(-3, 4, (1, 12)).astype("f4"), grid)
    # integer data and coefficients: workers' results are exact, so only the decoder's rounding remains
    for assignment in block_tasks(grid)[10:]:
        bench.receive(assignment)
    for task in range(100, 112):
        values = rng.choice([-1.0, 1.0], 36)
        block = np.zeros((2, 2))
        for u, v in enumerate(values):
            i, j = divmod(u, 6)
            block += v * np.multiply.outer(bench.A[0, 2 * i : 2 * i + 2], bench.B[0, 2 * j : 2 * j + 2])
        bench.store.put((task, 0), block.astype("f4"), row(range(36), values))
        bench.decoder.add(task, [row(range(36), values)])
    plan = bench.decoder.plan()
    assert plan.condition > 10
    bench.store.decode(plan)
    assert np.abs(bench.store.C - bench.A.T @ bench.B).max() <= 1e-14 * 36 * plan.condition


def test_working_memory_stays_within_eight_blocks_when_blocks_are_large() -> None:
    grid, rng = Grid(4, 4), np.random.default_rng(12)
    bench = Bench(draw(rng, (2, 2000), "f8"), draw(rng, (2, 2000), "f8"), grid)
    for assignment in block_tasks(grid)[5:] + random_tasks(grid, rng, 16, 5):
        bench.receive(assignment)
    plan = bench.decoder.plan()
    block = 500 * 500 * 8
    assert 8 * block > blocks.WORKSPACE_BYTES
    tracemalloc.start()
    bench.store.decode(plan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 8 * block
    assert bench.error() <= limit(bench, plan)


def test_out_is_used_and_checked() -> None:
    partition = Partition(Grid(2, 2), 3, 4, 6)
    out = np.empty((4, 6), "f4")
    assert BlockStore(partition, "f4", out).C is out
    for wrong in (np.empty((4, 5), "f4"), np.empty((4, 6), "f8"), np.empty((4, 6), "f4", order="F")):
        with pytest.raises(DataError, match="out"):
            BlockStore(partition, "f4", wrong)


def test_a_plan_that_does_not_fit_the_results_is_refused() -> None:
    partition = Partition(Grid(1, 2), 1, 2, 4)
    plan = Plan(unknowns=2, direct={}, missing=np.array([1]), sources=((5, 0),), rows=(row([0, 1], [1.0, 1.0]),))
    store = BlockStore(partition, "f8")
    with pytest.raises(InternalError, match="never arrived"):
        store.decode(plan)
    store.put((0, 0), np.ones((2, 2)), row([0], [1.0]))
    with pytest.raises(InternalError, match="not stored"):
        store.decode(plan)


@pytest.mark.parametrize(("r", "t"), [(0, 4), (4, 0), (0, 0)])
def test_empty_c(r: int, t: int) -> None:
    grid = Grid(1, 1)
    bench = Bench(np.ones((3, r)), np.ones((3, t)), grid)
    bench.run(block_tasks(grid))
    assert bench.store.C.shape == (r, t)
