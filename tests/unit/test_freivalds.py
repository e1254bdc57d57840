"""The random check: honest results pass whatever the data, single wrong elements do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cmm.core.grid import Grid, Partition
from cmm.core.rng import secret_generator
from cmm.core.task import Array, Assignment, Combination
from cmm.matrices.files import as_source
from cmm.matrices.scaling import ScaledMatrix, look_at, unscale
from cmm.verify.freivalds import ResultCheck, noise_levels, random_vector
from cmm.verify.passes import tiles, times
from cmm.verify.product import ProductVerdict, check_product

DTYPES = ["f4", "f8", "c8", "c16"]
GRIDS = [Grid(4, 4), Grid(3, 2, 2), Grid(8, 1), Grid(1, 5, 3)]


def data(kind: str, shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> Array:
    """Data that round in different ways; `cancel` is made by the caller."""
    small = np.dtype(dtype).itemsize // (2 if dtype[0] == "c" else 1) == 4
    reach = 30 if small else 250
    make = {
        "normal": lambda: rng.normal(size=shape),
        "positive": lambda: rng.uniform(size=shape),
        "constant": lambda: np.full(shape, 0.1),
        "two values": lambda: rng.choice([0.1, 0.9], size=shape),
        "rank one": lambda: np.outer(rng.uniform(size=shape[0]), rng.normal(size=shape[1])),
        "mixed": lambda: np.where(np.arange(shape[1]) % 2, rng.normal(size=shape), rng.uniform(size=shape)),
        "intercept": lambda: np.where(np.arange(shape[1]) == 1, 0.1, rng.normal(size=shape)),
        "heavy tails": lambda: rng.standard_cauchy(size=shape) ** 3,
        "bad scale": lambda: rng.normal(size=shape) * 10.0 ** rng.integers(-reach, reach, shape[1]),
        "sparse": lambda: rng.normal(size=shape) * (rng.uniform(size=shape) < 0.01),
    }[kind]
    return (make() + 1j * make() if dtype[0] == "c" else make()).astype(dtype)


KINDS = ["normal", "positive", "constant", "two values", "rank one", "mixed", "intercept", "heavy tails", "bad scale",
         "sparse", "orthogonal"]  # fmt: skip


@pytest.fixture(autouse=True)
def _repeatable(request, monkeypatch):
    """Random vectors from the name of the test, not from the operating system: failures can be repeated."""
    seeded = np.random.default_rng(list(request.node.name.encode()))
    monkeypatch.setattr("cmm.verify.freivalds.secret_generator", lambda: seeded)


@dataclass
class Case:
    """A job's data, and workers that multiply honestly."""

    partition: Partition
    a: ScaledMatrix
    b: ScaledMatrix

    @classmethod
    def of(cls, kind: str, s: int, r: int, t: int, grid: Grid, dtype: str, rng: np.random.Generator) -> Case:
        plain = "positive" if kind == "orthogonal" else kind
        A, B = data(plain, (s, r), dtype, rng), data(plain, (s, t), dtype, rng)
        if kind == "orthogonal":  # A^T B is zero, its partial sums are not
            half = s // 2
            A[half : 2 * half], B[half : 2 * half] = A[:half], -B[:half]
            A[2 * half :] = 0
        a, b = (look_at(as_source(X, name), np.dtype(dtype)) for X, name in ((A, "--a"), (B, "--b")))
        return cls(Partition(grid, s, r, t), a, b)

    def coded(self, combination: Combination, side: str) -> Array:
        p, wide = self.partition, np.result_type(self.a.dtype, combination.values.dtype, np.float64)
        operand, slices, width = (
            (self.a, p.a_slices, p.block_rows) if side == "a" else (self.b, p.b_slices, p.block_cols)
        )
        total = np.zeros((p.chunk_rows, width), wide)
        for index, value in zip(combination.indices, combination.values, strict=True):
            block = operand.block(*slices(int(index)))
            total[: block.shape[0], : block.shape[1]] += value * block
        return total.astype(self.a.dtype if wide.kind == self.a.dtype.kind else wide)

    def result(self, assignment: Assignment, output: int = 0) -> Array:
        parts = [self.coded(assignment.a[x], "a").T @ self.coded(assignment.b[y], "b")
                 for x, y in assignment.outputs[output]]  # fmt: skip
        return np.sum(parts, axis=0, dtype=parts[0].dtype)

    def combination(self, chunks: int, degree: int, rng: np.random.Generator) -> Combination:
        values = rng.choice([-1.0, 1.0], degree) * rng.uniform(0.5, 1.5, degree)
        return Combination.of(rng.permutation(chunks)[:degree], values)

    def assignments(self, count: int, rng: np.random.Generator) -> list[Assignment]:
        """Half of them single products, half of them coded, with up to all chunks."""
        grid, made = self.partition.grid, []
        for task in range(count):
            degrees = (1, 1) if task % 2 else (rng.integers(1, grid.chunks_a + 1), rng.integers(1, grid.chunks_b + 1))
            pair = [self.combination(chunks, int(degree), rng)
                    for chunks, degree in zip((grid.chunks_a, grid.chunks_b), degrees, strict=True)]  # fmt: skip
            if task % 2:
                pair = [Combination.unit(int(one.indices[0])) for one in pair]
            made.append(Assignment.pair(task, *pair, grid.chunks_b))
        return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_honest_result_is_refused(kind, dtype):
    """Honest results of all sorts of data; none may fail. Recomputation must stay the exception."""
    rng = np.random.default_rng([KINDS.index(kind), DTYPES.index(dtype)])
    for grid, s, r, t in zip(GRIDS, (700, 301, 900, 100), (90, 61, 40, 50), (83, 50, 200, 64), strict=True):
        case = Case.of(kind, s, r, t, grid, dtype, rng)
        check = ResultCheck(case.partition, case.a, case.b).prepare()
        for assignment in case.assignments(10, rng):
            verdict = check.check(assignment, 0, case.result(assignment))
            assert verdict.ok, (grid, verdict)
            assert verdict.residual <= verdict.limit
        assert check.checked == 10
        assert check.rejected == 0


def test_margins_on_ordinary_data():
    """How far below the limit honest results stay. In single precision half of the noise is that of the w's; the
    largest of 120 000 rows had 0.55."""
    rng = np.random.default_rng(7)
    for dtype, most in (("f4", 0.7), ("f8", 0.2), ("c8", 0.5), ("c16", 0.2)):
        ratios = []
        for _ in range(6):
            case = Case.of("normal", 400, 160, 160, Grid(4, 4), dtype, rng)
            check = ResultCheck(case.partition, case.a, case.b).prepare()
            verdicts = [check.check(one, 0, case.result(one)) for one in case.assignments(20, rng)]
            ratios += [verdict.residual / verdict.limit for verdict in verdicts]
            assert check.examined == 0
        assert max(ratios) < most


@pytest.mark.parametrize(("dtype", "relative"), [("f4", 1e-3), ("f8", 1e-3), ("f8", 1e-6), ("c8", 1e-3), ("c16", 1e-6)])
@pytest.mark.parametrize("kind", ["normal", "positive", "mixed", "intercept", "bad scale", "two values"])
@pytest.mark.parametrize(("grid", "s", "r", "t"), [(Grid(4, 4), 1000, 200, 400), (Grid(2, 2, 2), 401, 100, 90)])
def test_one_wrong_element_is_found(kind, dtype, relative, grid, s, r, t):
    """One element off by a small part of the size of a typical element of the block."""
    rng = np.random.default_rng(11)
    case = Case.of(kind, s, r, t, grid, dtype, rng)
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    for assignment in case.assignments(10, rng):
        block = case.result(assignment)
        assert check.check(assignment, 0, block).ok
        i, j = rng.integers(r // grid.m), rng.integers(t // grid.n)
        block[i, j] += np.asarray(relative * np.sqrt(np.mean(np.abs(block.astype("c16")) ** 2)), dtype)
        verdict = check.check(assignment, 0, block)
        assert not verdict.ok
        assert verdict.residual > verdict.limit
        assert f"row {i}" in verdict.reason


def test_swapped_and_paired_errors_do_not_cancel():
    rng = np.random.default_rng(2)
    case = Case.of("normal", 300, 40, 60, Grid(2, 2), "f8", rng)
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    assignment = case.assignments(2, rng)[1]
    honest = case.result(assignment)
    for damage in ("swap", "pair", "zero", "copy of a row", "scaled", "other task"):
        block = honest.copy()
        if damage == "swap":
            block[3, [4, 9]] = block[3, [9, 4]]
        elif damage == "pair":
            block[3, 4] += 1.0
            block[3, 9] -= 1.0
        elif damage == "zero":
            block[:] = 0
        elif damage == "copy of a row":
            block[5] = block[6]
        elif damage == "scaled":
            block *= 1 + 1e-9
        else:
            block = case.result(case.assignments(1, rng)[0])
        assert not check.check(assignment, 0, block).ok, damage
    assert check.check(assignment, 0, honest).ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nonfinite_results_are_refused(value, dtype):
    rng = np.random.default_rng(3)
    case = Case.of("positive", 50, 20, 20, Grid(2, 2), dtype, rng)
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    assignment = case.assignments(1, rng)[0]
    block = case.result(assignment)
    with np.errstate(over="ignore"):
        block[2, 3] = value
    assert not check.check(assignment, 0, block).ok
    assert check.rejected == 1


def test_padding_is_checked():
    """13 columns in 3 chunks: a chunk of 4 is sent as 5, and its last column must be zero."""
    rng = np.random.default_rng(4)
    case = Case.of("normal", 30, 14, 13, Grid(3, 3), "f8", rng)
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    assignment = Assignment.pair(0, Combination.unit(2), Combination.unit(2), 3)
    block = case.result(assignment)
    assert not block[:, -1].any()
    assert check.check(assignment, 0, block).ok
    block[1, -1] = 1e-6
    assert not check.check(assignment, 0, block).ok


def test_several_outputs_of_several_products():
    rng = np.random.default_rng(5)
    case = Case.of("positive", 200, 40, 44, Grid(4, 4), "f8", rng)
    a, b = ([case.combination(4, 3, rng), Combination.unit(1)] for _ in range(2))
    assignment = Assignment(
        0, tuple(a), tuple(b), (((0, 0), (1, 1)), ((0, 1),), ((0, 0), (0, 1), (1, 0))), unknowns_b=4
    )
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    blocks = [case.result(assignment, output) for output in range(3)]
    for output, block in enumerate(blocks):
        assert check.check(assignment, output, block).ok
        assert not check.check(assignment, output, blocks[output - 1]).ok
        block[0, 0] *= 1 + 1e-6
        assert not check.check(assignment, output, block).ok


def test_complex_nodes_on_real_data():
    """Coefficients on the unit circle, real matrices: results are complex."""
    rng = np.random.default_rng(6)
    case = Case.of("normal", 120, 30, 30, Grid(3, 3), "f8", rng)
    node = np.exp(0.7j)
    assignment = Assignment.pair(0, Combination.of(range(3), node ** np.arange(3)),
                                 Combination.of(range(3), node ** (3 * np.arange(3))), 3)  # fmt: skip
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    block = case.result(assignment)
    assert block.dtype == np.complex128
    assert check.check(assignment, 0, block).ok
    block[7, 2] += 1e-9j
    assert not check.check(assignment, 0, block).ok


@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 1, 1), (5, 0, 4), (5, 3, 0), (2, 1, 30)])
def test_matrices_of_almost_nothing(shape):
    s, r, t = shape
    rng = np.random.default_rng(8)
    case = Case.of("normal", s, r, t, Grid(1, 1), "f8", rng)
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    assignment = Assignment.pair(0, Combination.unit(0), Combination.unit(0), 1)
    block = case.result(assignment)
    assert check.check(assignment, 0, block).ok
    assert check_product(case.a, case.b, block, unscaled=False).ok
    if block.size:
        block[-1, -1] += 1e-3
        assert not check.check(assignment, 0, block).ok
        assert not check_product(case.a, case.b, block, unscaled=False).ok


def test_misuse_is_told():
    case = Case.of("normal", 5, 4, 4, Grid(2, 2), "f8", np.random.default_rng(0))
    check = ResultCheck(case.partition, case.a, case.b)
    assignment = Assignment.pair(0, Combination.unit(0), Combination.unit(0), 2)
    with pytest.raises(ValueError, match="prepare"):
        check.check(assignment, 0, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="shape"):
        check.prepare().check(assignment, 0, np.zeros((2, 3)))


def test_steps_come_in_pieces(monkeypatch):
    monkeypatch.setattr("cmm.verify.freivalds.TILE", 1000)
    monkeypatch.setattr("cmm.verify.freivalds.tile_size", lambda *about: 1000)
    rng = np.random.default_rng(9)
    case = Case.of("positive", 203, 30, 30, Grid(2, 3, 2), "f4", rng)
    check = ResultCheck(case.partition, case.a, case.b)
    assert sum(1 for _ in check.steps()) > 4 * 6
    for assignment in case.assignments(6, rng):
        assert check.check(assignment, 0, case.result(assignment)).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grid", [Grid(2, 2, 2), Grid(3, 2, 3)])
def test_honest_results_of_parts_that_underflow_are_not_refused(grid, dtype):
    """Half of the rows so small that products of theirs are below the normal range, or below all numbers."""
    single = np.finfo(dtype).eps > 1e-12
    for power in (-17, -20, -21, -22, -25) if single else (-70, -82, -150, -158, -170):
        rng = np.random.default_rng(-power)
        A, B = data("normal", (400, 40), dtype, rng), data("positive", (400, 60), dtype, rng)
        A[:200] *= 10.0**power
        B[:200] *= 10.0**power
        a, b = (look_at(as_source(X, name), np.dtype(dtype)) for X, name in ((A, "--a"), (B, "--b")))
        partition = Partition(grid, 400, 40, 60)
        check = ResultCheck(partition, a, b).prepare()
        for ia in range(grid.chunks_a):
            jb = ia // grid.m * grid.n
            block = np.zeros((partition.block_rows, partition.block_cols), dtype)
            product = a.block(*partition.a_slices(ia)).T @ b.block(*partition.b_slices(jb))
            block[: product.shape[0], : product.shape[1]] = product
            one = Assignment.pair(0, Combination.unit(ia), Combination.unit(jb), grid.chunks_b)
            assert (verdict := check.check(one, 0, block)).ok, (power, ia, verdict)
            block[1, 2] += np.asarray(1, dtype)
            assert not check.check(one, 0, block).ok


def test_the_random_vector():
    x = random_vector(10000, secret_generator())
    assert 0.5 <= np.abs(x).min() < 0.51
    assert 1.49 < np.abs(x).max() <= 1.5
    assert abs(np.sign(x).mean()) < 0.06
    assert not np.array_equal(x, random_vector(10000, secret_generator()))


def test_the_floor_is_sharp_enough_for_single_precision():
    """A relative change of 1e-3 of an element of random data exceeds the limit up to s = t/n = 2000."""
    floor, _ = noise_levels(2000, 2.0**-24)
    assert 0.5 * 1e-3 / np.sqrt(2000) > 6 * floor * 2.0**-24 * 1.04 * np.sqrt(2000)


# ---- the finished C ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_finished_product(kind, dtype, unscaled):
    rng = np.random.default_rng(KINDS.index(kind))
    case = Case.of(kind, 300, 60, 70, Grid(1, 1), dtype, rng)
    if kind == "bad scale":  # on one side only: C itself has no room for both
        case = Case(case.partition, case.a, Case.of("normal", 300, 60, 70, Grid(1, 1), dtype, rng).b)
    C = case.coded(Combination.unit(0), "a").T @ case.coded(Combination.unit(0), "b")
    typical = C[5, 6]
    if unscaled:
        unscale(C, case.a.exponents, case.b.exponents)
    verdict = check_product(case.a, case.b, C, unscaled=unscaled)
    assert verdict.ok, verdict
    assert (verdict.rows, verdict.columns) == (60, 70)
    assert verdict.residual <= verdict.limit
    if kind not in ("orthogonal", "sparse") and np.abs(typical) > 1e-2:
        C[5, 6] *= 1.01
        verdict = check_product(case.a, case.b, C, unscaled=unscaled)
        assert not verdict.ok
        assert "row 5" in verdict.reason


def test_what_decoding_may_add_is_allowed_and_not_more():
    rng = np.random.default_rng(1)
    case = Case.of("normal", 200, 50, 60, Grid(1, 1), "f8", rng)
    exact = case.coded(Combination.unit(0), "a").T @ case.coded(Combination.unit(0), "b")
    scale = np.multiply.outer(case.a.scan.norms, case.b.scan.norms)
    C = exact + 1e-10 * rng.uniform(-1, 1, exact.shape) * scale
    assert not check_product(case.a, case.b, C, unscaled=False).ok
    assert check_product(case.a, case.b, C, unscaled=False, error=1e-10).ok
    C[3, 3] += 1e-8 * scale[3, 3]
    assert not check_product(case.a, case.b, C, unscaled=False, error=1e-10).ok


def test_the_limit_of_c_is_the_estimate_of_its_error_and_an_element_beyond_it_may_be_right_on_appeal():
    rng = np.random.default_rng(2)
    case = Case.of("normal", 200, 50, 60, Grid(1, 1), "f8", rng)
    exact = case.coded(Combination.unit(0), "a").T @ case.coded(Combination.unit(0), "b")
    scale = np.multiply.outer(case.a.scan.norms, case.b.scan.norms)

    def found(wrong: float, tolerance: float) -> ProductVerdict:
        C = exact + 1e-11 * rng.uniform(-1, 1, exact.shape) * scale
        C[3] += wrong * scale[3] * rng.choice([-1, 1], len(C[3]))
        return check_product(case.a, case.b, C, unscaled=False, error=1e-10, tolerance=tolerance,
                             rng=np.random.default_rng(0))  # fmt: skip

    fine = found(0, 1e-9)
    assert (fine.ok, fine.examined) == (True, 0)
    assert 1e-10 <= fine.limit < 1.1e-10  # the estimate, and what a product rounds off
    assert found(4e-10, 1e-9).ok  # six estimates, when looked at
    assert not found(4e-10, 3e-10).ok  # beyond the tolerance
    assert not found(9e-10, 1e-9).ok  # within it, and no estimate would be so far off


@pytest.mark.parametrize("size", [-160, -150, 0, 150])
def test_digits_lost_below_the_normal_range_are_allowed_for(size):
    rng = np.random.default_rng(4)
    A, B = rng.normal(size=(50, 20)) * 10.0**size, rng.normal(size=(50, 30)) * 10.0**size
    a, b = (look_at(as_source(X, name), X.dtype) for X, name in ((A, "--a"), (B, "--b")))
    C = a.block(slice(0, 50), slice(0, 20)).T @ b.block(slice(0, 50), slice(0, 30))
    assert check_product(a, b, C, unscaled=False).ok
    unscale(C, a.exponents, b.exponents)
    assert check_product(a, b, C, unscaled=True).ok
    C[2, 3] *= 1.1
    assert not check_product(a, b, C, unscaled=True).ok


def test_lines_that_are_not_finite_are_left_out():
    rng = np.random.default_rng(2)
    A, B = rng.normal(size=(40, 9)), rng.normal(size=(40, 8))
    A[3, 4], B[5, 6] = np.nan, np.inf
    a, b = (look_at(as_source(X, name), X.dtype) for X, name in ((A, "--a"), (B, "--b")))
    C = A.T @ B
    verdict = check_product(a, b, C, unscaled=True)
    assert verdict.ok
    assert (verdict.rows, verdict.columns) == (8, 7)
    C[2, 2] += 1e-6
    assert not check_product(a, b, C, unscaled=True).ok


def test_missed_is_an_honest_figure():
    """An error of one element of twice the stated size is always found."""
    rng = np.random.default_rng(3)
    case = Case.of("normal", 200, 50, 60, Grid(1, 1), "f8", rng)
    exact = case.coded(Combination.unit(0), "a").T @ case.coded(Combination.unit(0), "b")
    for _ in range(50):
        C = exact.copy()
        missed = check_product(case.a, case.b, C, unscaled=False).missed
        i, j = rng.integers(50), rng.integers(60)
        C[i, j] += 2 * missed * case.a.scan.norms[i] * case.b.scan.norms[j]
        assert not check_product(case.a, case.b, C, unscaled=False).ok


# ---- C by the vectors of the results' check ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "positive", "bad scale", "sparse", "orthogonal"])
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(4, 3), Grid(3, 5, 2)])
def test_the_vectors_of_the_results_serve_for_c(kind, dtype, grid):
    rng = np.random.default_rng(7)
    case = Case.of(kind, 300, 61, 73, grid, dtype, rng)
    whole = Case(Partition(Grid(1, 1), 300, 61, 73), case.a, case.b)
    C = whole.result(Assignment.pair(0, Combination.unit(0), Combination.unit(0), 1))
    check = ResultCheck(case.partition, case.a, case.b)
    assert not check.ready
    assert check_product(case.a, case.b, C, unscaled=False, results=check).ok  # not ready: it looks for itself
    check.prepare()
    alone = [check_product(case.a, case.b, C, unscaled=False) for _ in range(9)]
    checks = [check] + [ResultCheck(case.partition, case.a, case.b).prepare() for _ in alone[1:]]
    verdicts = [check_product(case.a, case.b, C, unscaled=False, results=check) for check in checks]
    assert all(verdict.ok for verdict in verdicts), verdicts
    assert {(found.rows, found.columns) for found in verdicts + alone} == {(61, 73)}
    # A draw that leads to a recomputation misses more: of 400 single pairs in c8 the worst differed by 17, of medians
    # of nine the worst of 1200 by 5.6.
    assert np.median([found.missed for found in verdicts]) <= 10 * np.median([found.missed for found in alone])
    verdict = verdicts[0]
    size = case.a.scan.norms[7] * np.max(case.b.scan.norms)
    tolerance = 1e-3 if np.finfo(dtype).eps > 1e-12 else 1e-9
    for error in (2 * verdict.missed, tolerance):
        bad = C.copy()
        bad[7, 9] += np.asarray(error * size, dtype)
        found = check_product(case.a, case.b, bad, unscaled=False, results=check)
        if found.ok:  # on appeal, say: then this very verdict says that such an error may pass
            assert abs(complex(bad[7, 9]) - complex(C[7, 9])) <= found.missed * size
            assert found.missed < tolerance


def test_exchanged_blocks_and_columns_of_c_do_not_cancel():
    """The same x serves every block: without factors of their own two blocks in one row of C could change places."""
    rng = np.random.default_rng(8)
    case = Case.of("normal", 200, 40, 40, Grid(2, 2), "f8", rng)
    check = ResultCheck(case.partition, case.a, case.b).prepare()
    C = Case(Partition(Grid(1, 1), 200, 40, 40), case.a, case.b).result(
        Assignment.pair(0, Combination.unit(0), Combination.unit(0), 1))  # fmt: skip
    for order in (np.roll(np.arange(40), 20), np.r_[20, 1:20, 0, 21:40]):
        assert not check_product(case.a, case.b, C[:, order], unscaled=False, results=check).ok
        assert not check_product(case.a, case.b, C[order], unscaled=False, results=check).ok
    assert check_product(case.a, case.b, C, unscaled=False, results=check).ok


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_tiles_cover_everything_once_and_copy_what_they_must(order, scaled, dtype):
    rng = np.random.default_rng(1)
    A = np.asarray(data("bad scale" if scaled else "normal", (700, 90), dtype, rng), order=order)
    a = look_at(as_source(A, "--a"), A.dtype)
    for size in (700, 9000, 1 << 20):
        seen, sizes = np.zeros(A.shape, int), []
        for down, across, block in tiles(a, slice(5, 690), slice(1, 88), size):
            seen[down, across] += 1
            sizes.append(block.nbytes)
            assert block.dtype == A.dtype
            assert np.shares_memory(block, A) == (not scaled)
            assert np.array_equal(block, a.block(down, across))
            if size == 9000 and not scaled:  # along the order in memory
                assert (block.shape[1] > block.shape[0]) == (order == "C")
        assert (seen[5:690, 1:88] == 1).all()
        assert seen.sum() == 685 * 87
        assert max(sizes) <= max(size, 64 * A.itemsize)
        assert len(sizes) <= 4 + 3 * A.nbytes / size


def test_products_of_results_are_made_in_double_precision():
    """And those of slabs of rows, edges included, are the same."""
    rng = np.random.default_rng(2)
    for shape in ((1, 1), (700, 300), (3, 70000), (0, 4), (4, 0)):
        for dtype in DTYPES:
            array, x = data("positive", shape, dtype, rng), random_vector(shape[1], rng)
            found, exact = times(array, x), array.astype("c16" if dtype[0] == "c" else "f8") @ x
            assert found.dtype == exact.dtype
            assert np.allclose(found, exact, rtol=1e-12, atol=1e-12 * shape[1])


def test_a_look_at_the_data_copies_nothing_that_lies_there_as_it_is():
    rng = np.random.default_rng(9)
    A, B = rng.normal(size=(400, 30)), np.asarray(rng.normal(size=(400, 20)), order="F")
    a, b = (look_at(as_source(X, name), X.dtype) for X, name in ((A, "--a"), (B, "--b")))
    for matrix, array in ((a, A), (b, B)):
        assert np.shares_memory(matrix.view(slice(3, 9), slice(2, 5)), array)
    check = ResultCheck(Partition(Grid(2, 2), 400, 30, 20), a, b).prepare()
    single = look_at(as_source(A.astype("f4"), "--a"), np.dtype("f4"))
    scaled = look_at(as_source(A * 10.0 ** np.arange(30), "--a"), np.dtype("f8"))
    assert scaled.view(slice(0, 9), slice(0, 5)) is None
    assert single.view(slice(0, 9), slice(0, 5)).dtype == np.float32
    for j in range(2):
        block = A[:, :15].T @ B[:, 10 * j : 10 * j + 10]
        assert check.check(Assignment.pair(0, Combination.unit(0), Combination.unit(j), 2), 0, block).ok
