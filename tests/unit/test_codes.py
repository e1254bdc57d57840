"""The codes themselves: indices and coefficients, no matrices."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.codes.base import Code
from cmm.codes.coefficients import LAWS, combination
from cmm.codes.groups import group_counts, residual_degree, sparse_counts
from cmm.codes.registry import CODES, build, check_name, code_class, list_codes
from cmm.core.errors import ExitCode, UsageError
from cmm.core.grid import Grid
from cmm.core.rng import generator
from cmm.linalg.rows import stack


def make(name: str, grid: str = "4x4", tasks: int = 24, **options: object) -> Code:
    return code_class(name)(Grid.parse(grid), tasks, **options)  # type: ignore[arg-type]


def matrix(code: Code, tasks: list[int]) -> np.ndarray:
    dense: np.ndarray = stack([row for i in tasks for row in code.rows(code.task(i))], code.unknowns).toarray()
    return dense


# ---- the registry ----------------------------------------------------------------------------------------------


def test_every_code_tells_what_it_is() -> None:
    infos = list_codes()
    assert [info.name for info in infos] == sorted(CODES)
    for info in infos:
        assert info.paper
        assert info.recovery
        assert info.good_for
        assert all(info.parameters.values())


def test_unknown_code_names_the_nearest_and_all() -> None:
    with pytest.raises(UsageError, match=r"Did you mean rkrp.*fr, .*replication.*uncoded") as caught:
        check_name("rkpr")
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("name", "params"),
    [("fr", {"loss": "0.1", "coefficients": "signs"}), ("fr", {"groups": "2x3"}), ("rkrp", {"systematic": "no"}),
     ("replication", {}), ("uncoded", {})],
)  # fmt: skip
def test_describe_and_repr_build_an_equal_code(name: str, params: dict[str, str]) -> None:
    code = make(name, tasks=16 if name == "uncoded" else 24, seed=7, dispatch="oneshot", params=params)
    again = build(json.loads(json.dumps(code.describe())))
    named = {cls.__name__: cls for cls in map(code_class, CODES)}
    third = eval(repr(code), {**named, "Grid": Grid})  # the repr is ours
    for other in (again, third):
        assert other.describe() == code.describe()
        for index in range(code.P):
            ours, theirs = code.task(index), other.task(index)
            assert [c.key for c in ours.a + ours.b] == [c.key for c in theirs.a + theirs.b]


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [("fr", {"group": "2x2"}, r"coefficients, construction, groups, .*loss"), ("fr", {"groups": "2"}, "27x5"),
     ("fr", {"groups": "5x1"}, "must not exceed the 4x4 grid"), ("fr", {"loss": "1"}, "between 0 and 1"),
     ("fr", {"loss": "nan"}, "between 0 and 1"), ("fr", {"loss": "many"}, "loss"),
     ("fr", {"coefficients": "normal"}, "uniform, signs, gaussian"),
     ("fr", {"construction": "best"}, "systematic, paper"),
     ("rkrp", {"systematic": "maybe"}, "yes or no"), ("uncoded", {"copies": "2"}, "none")],
)  # fmt: skip
def test_bad_parameters_are_refused_with_a_remedy(name: str, params: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make(name, tasks=16 if name == "uncoded" else 24, params=params)


@pytest.mark.parametrize("name", ["fr", "rkrp"])
def test_a_split_shared_dimension_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"does not split the shared dimension.*2x4x4.*Use 4x4"):
        make(name, "2x4x4", 40)


@pytest.mark.parametrize("name", [name for name in sorted(CODES) if code_class(name).minimum_for(Grid(4, 4)) == 16])
def test_too_few_tasks_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"at least 16.*got 15") as caught:
        make(name, tasks=15)
    assert caught.value.exit_code is ExitCode.USAGE


# ---- coefficients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", sorted(LAWS))
def test_laws(law: str) -> None:
    values = LAWS[law](generator(1, law), 4000)
    assert values.dtype == np.float64
    assert (values != 0).all()
    assert 0.45 < (values > 0).mean() < 0.55
    if law == "uniform":
        assert np.abs(values).min() >= 0.5
        assert np.abs(values).max() <= 1.5
    if law in ("signs", "integers"):
        assert set(np.abs(values)) == ({1.0} if law == "signs" else {1.0, 2.0, 3.0})


def test_combination_sorts_chunks() -> None:
    made = combination("uniform", generator(0, "x"), [5, 2, 9])
    assert made.indices.tolist() == [2, 5, 9]
    assert made.degree == 3


@pytest.mark.parametrize("name", ["fr", "rkrp"])
def test_coefficients_depend_on_seed_and_task_only(name: str) -> None:
    """Another process, asked for one task only, makes the same coefficients to the last bit."""
    script = (
        "from cmm.codes.registry import code_class; from cmm.core.grid import Grid\n"
        f"code = code_class({name!r})(Grid(20, 20), 500, seed=5, dispatch='oneshot')\n"
        "task = code.task(471); print((task.a[0].key + task.b[0].key).hex())"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    code = make(name, "20x20", 500, seed=5, dispatch="oneshot")
    task = code.task(471)
    assert (task.a[0].key + task.b[0].key).hex() == other
    reseeded = make(name, "20x20", 500, seed=6, dispatch="oneshot").task(471)
    assert reseeded.a[0].key != task.a[0].key


# ---- uncoded and replication -----------------------------------------------------------------------------------


def test_uncoded_is_the_identity() -> None:
    code = make("uncoded", "3x5", 15)
    assert (matrix(code, list(range(15))) == np.eye(15)).all()
    assert (code.systematic, code.repairs, code.recovery_threshold.results) == (15, False, 15)
    with pytest.raises(UsageError, match="must be 15"):
        make("uncoded", "3x5", 16)


@pytest.mark.parametrize("name", ["uncoded", "replication"])
def test_a_split_shared_dimension_needs_only_matching_products(name: str) -> None:
    code = make(name, "3x2x2", 12)
    rows = matrix(code, list(range(12)))
    assert rows.shape == (12, 36)
    assert code.targets.matrix is not None
    targets = code.targets.matrix.toarray()
    # every task is part of exactly one target, and together they are the targets
    assert (targets @ rows.T).sum(axis=0).tolist() == [1.0] * 12
    assert ((targets @ rows.T) @ rows == targets).all()


def test_replication_numbers_copies_modulo_k() -> None:
    code = make("replication", "2x3", 14, dispatch="oneshot")
    assert [code.task(i).systematic for i in range(14)] == [i % 6 for i in range(14)]
    assert code.order(generator(0, "o")) == list(range(14))
    assert code.recovery_threshold.results == 13  # both copies of block 5 among the missing ... leaves 12


def test_replication_copies_the_least_copied_outstanding_block() -> None:
    code = make("replication", "2x3", 6)
    assert [code.repair([1, 4], 6 + i).systematic for i in range(3)] == [1, 4, 1]
    assert code.repair([1, 2, 4], 9).systematic == 2
    assert code.repair([1, 2, 4], 10).systematic == 2 or code.repair([1, 2, 4], 10).systematic == 4
    # numbering anew is a new run
    assert code.repair([1, 4], 6).systematic == 1
    with pytest.raises(ValueError, match="cannot repair"):
        code.repair([], 7)


def test_replication_repairs_only_wanted_products() -> None:
    code = make("replication", "2x1x1", 2)
    assert code.repair([1, 3], 2).systematic == 3
    with pytest.raises(ValueError, match="no wanted product"):
        code.repair([1], 2)


# ---- rkrp ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("systematic", ["yes", "no"])
def test_rkrp_any_k_rows_are_regular(systematic: str) -> None:
    code = make("rkrp", "2x2", 7, params={"systematic": systematic})
    rows = matrix(code, list(range(7)))
    assert all(np.linalg.matrix_rank(rows[list(chosen)]) == 4 for chosen in combinations(range(7), 4))
    assert code.recovery_threshold.certain
    assert not make("rkrp", params={"coefficients": "signs"}).recovery_threshold.certain


def test_rkrp_repairs_are_the_next_dense_rows() -> None:
    short, long = make("rkrp", "3x3", 9), make("rkrp", "3x3", 12)
    for index in range(9, 12):
        repair, fixed = short.repair([2, 5], index), long.task(index)
        assert repair.a[0].key == fixed.a[0].key
        assert repair.b[0].degree == 3


# ---- fr --------------------------------------------------------------------------------------------------------


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.integers(0, 2**32),
)
def test_every_round_covers_every_block_once(sides: tuple[int, int], sizes: tuple[int, int], seed: int) -> None:
    grid = Grid(*sides)
    groups = f"{min(sizes[0], grid.m)}x{min(sizes[1], grid.n)}"
    code = code_class("fr")(grid, 4 * grid.K, seed, "oneshot", {"groups": groups})
    count_a, count_b = group_counts(grid, code.P, groups, None)
    per_round = count_a * count_b
    for number in range(2):
        first = grid.K + number * per_round
        tasks = [code.task(i) for i in range(first, min(first + per_round, code.P))]
        covered = np.concatenate([task.coefficients(0)[0] for task in tasks])
        if len(tasks) == per_round:
            assert sorted(covered.tolist()) == list(range(grid.K))
        assert len({id(c) for task in tasks for c in task.a}) <= count_a  # shared objects: encoded once
        assert len({id(c) for task in tasks for c in task.b}) <= count_b
        for task in tasks:
            assert abs(task.a[0].degree - grid.m / count_a) < 1
            assert abs(task.b[0].degree - grid.n / count_b) < 1


def test_rounds_made_again_are_the_same() -> None:
    code = make("fr", "20x20", 4000, dispatch="oneshot")
    before = [code.task(i).a[0].key for i in range(400, 4000, 97)]
    assert [code.task(i).a[0].key for i in range(3999, 399, -1)][::-1][::97] == before


def test_group_choice() -> None:
    reference = Grid(80, 80)
    assert group_counts(reference, 10000, None, None) == (3, 16)  # groups of 27 x 5
    assert group_counts(reference, 10000, "27x5", None) == (3, 16)
    assert group_counts(reference, 10000, "full", None) == (1, 1)
    assert group_counts(Grid(16, 16), 400, None, None) == (1, 1)
    assert group_counts(reference, 6410, None, None) == (1, 1)  # ten spare tasks must each help for any block
    for loss in (0.02, 0.05, 0.1, 0.2, 0.3):
        count_a, count_b = sparse_counts(reference, loss)
        degree = loss * reference.K / (count_a * count_b)
        assert count_a < count_b  # many chunks on A, few on B
        assert 0.8 * residual_degree(loss * reference.K, loss) <= degree


@given(st.integers(1, 200), st.integers(1, 200), st.floats(0.001, 0.6))
def test_group_counts_stay_within_the_grid(m: int, n: int, loss: float) -> None:
    count_a, count_b = sparse_counts(Grid(m, n), loss)
    assert 1 <= count_a <= m
    assert 1 <= count_b <= n


@given(st.sets(st.integers(0, 11 * 7 - 1), min_size=1), st.integers(0, 50))
def test_targeted_repairs_lie_on_the_outstanding_rows_and_columns(outstanding: set[int], number: int) -> None:
    code = make("fr", "11x7", 77)
    task = code.repair(sorted(outstanding), 77 + number)
    assert task.a[0].indices.tolist() == sorted({u // 7 for u in outstanding})
    assert task.b[0].indices.tolist() == sorted({u % 7 for u in outstanding})
    assert np.abs(task.a[0].values).min() >= 0.5
    assert np.abs(task.a[0].values).max() <= 1.5
    assert (task.systematic is not None) == (len(outstanding) == 1)  # a single block is copied


def test_targeted_repairs_of_any_set_are_regular() -> None:
    rng = generator(3, "sets")
    code = make("fr", "8x8", 64)
    for _ in range(50):
        outstanding = np.sort(rng.choice(64, rng.integers(1, 30), replace=False))
        tasks = [code.repair(outstanding, 64 + i) for i in range(len(outstanding))]
        rows = stack([row for task in tasks for row in code.rows(task)], 64).toarray()[:, outstanding]
        assert np.linalg.matrix_rank(rows) == len(outstanding)


def test_oneshot_deals_systematic_tasks_at_random_and_pull_in_order() -> None:
    oneshot, pull = make("fr", dispatch="oneshot"), make("fr")
    order = oneshot.order(generator(1, "order"))
    assert sorted(order[:16]) == list(range(16)) != order[:16]
    assert order[16:] == list(range(16, 24))
    assert pull.order(generator(1, "order")) == list(range(16))
    assert (pull.repairs, oneshot.repairs) == (True, False)
