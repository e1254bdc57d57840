"""What a worker is asked to do: combinations of chunks, and products of them (design: the bilinear task).

An assignment names some coded operands of A, some of B, and one or more output rows; each output row is a sum of
products Ã_x^T B̃_y over pairs (x, y) of those operands:

    output_q = sum over (x, y) in outputs[q] of  (sum_i a_x[i] A_i)^T (sum_j b_y[j] B_j)

so over the unknown products A_i^T B_j, output row q is the sparse row  sum of a_x (kron) b_y.  Most schemes have one
operand a side and one output with one pair; rotation codes 2 + 2 operands and 4 outputs; sparse codes one output with
several pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Combination:
    """A sparse linear combination of chunks.

    Attributes
    ----------
    indices : intp array, strictly increasing chunk numbers
    values : float64 or complex128 array of the same length, the coefficients (none of them zero)
    """

    indices: IntArray
    values: Array

    @classmethod
    def of(cls, indices: Iterable[int] | IntArray, values: Iterable[complex] | Array) -> Combination:
        """Build from any order of indices; zero coefficients are dropped."""
        ids = np.asarray(indices, dtype=np.intp).ravel()
        raw = np.asarray(values)
        vals = raw.astype(np.complex128 if np.iscomplexobj(raw) else np.float64).ravel()
        order = np.argsort(ids, kind="stable")
        order = order[vals[order] != 0]
        return cls(ids[order], vals[order])

    @classmethod
    def unit(cls, index: int) -> Combination:
        """The chunk itself."""
        return cls(np.array([index], dtype=np.intp), np.ones(1))

    @property
    def is_unit(self) -> bool:
        return len(self.indices) == 1 and self.values[0] == 1

    @property
    def key(self) -> bytes:
        """Hashable identity: equal keys mean the same coded chunk."""
        return self.indices.tobytes() + b"|" + self.values.tobytes()

    @property
    def degree(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Assignment:
    """One task: coded operands and the output rows made of them (see the module's formula).

    Attributes
    ----------
    task : the task's number, unique in a job
    a, b : coded operands of A and of B
    outputs : for every output row its pairs (index into a, index into b)
    systematic : the unknown product this task *is* (one output, unit operands), or None
    """

    task: int
    a: tuple[Combination, ...]
    b: tuple[Combination, ...]
    outputs: tuple[tuple[tuple[int, int], ...], ...] = (((0, 0),),)
    systematic: int | None = None
    unknowns_b: int = field(default=0, repr=False)  # p * n: the stride of unknown numbers

    @classmethod
    def pair(cls, task: int, a: Combination, b: Combination, chunks_b: int) -> Assignment:
        """The common case: one pair, one output."""
        unit = a.is_unit and b.is_unit
        return cls(task, (a,), (b,), systematic=int(a.indices[0]) * chunks_b + int(b.indices[0]) if unit else None,
                   unknowns_b=chunks_b)  # fmt: skip

    def coefficients(self, output: int) -> tuple[IntArray, Array]:
        """Row of the coefficient matrix M for one output: (unknown numbers, coefficients), numbers increasing."""
        parts = [self._kron(self.a[x], self.b[y]) for x, y in self.outputs[output]]
        if len(parts) == 1:
            return parts[0]
        return _merge(parts)

    def _kron(self, a: Combination, b: Combination) -> tuple[IntArray, Array]:
        indices = (a.indices[:, None] * self.unknowns_b + b.indices[None, :]).ravel()
        return indices, np.multiply.outer(a.values, b.values).ravel()


def _merge(parts: Sequence[tuple[IntArray, Array]]) -> tuple[IntArray, Array]:
    indices = np.concatenate([ids for ids, _ in parts])
    values = np.concatenate([vals for _, vals in parts])
    unique, inverse = np.unique(indices, return_inverse=True)
    sums = np.zeros(len(unique), dtype=values.dtype)
    np.add.at(sums, inverse, values)
    return unique, sums
