"""Each phase of the sparse solver verifies itself here when asked to (CMM_VERIFY_DECODER=1, or verify=True).

Raises InternalError naming phase and place: a contradiction is a fault of the decoder, never of the results.
"""

from __future__ import annotations

import numpy as np

from cmm.core.errors import InternalError
from cmm.core.task import Array
from cmm.linalg.schedule import Schedule
from cmm.linalg.solver import SparseSolver

SLACK = 1e4  # rounding errors allowed, in units of eps times the largest number involved


def check(solver: SparseSolver) -> None:
    """All phases: schedule, dependence on inactive symbols, dense stage, and the solution for a random column."""
    check_schedule(solver.schedule)
    if solver.dense is not None:
        check_dependence(solver)
        check_dense(solver)
    if not solver.deficiency:
        _, results = solver.system.random_columns(1)
        check_solution(solver, solver.decode(results), results)


def check_schedule(schedule: Schedule) -> None:
    """Every symbol is known, solved, inactive or unsolved exactly once, and only from symbols of lower levels."""
    system = schedule.system
    level = np.zeros(system.symbols, dtype=np.intp)
    level[schedule.step_symbols] = schedule.step_levels
    parts = [system.known, schedule.step_symbols, schedule.inactive, schedule.unsolved]
    for step in schedule.lines:
        level[step.unknowns] = step.level
        parts.append(step.unknowns)
    times = np.bincount(np.concatenate(parts), minlength=system.symbols)
    _require(bool((times == 1).all()), "schedule", f"symbol {int(np.argmax(times != 1))} solved {times.max()} times")
    level[schedule.unsolved] = np.iinfo(np.intp).max
    _check_row_steps(schedule, level)
    for step in schedule.lines:
        members = _members(schedule, step.line)
        others = np.setdiff1d(members, step.unknowns)
        _require(bool((level[others] < step.level).all()), "schedule", f"line {step.line} used before it is ready")


def _check_row_steps(schedule: Schedule, level: Array) -> None:
    matrix = schedule.system.matrix
    for row, symbol, own in zip(schedule.step_rows, schedule.step_symbols, schedule.step_levels, strict=True):
        members = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
        _require(int((members == symbol).sum()) == 1, "schedule", f"row {row} does not contain symbol {symbol}")
        others = members[members != symbol]
        _require(bool((level[others] < own).all()), "schedule", f"row {row} used before it is ready")


def _members(schedule: Schedule, line: int) -> Array:
    outer = schedule.system.outer
    if outer is None:
        raise InternalError("schedule: a line step without an outer code")
    return outer.members(line)


def check_dependence(solver: SparseSolver) -> None:
    """D satisfies every equation that a step used, with results of zero."""
    schedule, dependence = solver.schedule, solver.dependence()
    used = schedule.system.matrix[schedule.step_rows]
    _small(used @ dependence, abs(used) @ np.abs(dependence), "dependence", "a row that was used")
    outer = schedule.system.outer
    for step in schedule.lines:
        line = dependence[_members(schedule, step.line)]
        solved = line[step.places] - step.weights @ line
        size = np.abs(line[step.places]) + np.abs(step.weights) @ np.abs(line)
        _small(solved, size, "dependence", f"line {step.line}")
        checks = outer.check(step.line) if outer is not None else step.weights
        if not len(step.spare):
            _small(checks @ line, np.abs(checks) @ np.abs(line), "dependence", f"parity of line {step.line}")


def check_dense(solver: SparseSolver) -> None:
    """Q R is the scaled, permuted dense system, and Q is orthonormal."""
    dense, equations = solver.dense, solver.equations
    if dense is None or equations is None:
        return
    system = (equations.matrix @ solver.dependence()) * dense.scale[:, None] * dense.column_scale
    _small(dense.q @ dense.r - system[:, dense.pivots], np.ones(1), "dense stage", "Q R")
    gram = dense.q.conj().T @ dense.q
    _small(gram - np.eye(len(gram)), np.ones(1), "dense stage", "QᵀQ")


def check_solution(solver: SparseSolver, symbols: Array, results: Array) -> None:
    """The symbols reproduce the results they were decoded from, relative to the schedule's predicted errors."""
    matrix = solver.system.matrix
    growth = np.sqrt(1.0 + solver.schedule.row_error + solver.schedule.worst_error)[:, None]
    _small(matrix @ symbols - results, growth * (abs(matrix) @ np.abs(symbols) + 1.0), "solution", "a result row")


def _small(error: Array, size: Array, phase: str, what: str) -> None:
    limit = SLACK * np.finfo(np.float64).eps * (size + np.finfo(np.float64).tiny)
    with np.errstate(invalid="ignore"):
        good = bool((np.abs(error) <= limit).all())
    _require(good, phase, f"{what} is violated by {np.abs(error).max(initial=0.0):.1e}")


def _require(condition: bool, phase: str, message: str) -> None:
    if not condition:
        raise InternalError(f"decoder self-check, {phase}: {message}")
