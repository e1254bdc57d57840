"""How large the groups of a round are (systematic FR): cheap enough to subtract, dense enough to decode.

With a share `loss` of K = mn blocks missing (sigma = loss * K of them) a row over d_A x d_B blocks has residual degree
rho = loss * d_A * d_B. Failures are of two kinds, rows without a missing block and blocks without a row:

    rho >= max(ln sigma + 2, (1 - loss) ln(sigma / delta) / ln(1 / loss))            for failure target delta.

Subtracting the known blocks costs one GEMM with as many a-vectors as there are A-groups in all rounds, so B is cut
into as many groups as it bears and A gets the rest. B bears it while every column of C is met by at least as many
used rows as it misses blocks: about sigma / n * d_B rows against a Poisson(sigma / n) number of blocks, whose
maximum over n columns is bounded by Bernstein's inequality. The same holds for rows of C and d_A.
"""

from __future__ import annotations

import math
import re

from cmm.core.errors import UsageError
from cmm.core.grid import Grid

DEFAULT_LOSS = 0.05
DELTA = 0.01  # failure target of the residual degree
DELTA_LINE = 1e-4  # that some line of C misses more blocks than rows meet it
FULL_UP_TO = 256  # K up to which groups are full unless sizes say that encoding them is dear (defaults.py)


def read_groups(text: str) -> str:
    """Check `AxB`, `full` or `sparse`."""
    word = text.strip().lower()
    if word not in ("full", "sparse") and not re.fullmatch(r"[1-9]\d{0,8}x[1-9]\d{0,8}", word):
        raise ValueError("Write for example 27x5, or full, or sparse.")
    return word


def read_loss(text: str) -> float:
    """Check a share strictly between 0 and 1."""
    value = float(text)
    if not 0 < value < 1:
        raise ValueError("Write a number between 0 and 1, for example 0.05.")
    return value


def group_counts(grid: Grid, tasks: int, groups: str | None, loss: float | None) -> tuple[int, int]:
    """(groups of A, groups of B) in a round. `tasks`: P; `groups`, `loss`: the parameters, None when not given.

    Raises UsageError when a group is larger than the grid's side.
    """
    if groups == "full" or (groups is None and loss is None and grid.K <= FULL_UP_TO):
        return 1, 1
    if groups is None or groups == "sparse":
        return sparse_counts(grid, expected_loss(grid, tasks) if loss is None else loss)
    sizes = [int(size) for size in groups.split("x")]
    for size, side in zip(sizes, (grid.m, grid.n), strict=True):
        if size > side:
            raise UsageError("--param groups", f"must not exceed the {grid} grid", groups, f"Use at most {grid}.")
    return max(1, round(grid.m / sizes[0])), max(1, round(grid.n / sizes[1]))


def expected_loss(grid: Grid, tasks: int) -> float:
    """5 %, or less when there are too few tasks to make up for it."""
    spare = 1 - grid.K / max(tasks, grid.K)
    return min(DEFAULT_LOSS, spare) if spare > 0 else DEFAULT_LOSS


def residual_degree(missing: float, loss: float) -> float:
    """The least residual degree rho (missing blocks per row) for `missing` = sigma blocks lost."""
    sigma = max(missing, 1.0)
    return max(math.log(sigma) + 2, (1 - loss) * math.log(sigma / DELTA) / math.log(1 / loss))


def sparse_counts(grid: Grid, loss: float) -> tuple[int, int]:
    """Group counts from the residual degree rule and the line rule (module's text)."""
    missing = loss * grid.K
    degree = residual_degree(missing, loss) / loss  # d_A * d_B
    most_b = int(grid.n / _least_width(missing, grid.n))
    count_b = max(1, min(most_b, int(grid.K / degree)))
    most_a = int(grid.m / _least_width(missing, grid.m))
    count_a = max(1, min(most_a, round(grid.K / degree / count_b)))
    return count_a, count_b


def _least_width(missing: float, lines: int) -> float:
    """Chunks per group, so that each of `lines` lines is met by as many rows as it misses blocks."""
    mean = max(missing, 1.0) / lines
    log = math.log(lines / DELTA_LINE)
    return (mean + log / 3 + math.sqrt(log**2 / 9 + 2 * mean * log)) / mean
