"""What is chosen when the user does not say: grid, number of tasks, full or sparse groups. Table in docs/codes.md.

W workers, P tasks, K = mn blocks. Pull: K is at most 4W and close to it, so that each worker gets about four tasks and
the last one to finish costs little. Oneshot: K is at most W - stragglers, one task a worker. Sides: as little operand
data per task as possible, r/m + t/n smallest, which is square for a square C; never beyond r or t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cmm.codes.base import Code
from cmm.codes.registry import code_class
from cmm.codes.sizes import pool
from cmm.core.errors import UsageError
from cmm.core.grid import Grid, Partition

TASKS_PER_WORKER = 4  # of pull dispatch
STRAGGLER_SHARE = 0.1  # of workers, planned for under oneshot
ENCODING_COST = 10.0  # one multiply-add of encoding costs as much as so many of a matrix product (memory against cache)
ALWAYS_FULL_UP_TO = 64  # K up to which groups are full whatever the cost: few blocks decode badly from sparse rows


def stragglers(workers: int) -> int:
    """Stragglers planned for under oneshot: a tenth of the workers, at least one, none of a single worker."""
    return 0 if workers <= 1 else max(1, math.ceil(STRAGGLER_SHARE * workers))


def choose(workers: int, s: int, r: int, t: int, *, code: str = "fr", grid: Grid | None = None,
           tasks: int | None = None, dispatch: str = "pull",
           params: Mapping[str, Any] | None = None) -> tuple[Grid, int]:  # fmt: skip
    """Grid and number of tasks P for W workers and C of r x t with shared dimension s (any of them may be 0 or 1).

    Parameters
    ----------
    grid, tasks : what the user gave, None to choose. For pull, P without `tasks` is the number of fixed tasks: repairs
        come on top, without a bound.
    params : the code's parameters that the user gave; some codes need more or fewer tasks with some of them

    Raises
    ------
    UsageError : unknown code, parameter or dispatch, fewer than one worker, a grid larger than the matrix, too few
        tasks
    """
    cls = code_class(code)
    if dispatch not in ("pull", "oneshot"):
        raise UsageError("--dispatch", "must be pull or oneshot", repr(dispatch), "Choose one of them.")
    if workers < 1:
        raise UsageError("--workers", "must be at least 1", workers, "A single rank counts as one worker.")
    values = cls.checked(params or {})
    if grid is None:
        most = _most_blocks(workers, cls, tasks, dispatch)
        grid = _chosen_grid(most, lambda limit: cls.default_grid(limit, s, r, t, values), cls, values, dispatch)
    Partition(grid, s, r, t)
    least = cls.needs(grid, values)[0]
    if tasks is None:
        tasks = _chosen_tasks(workers, cls, grid, values, dispatch)
    if tasks < least:
        raise UsageError("--tasks", f"must be at least {least} for {code} on a {grid} grid", tasks,
                         f"Use --tasks {least} or more, or a smaller --grid.")  # fmt: skip
    return grid, tasks


def build_code(code: str, workers: int, shape: tuple[int, int, int], *, grid: Grid | None, tasks: int | None,
               dispatch: str, seed: int, params: Mapping[str, Any], complex_data: bool = False,
               exact: bool = False) -> Code:  # fmt: skip
    """The code of a job: what the user gave, completed by what suits workers, sizes and data.

    shape : s, r, t; grid, tasks : None to choose; exact : A and B hold integers

    Raises UsageError as `choose` and the code itself do.
    """
    given = for_data(code, params, complex_data=complex_data, exact=exact)
    grid, tasks = choose(workers, *shape, code=code, grid=grid, tasks=tasks, dispatch=dispatch, params=given)
    values = {**default_params(code, grid, *shape, params), **given}
    built = code_class(code)(grid, tasks, seed, dispatch, values)
    if exact and built.integer_weights is None:
        raise UsageError("--code", "must have integer coefficients for an exact product of integer matrices",
                         repr(code), "Use uncoded, replication, or fr, rkrp, mds, lt or sparse with "
                         "coefficients=integers; or store A or B as float64.")  # fmt: skip
    return built


def check_code(code: str, grid: Grid | None, tasks: int | None, dispatch: str, params: Mapping[str, Any],
               workers: int) -> None:  # fmt: skip
    """What can be said of a code before the matrices are known: parameters, and with a grid whether it can be built.

    Raises UsageError as the job would.
    """
    cls = code_class(code)
    cls.checked(params)
    if grid is not None:
        size = max(grid.m, grid.n, grid.p)  # the smallest matrix that the grid fits
        _, tasks = choose(max(workers, 1), size, size, size, code=code, grid=grid, tasks=tasks, dispatch=dispatch,
                          params=params)  # fmt: skip
        cls(grid, tasks, dispatch=dispatch, params=params)


def for_data(code: str, given: Mapping[str, Any], *, complex_data: bool, exact: bool) -> dict[str, Any]:
    """The user's parameters with what the data ask for: nodes for complex data, integer coefficients for integers."""
    known, params = code_class(code).parameters, dict(given)
    if exact and "coefficients" in known:
        params.setdefault("coefficients", "integers")
    if complex_data and "data" in known:
        if params.get("data") == "real":
            raise UsageError("--param data", "must be complex for complex A or B", "'real'", "Leave it out.")
        params.setdefault("data", "complex")
    return params


def _chosen_grid(limit: int, grid_of: Callable[[int], Grid], cls: type[Code], params: Mapping[str, Any],
                 dispatch: str) -> Grid:  # fmt: skip
    """The code's grid for up to `limit` blocks; under oneshot for as many as typically decode from `limit` results."""
    grid = grid_of(limit)
    least, results = cls.needs(grid, params)
    if dispatch == "pull" or results == least:
        return grid
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        fits = cls.needs(grid_of(middle), params)[1] <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return grid_of(low)


def _most_blocks(workers: int, cls: type[Code], tasks: int | None, dispatch: str) -> int:
    """The largest K to choose."""
    if tasks is not None and tasks < 1:
        raise UsageError("--tasks", "must be at least 1", tasks, "Leave it out to have it chosen.")
    if dispatch == "pull":
        most = TASKS_PER_WORKER * workers
        return most if tasks is None else min(most, tasks)
    available = workers if tasks is None else tasks
    if cls.name == "uncoded":
        return available
    late = stragglers(workers)
    if cls.name == "replication":
        return max(1, available // (late + 1))
    return max(1, available * (workers - late) // workers)


def _chosen_tasks(workers: int, cls: type[Code], grid: Grid, params: Mapping[str, Any], dispatch: str) -> int:
    """Pull: as many as the code needs, and spare ones where it can make none on demand. Oneshot: so many that the
    results of W - stragglers workers suffice; a multiple of W, so that all have equal work."""
    (least, results), late = cls.needs(grid, params), stragglers(workers)
    own = cls.default_tasks(grid, params, workers, late)
    if own is not None:
        return own
    if cls.name == "uncoded" or (dispatch == "pull" and not cls.fixed_pool):
        return least
    if cls.name == "replication":
        return max(workers, (late + 1) * least)
    return max(least, pool(results, workers, late, dispatch, cls.most_spare))


def encoding_is_cheaper(grid: Grid, s: int, r: int, t: int) -> bool:
    """Whether encoding one task from *all* chunks costs less than the product it may save.

    Encoding with full groups reads all of A and B: s (r + t) multiply-adds at memory speed; a task's product is
    s r t / K at cache speed (s cancels). 8x8 of 4096 is cheaper, 16x16 of 4096 is not.
    """
    return ENCODING_COST * (r + t) * grid.K <= r * t


def default_params(code: str, grid: Grid, s: int, r: int, t: int,
                   given: Mapping[str, str] | None = None) -> dict[str, str]:  # fmt: skip
    """Parameters that depend on the sizes, to be overridden by what the user gives: fr's groups, full or sparse.

    given : the user's parameters; with `loss`, `groups` or a construction of fr among them nothing is added
    """
    if code != "fr" or grid.p != 1 or not {"loss", "groups", "construction"}.isdisjoint(given or {}):
        return {}
    full = grid.K <= ALWAYS_FULL_UP_TO or encoding_is_cheaper(grid, s, r, t)
    return {"groups": "full" if full else "sparse"}
