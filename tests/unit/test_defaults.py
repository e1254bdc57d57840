"""Grid and number of tasks when the user gives none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.codes.defaults import choose, default_params, encoding_is_cheaper, stragglers
from cmm.codes.registry import CODES, code_class
from cmm.codes.sizes import squarest
from cmm.core.errors import ExitCode, UsageError
from cmm.core.grid import Grid, Partition

TABLE = [  # W, pull: grid, oneshot: grid and P; the table of docs/codes.md
    (1, "2x2", "1x1", 1), (2, "2x4", "1x1", 2), (4, "4x4", "1x3", 4), (8, "5x6", "2x3", 8),
    (63, "14x18", "7x8", 63), (999, "63x63", "29x30", 999),
]  # fmt: skip


@pytest.mark.parametrize(("workers", "pull", "oneshot", "tasks"), TABLE)
def test_documented_table(workers: int, pull: str, oneshot: str, tasks: int) -> None:
    grid, fixed = choose(workers, 4000, 4000, 4000, dispatch="pull")
    assert (str(grid), fixed) == (pull, grid.K)
    grid, total = choose(workers, 4000, 4000, 4000, dispatch="oneshot")
    assert (str(grid), total) == (oneshot, tasks)


BLOCKWISE = ("fr", "flt", "rkrp", "replication", "uncoded")  # the general rules hold for them
SIZES = st.one_of(st.integers(0, 5), st.integers(0, 10**7))


@given(st.integers(1, 3000), SIZES, SIZES, SIZES, st.sampled_from(sorted(CODES)), st.sampled_from(["pull", "oneshot"]))
def test_a_choice_always_builds(workers: int, s: int, r: int, t: int, code: str, dispatch: str) -> None:
    if code == "rotation":  # which cuts both sides in two
        r, t = max(r, 2), max(t, 2)
    grid, tasks = choose(workers, s, r, t, code=code, dispatch=dispatch)
    Partition(grid, s, r, t)  # never beyond r or t
    if grid.K < 500:
        made = code_class(code)(grid, tasks, dispatch=dispatch, params=default_params(code, grid, s, r, t))
        assert tasks == made.P
        assert code_class(code).needs(grid, made.params)[0] == made.minimum_tasks() <= tasks
    if code not in BLOCKWISE:
        return
    if dispatch == "pull":
        assert 4 * workers >= grid.K
        assert min(2 * workers, r * t) <= grid.K
    else:
        assert max(1, workers - (0 if code == "uncoded" else stragglers(workers))) >= grid.K
        assert tasks >= grid.K


@given(st.integers(1, 4000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_squarest_is_the_best_of_all(limit: int, r: int, t: int) -> None:
    grid = squarest(limit, r, t)
    rows, columns = max(r, 1), max(t, 1)
    best = min(rows / m + columns / n for m in range(1, min(limit, rows) + 1) for n in [min(columns, limit // m)])
    assert rows / grid.m + columns / grid.n == best
    assert limit >= grid.K


def test_vectors_and_empty_matrices() -> None:
    assert choose(4, 100, 50, 1)[0] == Grid(16, 1)
    assert choose(4, 100, 1, 50)[0] == Grid(1, 16)
    assert choose(4, 0, 0, 0) == (Grid(1, 1), 1)
    assert choose(4, 1, 1, 1, dispatch="oneshot") == (Grid(1, 1), 4)


def test_oneshot_survives_the_planned_stragglers() -> None:
    for workers in (2, 5, 8, 63):
        for code in ("fr", "rkrp"):
            grid, tasks = choose(workers, 9000, 9000, 9000, code=code, grid=Grid(4, 4), dispatch="oneshot")
            lost = stragglers(workers) * -(-tasks // workers)  # whatever ranks they are
            assert tasks - lost >= grid.K


def test_given_values_are_kept_or_refused() -> None:
    assert choose(5, 3001, 1999, 1501, grid=Grid(4, 4), tasks=24) == (Grid(4, 4), 24)
    assert choose(5, 3001, 1999, 1501, tasks=10, dispatch="oneshot")[1] == 10
    with pytest.raises(UsageError, match=r"at least 16.*got 15") as caught:
        choose(5, 3001, 1999, 1501, grid=Grid(4, 4), tasks=15)
    assert caught.value.exit_code is ExitCode.USAGE
    with pytest.raises(UsageError, match="columns of A"):
        choose(5, 10, 3, 3, grid=Grid(4, 1))
    with pytest.raises(UsageError, match="--workers"):
        choose(0, 10, 10, 10)
    with pytest.raises(UsageError, match="--tasks"):
        choose(1, 10, 10, 10, tasks=0)
    with pytest.raises(UsageError, match="pull or oneshot"):
        choose(1, 10, 10, 10, dispatch="push")
    with pytest.raises(UsageError, match="Did you mean"):
        choose(1, 10, 10, 10, code="uncode")


def test_full_groups_while_encoding_is_cheaper() -> None:
    assert encoding_is_cheaper(Grid(8, 8), 4096, 4096, 4096)
    assert not encoding_is_cheaper(Grid(16, 16), 4096, 4096, 4096)
    assert default_params("fr", Grid(16, 16), 4096, 4096, 4096) == {"groups": "sparse"}
    assert default_params("fr", Grid(16, 16), 9000, 90000, 90000) == {"groups": "full"}
    assert default_params("fr", Grid(8, 8), 9, 9, 9) == {"groups": "full"}
    assert default_params("rkrp", Grid(8, 8), 9, 9, 9) == {}
    assert default_params("fr", Grid(8, 8), 9, 9, 9, {"loss": "0.2"}) == {}
