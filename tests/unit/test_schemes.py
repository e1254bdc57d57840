"""The schemes of the literature: their published properties, figures of accuracy, and refusals.

What every code has in common is in tests/conformance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.codes.base import Code
from cmm.codes.defaults import check_code, choose
from cmm.codes.fractional import FractionalRepetition, parts_of
from cmm.codes.nodes import node_set, spread
from cmm.codes.polynomial import Polynomial
from cmm.codes.product import ProductCode, lagrange
from cmm.codes.registry import code_class
from cmm.codes.sparse import wave_soliton
from cmm.core.errors import FailureKind, UsageError
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.engine.ledger import direct_task
from cmm.linalg.decoder import Decoder, DecodingError
from cmm.linalg.lines import LineCode, LineDecoder, Peeler
from cmm.linalg.plan import Plan
from tests.conformance.harness import Job, estimate, failure, matrices

EPS = float(np.finfo(float).eps)


def make(name: str, grid: str, tasks: int, seed: int = 0, dispatch: str = "oneshot",
         params: Mapping[str, str] | None = None) -> Code:  # fmt: skip
    return code_class(name)(Grid.parse(grid), tasks, seed, dispatch, params)


def coefficients(code: Code) -> Array:
    """M, (P, outputs, unknowns)."""
    out = []
    for task in range(code.P):
        rows = code.rows(code.task(task))
        dense = np.zeros((len(rows), code.unknowns), np.result_type(*(row.values for row in rows)))
        for line, row in zip(dense, rows, strict=True):
            line[row.indices] = row.values
        out.append(dense)
    return np.array(out)


def scalar_error(code: Code, tasks: list[int], blocks: Array) -> tuple[float, Plan]:
    """Decode blocks that are single numbers from exactly rounded results: relative error (2-norm), and the plan."""
    decoder, results = code.decoder(), {}
    for task in tasks:
        rows = code.rows(code.task(task))
        decoder.add(task, rows)
        for q, row in enumerate(rows):
            wide = row.values.astype(np.clongdouble if np.iscomplexobj(row.values) else np.longdouble)
            exact = wide @ blocks[row.indices].astype(np.longdouble)
            results[task, q] = complex(exact) if np.iscomplexobj(row.values) else float(exact)
    plan = decoder.plan()
    known = blocks.copy()
    known[plan.missing] = 0
    received = np.array([[results[key]] for key in plan.sources]).reshape(len(plan.sources), 1)
    solved = plan.solve(known[:, None], received)[:, 0].real
    return float(np.linalg.norm(solved - plan.answer(blocks[:, None])[:, 0]) / np.linalg.norm(blocks)), plan


# ---- accuracy ------------------------------------------------------------------------------------------------------

SIZES = {9: (3, 3, 12), 16: (4, 4, 20), 36: (6, 6, 45), 64: (8, 8, 80), 100: (10, 10, 125)}
SCHEMES = ("orthopoly", "rkrp", "rotation", "fr")


def errors(name: str, K: int, sets: int) -> Array:
    """Errors of K results out of P in random order (rotation: K tasks of four results); inf where the decoder refuses
    because hardly a digit would be left."""
    m, n, P = SIZES[K]
    grid = f"{2 * m}x{2 * n}" if name == "rotation" else f"{m}x{n}"
    found = []
    for seed in range(sets):
        code, rng = make(name, grid, P, seed), generator(seed, "survivors", K)
        order = rng.permutation(P).tolist()
        try:
            found.append(scalar_error(code, order[:K], rng.standard_normal(code.unknowns))[0])
        except DecodingError as refusal:
            if refusal.kind not in (FailureKind.ILL_CONDITIONED, FailureKind.SINGULAR):
                raise
            found.append(np.inf)
    return np.array(found)


def check_errors(name: str, K: int, sets: int) -> None:
    found = errors(name, K, sets)
    refused = int(np.isinf(found).sum())
    kept = found[np.isfinite(found)]
    print(f"{name:10s} K={K:4d} P={SIZES[K][2]:4d} {sets} sets: median {np.median(found):.1e}, "
          f"max {kept.max(initial=0):.1e}, {refused} refused")  # fmt: skip
    if name in ("rkrp", "fr"):
        assert found.max() <= 1e-11
        assert np.median(found) <= 1e-13
    elif K <= 16:
        assert refused == 0
        assert np.median(found) <= 1e-12
    assert kept.max(initial=0) <= 1e-2  # at the limit of conditions that are accepted four digits are left


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("K", [9, 16, 36])
def test_errors(name: str, K: int) -> None:
    check_errors(name, K, 15)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("K", sorted(SIZES))
def test_errors_in_full(name: str, K: int) -> None:
    check_errors(name, K, 200)


@pytest.mark.parametrize("nodes", ["equispaced", "chebyshev"])
def test_polynomial_codes_on_real_nodes_are_refused_or_flagged_at_36_blocks(nodes: str) -> None:
    """Refused, or with an estimate that says so; never silently wrong."""
    for seed in range(4):
        job = Job(make("polynomial", "6x6", 40, params={"nodes": nodes}), *matrices(seed, 50, 24, 24))
        order = generator(seed, "order").permutation(40).tolist()
        if not job.receive_until_decodable(order[:36]):
            assert failure(job.decoder).kind in (FailureKind.ILL_CONDITIONED, FailureKind.SINGULAR)
            job.receive_until_decodable(order[36:])
        if job.decoder.decodable():
            _, plan = job.decode()
            assert plan.condition >= 1e6
            assert estimate(job, plan) > 1e-9  # beyond the default tolerance
            assert job.error() <= estimate(job, plan)


def test_polynomial_codes_on_the_circle_are_accurate_at_36_blocks() -> None:
    job = Job(make("polynomial", "6x6", 20, params={"nodes": "circle"}), *matrices(0, 50, 24, 24))
    assert job.receive_until_decodable(generator(0, "order").permutation(20).tolist())
    assert job.decoder.results == 18
    _, plan = job.decode()
    assert job.error() <= estimate(job, plan) <= 1e-11


# ---- condition numbers, schemes of n tasks of which any k_A k_B decode ---------------------------------------------


def conditions(rows: Array, lost: int) -> tuple[float, float]:
    """(worst, median) condition number over all sets of so many lost tasks. rows: (P, outputs, unknowns)."""
    kept = [np.delete(rows, list(gone), axis=0).reshape(-1, rows.shape[2])
            for gone in combinations(range(len(rows)), lost)]  # fmt: skip
    found = np.linalg.cond(np.array(kept))
    return float(found.max()), float(np.median(found))


PUBLISHED = [  # n, k_A, k_B, s: (worst, median) of equispaced nodes, OrthoPoly, complex Vandermonde = rotation
    (11, 3, 3, 2, (8.8e3, 3.0e3), (267, 10), (11.65, 4.0)),
    (11, 4, 2, 3, (8.6e3, 1.2e3), (1.58e3, 11), (29.2, 6.6)),
    (18, 5, 3, 3, (1.44e7, 2.3e6), (2.51e4, 25), (102.7, 9.1)),
    pytest.param(31, 4, 7, 3, (2.3e13, 3.7e12), (5.1e5, 56), (404.3, 12.8), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("n", "ka", "kb", "s", "real", "ortho", "circle"), PUBLISHED)
def test_condition_numbers(n: int, ka: int, kb: int, s: int, real: tuple[float, float], ortho: tuple[float, float],
                           circle: tuple[float, float]) -> None:  # fmt: skip
    grid = f"{ka}x{kb}"
    for name, params, expected in (("polynomial", {"nodes": "equispaced"}, real), ("orthopoly", {}, ortho),
                                   ("polynomial", {"nodes": "circle", "data": "complex"}, circle)):  # fmt: skip
        found = conditions(coefficients(make(name, grid, n, params=params)), s)
        print(f"n={n} {grid} s={s} {name} {params.get('nodes', '')}: {found[0]:.4g} / {found[1]:.3g}")
        assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("n", "ka", "kb", "s", "worst"), [(11, 3, 3, 2, 11.65), (11, 4, 2, 3, 29.2)])
def test_rotation_is_as_well_conditioned_as_the_complex_vandermonde(n: int, ka: int, kb: int, s: int,
                                                                    worst: float) -> None:  # fmt: skip
    assert conditions(coefficients(make("rotation", f"{2 * ka}x{2 * kb}", n)), s)[0] == pytest.approx(worst, rel=0.05)


# ---- fractional repetition -----------------------------------------------------------------------------------------


def test_the_worked_example() -> None:
    """n = k = 11, s = 3: loads 4,4,3 in three classes, 6,5 in the fourth; total 44 = k (s + 1)."""
    loads = [len(parts_of(task, 11, 3, 11)) for task in range(11)]
    assert loads == [4, 4, 4, 6, 4, 4, 4, 5, 3, 3, 3]
    assert sum(abs(load - 4) for load in loads) == 2 * 3 * (3 + 1 - 3)  # d_s(B) = 2 r (s + 1 - r)


def test_every_class_holds_every_part_once() -> None:
    for n in range(1, 13):
        for s in range(n):
            for k in (n, n + 3, 2 * n + 1):
                for klass in range(s + 1):
                    parts = [part for task in range(klass, n, s + 1) for part in parts_of(task, n, s, k)]
                    assert parts == list(range(k))


@pytest.mark.parametrize("grid", ["11x1x1", "3x4", "12x2x2"])
def test_any_eight_of_eleven_decode_exactly(grid: str) -> None:
    """All C(11, 3) sets of stragglers; blocks are integers, so that exact means exact."""
    code = make("fractional-repetition", grid, 11, params={"stragglers": "3"})
    blocks = generator(0, "blocks").integers(-1000, 1000, code.unknowns).astype(float)
    for lost in combinations(range(11), 3):
        decoder = code.decoder()
        results: dict[tuple[int, int], float] = {}
        for task in sorted(set(range(11)) - set(lost)):
            rows = code.rows(code.task(task))
            decoder.add(task, rows)
            results |= {(task, q): row.values @ blocks[row.indices] for q, row in enumerate(rows)}
        assert decoder.decodable()
        plan = decoder.plan()
        found = np.zeros(code.targets.count)
        for target, (key, coefficient) in plan.direct.items():
            found[target] = results[key] / coefficient
        found[plan.missing] = plan.solve(None, np.array([[results[key]] for key in plan.sources]).reshape(-1, 1))[:, 0]
        wanted = blocks if code.targets.matrix is None else code.targets.matrix @ blocks
        assert (found == wanted).all()


def test_cmm2_is_bit_identical_to_the_uncoded_block_product() -> None:
    A, B = matrices(5, 60, 31, 29)
    plain = Job(make("uncoded", "3x4", 12), A, B)
    assert plain.receive_until_decodable(range(12))
    expected, _ = plain.decode()
    for lost in list(combinations(range(11), 3))[::20]:
        job = Job(make("fractional-repetition", "3x4", 11, params={"stragglers": "3"}), A, B)
        assert job.receive_until_decodable([task for task in range(11) if task not in lost])
        C, plan = job.decode()
        assert (plan.method, plan.block_operations) == ("copy", 0)
        assert C.tobytes() == expected.tobytes()


def test_sums_of_different_classes_chain() -> None:
    """No class is complete, but runs of two classes lie end to end; the chain's coefficients are ones."""
    code = make("fractional-repetition", "12x1x1", 9, params={"stragglers": "2"})
    runs = {task: parts_of(task, 9, 2, 12) for task in range(9)}
    decoder = code.decoder()
    for task, start in ((0, 0), (4, 4), (8, 8)):  # classes 0, 1, 2
        assert runs[task].start == start
        assert not decoder.decodable()
        decoder.add(task, code.rows(code.task(task)))
    plan = decoder.plan()
    assert len(plan.sources) == 3
    assert plan.solve(None, np.ones((3, 1))).tolist() == [[3.0]]


# ---- product codes -------------------------------------------------------------------------------------------------


def product_code(grid: str, axes: str, tasks: int, component: str = "gaussian") -> ProductCode:
    code = make("product", grid, tasks, params={"axes": axes, "component": component})
    assert isinstance(code, ProductCode)
    return code


@pytest.mark.parametrize("component", ["gaussian", "polynomial", "orthopoly"])
@pytest.mark.parametrize(("grid", "axes", "tasks"), [("3x4", "5:3x6:4", 30), ("6x2", "3:2x4:3x4:2", 48)])
def test_tasks_are_cells_of_a_product_code(grid: str, axes: str, tasks: int, component: str) -> None:
    """The rows of all tasks, put into their cells, satisfy every line's checks."""
    code = product_code(grid, axes, tasks, component)
    rows = coefficients(code)[:, 0]
    cells = np.zeros_like(rows)
    cells[[code.cell(task) for task in range(tasks)]] = rows
    for axis, check in enumerate(code.lines.checks):
        along = np.moveaxis(cells.reshape(*code.lines.shape, -1), axis, 0)
        assert np.abs(np.tensordot(check, along, axes=1)).max() <= 100 * EPS * np.abs(check).sum(axis=1).max()


def test_the_smallest_stopping_set_is_a_box() -> None:
    """Losing (t + 1) x (t + 1) cells of two parities a side resists; any fewer do not (here: random ones)."""
    code = product_code("4x4", "6:4x6:4", 36)
    assert code.recovery_threshold.results == 36 - 9 + 1
    box = {int(cell) for cell in np.arange(36).reshape(6, 6)[:3, 1:4].ravel()}
    peeler = Peeler(code.lines)
    for cell in set(range(36)) - box:
        peeler.learn(cell)
    assert (peeler.missing, set(np.flatnonzero(peeler.unknown).tolist())) == (9, box)
    for seed in range(50):
        peeler = Peeler(code.lines)
        for cell in generator(seed, "cells").permutation(36)[:28].tolist():
            peeler.learn(int(cell))
        assert peeler.missing == 0


def test_a_stall_of_lines_is_refused_and_one_result_more_helps() -> None:
    code = product_code("4x4", "6:4x6:4", 36)
    box = {int(cell) for cell in np.arange(36).reshape(6, 6)[:3, 1:4].ravel()}
    decoder, tasks = code.decoder(), [task for task in range(36) if code.cell(task) not in box]
    for task in tasks:
        decoder.add(task, code.rows(code.task(task)))
    assert not decoder.decodable()
    assert failure(decoder).needed >= 1
    last = next(task for task in range(36) if code.cell(task) in box)
    decoder.add(last, code.rows(code.task(last)))
    assert decoder.decodable()


def test_many_missing_blocks_are_not_given_to_the_dense_decoder() -> None:
    """A stall with more than 256 blocks missing is refused at once, with the numbers."""
    code = product_code("20x20", "22:20x22:20", 484)
    decoder = code.decoder()
    for task in range(code.P - 1, code.P - 1 - 84, -1):
        decoder.add(task, code.rows(code.task(task)))
    for task in range(60):
        decoder.add(task, code.rows(code.task(task)))
    assert isinstance(decoder, LineDecoder)
    assert not decoder.decodable()
    assert failure(decoder).kind is FailureKind.INCOMPLETE


@pytest.mark.parametrize("N", [7300, 7700])
def test_the_three_dimensional_code(N: int) -> None:
    """(21,18)x(22,19)x(22,19): published order of accuracy 9e-14 and 1e-14 (error-first order)."""
    code = product_code("18x361", "(21,18)x(22,19)x(22,19)", 10164)
    rng = generator(N, "order")
    error, plan = scalar_error(code, rng.permutation(code.P)[:N].tolist(), rng.standard_normal(code.unknowns))
    print(f"N={N}: error {error:.1e}, {len(plan.missing)} missing, {plan.block_operations} block operations")
    assert plan.method == "lines"
    assert error <= 1e-11


def needed(lines: LineCode, order: list[int]) -> int:
    peeler = Peeler(lines)
    for count, cell in enumerate(order, start=1):
        peeler.learn(cell)
        if not peeler.missing:
            return count
    raise AssertionError("all cells do not decode")


@pytest.mark.parametrize(("grid", "axes", "tasks", "median"), [
    ("18x361", "(21,18)x(22,19)x(22,19)", 10164, 7167), ("10x10", "12:10x12:10", 144, 105), ("4x4", "5:4x5:4", 25, 18),
])  # fmt: skip
def test_thresholds_of_product_codes(grid: str, axes: str, tasks: int, median: int) -> None:
    lines = product_code(grid, axes, tasks).lines
    trials = 15 if tasks > 1000 else 300
    found = [needed(lines, generator(seed, "order").permutation(tasks).tolist()) for seed in range(trials)]
    spread_of_median = 60 if tasks > 1000 else 1
    assert abs(np.median(found) - median) <= spread_of_median


def test_lagrange_interpolation_is_exact_for_polynomials() -> None:
    at, to = np.array([-0.9, -0.2, 0.3, 0.8]), np.array([-0.5, 0.1])
    values = np.polynomial.polynomial.polyval(np.concatenate([at, to]), [1.0, -2.0, 0.5, 3.0])
    assert lagrange(at, to) @ values[:4] == pytest.approx(values[4:], rel=1e-13)


# ---- nodes and distributions ---------------------------------------------------------------------------------------


@given(st.integers(1, 400))
def test_spread_is_a_permutation_with_spread_beginnings(count: int) -> None:
    order = spread(count)
    assert sorted(order.tolist()) == list(range(count))
    beginning = np.sort(order[: max(1, count // 2)])
    assert np.diff(np.concatenate([[-1], beginning, [count]])).max() <= 4


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_no_two_circle_nodes_are_conjugates(count: int) -> None:
    x = node_set(count, {"nodes": "circle", "data": "real"})
    assert np.abs(x) == pytest.approx(1.0)
    assert (x.imag > 1e-3).all()
    both = np.sort(np.angle(np.concatenate([x, x.conj()])))
    assert np.diff(both) == pytest.approx(np.pi / count)  # equally spaced together


def test_circle_nodes_halve_the_results_of_real_data_only() -> None:
    assert Polynomial.needs(Grid(3, 3), Polynomial.checked({"nodes": "circle"})) == (5, 5)
    assert Polynomial.needs(Grid(3, 3), Polynomial.checked({"nodes": "circle", "data": "complex"})) == (9, 9)
    assert Polynomial.needs(Grid(3, 3), Polynomial.checked({})) == (9, 9)


def test_wave_soliton() -> None:
    """Sums to one with tau = 35/18; mean degree 3.6 at K = 9, 8.2 at K = 100."""
    for blocks, mean in ((9, 3.6), (100, 8.2), (256, 10.0)):
        omega = wave_soliton(blocks)
        assert omega.weights[1] == pytest.approx(35 / 18 / 70)
        assert omega.mean == pytest.approx(mean, abs=0.15)


def test_sparse_tasks_are_sums_of_whole_products() -> None:
    code = make("sparse", "4x5", 60)
    for task in range(60):
        assignment = code.task(task)
        [pairs] = assignment.outputs
        [row] = code.rows(assignment)
        assert len(pairs) == len(row.indices) == len(assignment.a)
        assert all(operand.degree == 1 for operand in (*assignment.a, *assignment.b))
        assert len({operand.key for operand in assignment.b}) == len(assignment.b)


def test_sparse_codes_need_little_more_than_k_results() -> None:
    """N = K + 0.4 on average at K = 9 ... 25 (Gaussian elimination, not peeling)."""
    found = []
    for seed in range(60):
        code, decoder = make("sparse", "5x5", 100, seed), None
        decoder = code.decoder()
        for task in range(100):
            if decoder.decodable():
                break
            decoder.add(task, code.rows(code.task(task)))
        found.append(decoder.results - 25)
    assert np.mean(found) <= 2.0
    assert min(found) == 0


def test_lt_tasks_are_runs_of_one_stream() -> None:
    """Task i has rows i * rows ... of the stream, whatever the number of tasks."""
    one, eight = make("lt", "40x1", 200, params={"rows": "1"}), make("lt", "40x1", 30, params={"rows": "8"})
    for task in range(20):
        rows = eight.rows(eight.task(task))
        assert len(rows) == 8
        for q, row in enumerate(rows):
            [same] = one.rows(one.task(8 * task + q))
            assert (row.indices == same.indices).all()
            assert (row.values == same.values).all()


def test_lt_needs_little_more_than_its_chunks() -> None:
    found = []
    for seed in range(10):
        code = make("lt", "200x1", 600, seed, params={"rows": "1"})
        decoder = code.decoder()
        for task in range(600):
            if decoder.decodable():
                break
            decoder.add(task, code.rows(code.task(task)))
        found.append(decoder.results / 200)
    print(f"LT, 200 chunks: N/m median {np.median(found):.3f}, max {max(found):.3f}")
    assert np.median(found) <= 1.25


def test_mds_repairs_serve_columns_by_what_they_lack() -> None:
    code = make("mds", "6x3", 18, dispatch="pull")
    outstanding = [0, 3, 6, 9, 1, 4]  # blocks of column 0, 0, 0, 0, 1, 1
    served = Counter(int(code.repair(outstanding, index).b[0].indices[0]) for index in range(18, 24))
    assert served == {0: 4, 1: 2}


def test_mds_worst_case_with_several_columns() -> None:
    """P - P/n + m: one column lacks a single result while all others are complete."""
    code = make("mds", "3x4", 24)
    assert code.recovery_threshold.results == 24 - 6 + 3
    column = [task for task in range(24) if code.task(task).b[0].indices[0] == 0]
    decoder = code.decoder()
    for task in [task for task in range(24) if task not in column] + column[:2]:
        decoder.add(task, code.rows(code.task(task)))
    assert not decoder.decodable()
    decoder.add(column[2], code.rows(code.task(column[2])))
    assert decoder.decodable()


def test_entangled_contains_polynomial_and_matdot() -> None:
    for grid, name in (("3x2", "polynomial"), ("4x1x1", "matdot")):
        one, other = make("entangled", grid, 9), make(name, grid, 9)
        assert np.array_equal(coefficients(one), coefficients(other))


def test_matdot_decodes_below_full_rank_and_orthomatdot_stays_accurate() -> None:
    for name, limit in (("matdot", 1e-6), ("orthomatdot", 1e-12)):
        code = make(name, "8x1x1", 17)
        error, plan = scalar_error(code, list(range(15)), generator(0, "blocks").standard_normal(64))
        assert plan.rank == 15 < code.unknowns
        assert error <= limit


@pytest.mark.parametrize(("name", "grid", "tasks"), [("matdot", "20x1x1", 41), ("entangled", "2x6x6", 75)])
def test_sums_that_no_node_gives_follow_from_the_products_themselves(name: str, grid: str, tasks: int) -> None:
    """Hopeless real nodes: with every wanted product computed directly, C is exact, whatever else has arrived."""
    code = make(name, grid, tasks, dispatch="pull")
    decoder = code.decoder()
    for task in range(tasks):
        decoder.add(task, code.rows(code.task(task)))
    assert not decoder.decodable()
    for number, unknown in enumerate(decoder.outstanding().tolist(), start=tasks):
        decoder.add(number, code.rows(direct_task(code, number, unknown)))
    plan = decoder.plan()
    blocks = generator(0, "blocks").standard_normal((code.unknowns, 1))
    received = np.array([row.values @ blocks[row.indices] for row in plan.rows])
    known = np.zeros_like(blocks)
    known[list(plan.direct)] = blocks[list(plan.direct)]
    error = np.linalg.norm(plan.solve(known, received) - plan.answer(blocks)) / np.linalg.norm(blocks)
    assert error <= 100 * EPS * code.unknowns


# ---- refusals ------------------------------------------------------------------------------------------------------

REFUSED = [
    ("rotation", "3x4", 9, {}, r"--grid: rotation needs an even number .*3x4.*Use 4x4"),
    ("rotation", "4x4", 3, {}, r"--tasks: must be at least 4"),
    ("matdot", "4x4", 20, {}, r"--grid: matdot splits the shared dimension only.*4x4.*entangled"),
    ("matdot", "4x1x1", 6, {}, r"--tasks: must be at least 7"),
    ("orthomatdot", "1x2", 9, {}, r"--grid: orthomatdot splits"),
    ("entangled", "2x2x2", 8, {}, r"--tasks: must be at least 9"),
    ("polynomial", "2x2x2", 20, {}, r"--grid: polynomial does not split.*entangled"),
    ("polynomial", "2x2", 4, {"nodes": "1,2,3,3"}, r"--param nodes: .*1,2,3,3.*distinct.*singular"),
    ("polynomial", "2x2", 5, {"nodes": "1,2,3,4"}, r"--param nodes: must be one node a task, 5.*4 nodes"),
    ("polynomial", "2x2", 5, {"nodes": "1e300,1,2,3,4"}, r"--param nodes: powers .*below 1e\+100.*between -1 and 1"),
    ("fr", "4x4", 20, {"construction": "paper", "outer": "0x0"}, r"--param outer: m must be .*outer=6x6"),
    ("fr", "4x4", 20, {"construction": "paper", "outer": "5"}, r"--param outer: must be MxN"),
    ("lt", "2x2x2", 20, {}, r"--grid: lt does not cut B, nor the shared.*Use 4x1"),
    ("polynomial", "2x2", 5, {"nodes": "round"}, r"--param nodes: .*'round'.*Choose one of"),
    ("polynomial", "4x4", 7, {"nodes": "circle"}, r"--tasks: must be at least 8"),
    ("polynomial", "4x4", 15, {"nodes": "circle", "data": "complex"}, r"--tasks: must be at least 16"),
    ("lt", "4x4", 20, {}, r"--grid: lt does not cut B.*Use 16x1"),
    ("lt", "40x1", 4, {}, r"--tasks: must be at least 5"),
    ("lt", "40x1", 9, {"rows": "0"}, r"--param rows: .*'0'"),
    ("mds", "4x3", 11, {}, r"--tasks: must be at least 12"),
    ("orthopoly", "3x3", 8, {}, r"--tasks: must be at least 9"),
    ("sparse", "3x3", 8, {}, r"--tasks: must be at least 9"),
    ("flt", "3x3", 20, {"omega": "0.5x+0.5x^7"}, r"--param omega: every degree needs factors.*degrees 7.*drop"),
    ("product", "4x4", 99, {}, r"--tasks: must be at most 25"),
    ("product", "4x4", 20, {"axes": "5:4x5:3"}, r"--param axes: dimensions of the first axes"),
    ("product", "4x4", 20, {"axes": "5:4x3:4"}, r"--param axes: .*needs a dimension from 1 to its length"),
    ("product", "4x4", 20, {"axes": "5x4"}, r"--param axes: .*Write the"),
    ("fractional-repetition", "2x2", 4, {"stragglers": "4"}, r"--param stragglers: must be below .*4.*Use at most 3"),
    ("fractional-repetition", "2x2", 20, {"stragglers": "1"}, r"--grid: must cut the work into at least 10 parts"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "grid", "tasks", "params", "message"), REFUSED)
def test_impossible_parameters_are_refused(name: str, grid: str, tasks: int, params: dict[str, str],
                                           message: str) -> None:  # fmt: skip
    """When the code is built, and by the early check of the command line, with the same words."""
    with pytest.raises(UsageError, match=message):
        make(name, grid, tasks, params=params)
    with pytest.raises(UsageError, match=message):
        check_code(name, Grid.parse(grid), tasks, "oneshot", params, workers=5)


def test_the_remedy_of_a_coarse_grid_works() -> None:
    with pytest.raises(UsageError, match="stragglers=4"):
        make("fractional-repetition", "2x2", 20, params={"stragglers": "1"})
    code = make("fractional-repetition", "2x2", 20, params={"stragglers": "4"})
    assert isinstance(code, FractionalRepetition)


@pytest.mark.parametrize(("name", "params", "grid", "tasks"), [
    ("polynomial", {}, Grid(3, 4), 14), ("polynomial", {"nodes": "circle"}, Grid(5, 8), 22),
    ("matdot", {}, Grid(1, 1, 6), 13),
    ("orthomatdot", {}, Grid(1, 1, 8), 17), ("entangled", {}, Grid(2, 2, 2), 11), ("rotation", {}, Grid(8, 10), 22),
    ("product", {}, Grid(4, 5), 30), ("fractional-repetition", {}, Grid(4, 5), 5), ("mds", {}, Grid(20, 1), 20),
    ("lt", {}, Grid(160, 1), 20), ("polynomial", {"nodes": "-1,0,1"}, Grid(1, 3), 3),
])  # fmt: skip
def test_defaults_for_five_workers(name: str, params: dict[str, str], grid: Grid, tasks: int) -> None:
    """A grid the code can use, and spare tasks where it makes none on demand."""
    given_grid = grid if "," in params.get("nodes", "") else None
    found, P = choose(5, 1000, 1000, 1000, code=name, params=params, grid=given_grid)
    assert (found.K, found.p, P) == (grid.K, grid.p, tasks)


def test_decoders_start_empty() -> None:
    """A code hands out a new decoder every time."""
    for name, grid, tasks in (("product", "4x4", 25), ("fractional-repetition", "4x1x1", 4)):
        code = make(name, grid, tasks)
        first: Decoder = code.decoder()
        first.add(0, code.rows(code.task(0)))
        assert code.decoder().results == 0
