"""Default sides of a grid and default numbers of tasks: plain arithmetic, used by the codes and by defaults.py."""

from __future__ import annotations

import math

from cmm.core.grid import Grid

HELD = 2  # tasks that a frozen worker may hold under pull (one in work, one sent ahead)


def squarest(limit: int, r: int, t: int) -> Grid:
    """The m x n grid with mn <= limit, m <= r, n <= t that needs least operand data per task (r/m + t/n); among equals
    the most blocks, then m <= n."""
    rows, columns = max(r, 1), max(t, 1)
    candidates = ((m, min(columns, limit // m)) for m in range(1, min(limit, rows) + 1))
    m, n = min(candidates, key=lambda side: (rows / side[0] + columns / side[1], -side[0] * side[1], side[0]))
    return Grid(m, n)


def pool(results: int, workers: int, late: int, dispatch: str, most_spare: int | None = None) -> int:
    """P such that `results` results come in although `late` of `workers` workers answer nothing.

    most_spare : spare tasks at most, for codes whose accuracy suffers from every further one
    """
    if dispatch == "pull":
        tasks = results + HELD * late
    else:
        tasks = workers * math.ceil(results / max(workers - late, 1))
    return tasks if most_spare is None else min(tasks, results + most_spare)
