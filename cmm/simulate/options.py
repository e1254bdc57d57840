"""Texts of the command line read into values; every refusal names flag, rule, value and remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from cmm.codes.defaults import check_code
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.core.rules import LARGEST
from cmm.core.spec import MOST_TASKS
from cmm.simulate.arrivals import Arrival
from cmm.simulate.experiment import CodeSpec, Experiment, read_tasks

MOST_POINTS = 10000
MOST_PROCESSES = 1000


def read_points(flag: str, text: str) -> list[float]:
    """`0.05,0.1,0.2` or `FROM:TO:COUNT` (both ends included). Raises UsageError."""
    try:
        if ":" in text:
            first, last, count = text.split(":")
            if not 1 <= int(count) <= MOST_POINTS:
                raise ValueError
            values = np.linspace(float(first), float(last), int(count)).tolist()
        else:
            values = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(flag, "must be numbers like 0.05,0.1 or FROM:TO:COUNT", repr(text),
                         "For example 0.2:0.36:30.") from None  # fmt: skip
    if not np.isfinite(values).all():
        raise UsageError(flag, "must be finite", repr(text), "For example 0.2:0.36:30.")
    return [float(value) for value in values]


def read_alphas(text: str) -> list[float]:
    """Straggler fractions, from 0 to below 1."""
    values = read_points("--alpha", text)
    if not all(0 <= value < 1 for value in values):
        raise UsageError("--alpha", "must be from 0 to below 1", repr(text), "For example 0.2:0.36:30.")
    return values


def read_results(text: str, code: CodeSpec) -> list[int]:
    """`7060,6480`, `K+6,K+10` (K: blocks of C) or `T,T+1` (T: the code's recovery threshold). Raises UsageError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:([KT])\s*(?:\+\s*(\d{1,9}))?|(\d{1,9}))\s*", part, re.IGNORECASE)
        if match is None:
            raise UsageError("--results", "must be whole numbers, or K or T (the recovery threshold) plus some",
                             repr(text), "For example 7060,6480 or K+6 or T.")  # fmt: skip
        if match[1]:
            start = code.blocks if match[1].upper() == "K" else code.build(0).recovery_threshold.results
            found.append(start + int(match[2] or 0))
        else:
            found.append(int(match[3]))
    return found


def read_number(flag: str, text: str, least: float = 0.0, whole: bool = False, most: float = math.inf) -> float:
    """A finite number from `least` to `most`. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and least <= value <= most) or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        bounds = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise UsageError(flag, f"must be {kind} {bounds}", repr(text), "Correct it.")
    return value


def read_count(flag: str, text: str, most: int = MOST_TASKS) -> int:
    """A whole number from 1 on: of trials, workers, processes. Raises UsageError."""
    return int(read_number(flag, text, 1, whole=True, most=most))


def read_processes(text: str | None) -> int | None:
    """None: all cores. Raises UsageError."""
    return None if text is None else read_count("--processes", text, MOST_PROCESSES)


def read_seed(text: str) -> int:
    """A seed, digit by digit. Raises UsageError."""
    if not re.fullmatch(r"\s*\d{1,19}\s*", text) or int(text) > LARGEST:
        raise UsageError("--seed", f"must be a whole number from 0 to {LARGEST:.0e}", repr(text), "Correct it.")
    return int(text)


def experiments(kind: str, options: Any) -> list[Experiment]:
    """Every code × arrival model × decoder × point of the command line."""
    found: list[Experiment] = []
    for text in options.code:
        code = CodeSpec.parse(text, options.grid, read_tasks(options.tasks))
        check_code(code.name, Grid.parse(code.grid), code.tasks, code.dispatch, dict(code.params), 1)
        for arrival in arrivals(options):
            for decoder in options.decoder:
                for results in points(kind, options, code, arrival):
                    errors = options.errors and not decoder.startswith("peeling")
                    found.append(Experiment(kind, code, arrival, decoder, results, read_seed(options.seed), errors))
    return list(dict.fromkeys(found))


def arrivals(options: Any) -> list[Arrival]:
    """The arrival models; `systematic` without a number is one for every α."""
    found: list[Arrival] = []
    for text in options.arrival:
        if text.strip().lower() == "systematic":
            if options.alpha is None:
                raise UsageError("--arrival", "systematic needs a LOSS, or --alpha", text, "Use systematic:0.1.")
            found += [Arrival("systematic", alpha) for alpha in read_alphas(options.alpha)]
        else:
            found.append(Arrival.parse(text))
    return found


def points(kind: str, options: Any, code: CodeSpec, arrival: Arrival) -> Sequence[int | None]:
    """N of every point: from --results, or from --alpha as P − αP."""
    if kind == "threshold":
        return [None]
    if options.results is not None:
        if options.alpha is not None and arrival.kind != "systematic":
            raise UsageError("--alpha", "means N = P - alpha P, which --results gives already", repr(options.alpha),
                             "Give one of them.")  # fmt: skip
        return read_results(options.results, code)
    if options.alpha is None or arrival.kind == "systematic":
        raise UsageError("--results", f"must be given for arrival {arrival.kind}", "nothing",
                         "Give --results N, or --alpha for models of P tasks.")  # fmt: skip
    return [code.tasks - round(alpha * code.tasks) for alpha in read_alphas(options.alpha)]
