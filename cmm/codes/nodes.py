"""Evaluation nodes of the codes that interpolate, and what they share.

    equispaced   -1 ... 1, the real nodes of most experiments in papers: the condition grows like 5^K
    chebyshev    cos((2i + 1) pi / 2P): much better, but still exponential for monomials
    circle       P points of the unit circle, complex. Real data: of its upper half, e^(i pi (2k + 1) / 2P). A result
                 then gives the value at the conjugate node too (its own conjugate), so half as many results decode,
                 and conjugate nodes, which would repeat each other, are left out. Complex data (data=complex):
                 e^(2 pi i k / P)
    x1,x2,...    P distinct real numbers

Task i has the node whose place among all is that of i / golden ratio (its fractional part) among those of all tasks:
the first N of P nodes are then spread over the whole range, whatever N is, and not the left part of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cmm.codes.base import Parameter
from cmm.codes.coefficients import one_of
from cmm.core.errors import UsageError
from cmm.core.task import Array, IntArray

GOLDEN = (math.sqrt(5) - 1) / 2
KINDS = ("equispaced", "chebyshev", "circle")
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"


def read_nodes(text: str) -> str:
    """Check a kind of nodes or a list of real numbers."""
    word = re.sub(r"\s", "", text).lower()
    if word not in KINDS and not re.fullmatch(f"{_NUMBER}(,{_NUMBER})*", word):
        raise ValueError(f"Choose one of {', '.join(KINDS)}, or write numbers as in -0.9,-0.3,0.3,0.9.")
    numbers = [] if word in KINDS else [float(number) for number in word.split(",")]
    if len(set(numbers)) < len(numbers) or not all(map(math.isfinite, numbers)):
        raise ValueError("Numbers must be distinct and finite: a repeated node makes the system singular.")
    return word


NODE_PARAMETERS: Mapping[str, Parameter] = {
    "nodes": Parameter(read_nodes, "chebyshev", "equispaced, chebyshev, circle (complex), or P distinct real numbers"),
    "data": Parameter(one_of("real", "complex"), "real", "what A and B hold; matters for nodes=circle only"),
}


def halves(params: Mapping[str, Any]) -> bool:
    """Whether every (complex) result of real data counts as two."""
    return bool(params["nodes"] == "circle" and params["data"] == "real")


def spread(count: int) -> IntArray:
    """A permutation of range(count) whose every beginning is spread over it."""
    places = np.arange(count) * GOLDEN % 1.0
    return np.argsort(np.argsort(places))


def chebyshev(count: int) -> Array:
    """Zeros of the Chebyshev polynomial T_count, decreasing."""
    return np.cos((2 * np.arange(count) + 1) * np.pi / (2 * count))


def node_set(count: int, params: Mapping[str, Any]) -> Array:
    """The nodes of tasks 0 ... count - 1: (count,) float64 or complex128.

    Raises UsageError for a list of another length; repetitions `read_nodes` has refused.
    """
    kind = params["nodes"]
    if kind not in KINDS:
        return _listed(kind, count)
    numbers = spread(count)
    if kind == "equispaced":
        return np.asarray(np.linspace(-1.0, 1.0, count)[numbers])
    if kind == "chebyshev":
        return np.asarray(chebyshev(count)[numbers])
    turns = (2 * numbers + 1) / (4 * count) if halves(params) else numbers / count
    return np.asarray(np.exp(2j * np.pi * turns))


def _listed(text: str, count: int) -> Array:
    nodes = np.array([float(word) for word in text.split(",")])
    if len(nodes) != count:
        raise UsageError("--param nodes", f"must be one node a task, {count} of them", f"{len(nodes)} nodes",
                         f"Use --tasks {len(nodes)}, or nodes=chebyshev.")  # fmt: skip
    return nodes
