"""Tasks, data and workers' results for the linear algebra tests: products of encoded chunks, made with NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cmm.core.grid import Grid, Partition
from cmm.core.task import Array, Assignment, Combination
from cmm.linalg.blocks import BlockStore
from cmm.linalg.decoder import Decoder
from cmm.linalg.rows import CodedRow, Targets, rows_of


def row(indices: Iterable[int], values: Iterable[complex]) -> CodedRow:
    """A row without factors; indices increasing."""
    return CodedRow(np.array(list(indices), dtype=np.intp), np.array(list(values)))


def coefficients(rng: np.random.Generator, size: int, phases: bool = False) -> Array:
    """± uniform[0.5, 1.5], with random phases on demand."""
    values = rng.choice([-1.0, 1.0], size) * rng.uniform(0.5, 1.5, size)
    return values * np.exp(2j * np.pi * rng.random(size)) if phases else values


def block_tasks(grid: Grid) -> list[Assignment]:
    """The source blocks (p = 1)."""
    return [
        Assignment.pair(u, Combination.unit(u // grid.n), Combination.unit(u % grid.n), grid.n) for u in range(grid.K)
    ]


def random_tasks(grid: Grid, rng: np.random.Generator, first: int, count: int, *, degree: int | None = None,
                 support: tuple[Array, Array] | None = None, phases: bool = False) -> list[Assignment]:  # fmt: skip
    """`count` tasks a (x) b, each over `degree` random chunks a side (None: all), or over the given supports."""
    tasks = []
    for task in range(first, first + count):
        sides = []
        for side, chunks in enumerate((grid.chunks_a, grid.chunks_b)):
            chosen = (
                rng.choice(chunks, min(degree or chunks, chunks), replace=False) if support is None else support[side]
            )
            sides.append(Combination.of(chosen, coefficients(rng, len(chosen), phases)))
        tasks.append(Assignment.pair(task, sides[0], sides[1], grid.chunks_b))
    return tasks


def rounds(grid: Grid, rng: np.random.Generator, first: int, count: int, groups: tuple[int, int]) -> list[Assignment]:
    """`count` rounds of (A-group, B-group) pairs that share their combinations."""
    tasks: list[Assignment] = []
    for _ in range(count):
        sides = [
            [
                Combination.of(part, coefficients(rng, len(part)))
                for part in np.array_split(rng.permutation(chunks), parts)
            ]
            for chunks, parts in zip((grid.m, grid.n), groups, strict=True)
        ]
        tasks += [Assignment.pair(first + len(tasks) + k, a, b, grid.n)
                  for k, (a, b) in enumerate((a, b) for a in sides[0] for b in sides[1])]  # fmt: skip
    return tasks


def draw(rng: np.random.Generator, shape: tuple[int, int], dtype: str, positive: bool = False) -> Array:
    """Gaussian data, or uniform[0, 1] (correlated columns)."""
    kind: np.dtype[Any] = np.dtype(dtype)

    def part() -> Array:
        return rng.random(shape) if positive else rng.standard_normal(shape)

    return (part() + 1j * part() if kind.kind == "c" else part()).astype(kind)


@dataclass
class Bench:
    """Workers, decoder and store of one product; results go to both as in a run."""

    A: Array
    B: Array
    grid: Grid
    realify: bool = False
    out: Array | None = None
    decoder: Decoder = field(init=False)
    store: BlockStore = field(init=False)

    def __post_init__(self) -> None:
        self.partition = Partition(self.grid, len(self.A), self.A.shape[1], self.B.shape[1])
        self.decoder = Decoder(self.grid.unknowns, Targets.blocks(self.grid), realify=self.realify)
        self.store = BlockStore(self.partition, self.A.dtype, self.out)

    def result(self, assignment: Assignment, output: int = 0) -> Array:
        """What a worker returns: encoding accumulates in double precision, the product is in the job's precision."""
        part, total = self.partition, 0
        for x, y in assignment.outputs[output]:
            a = self._coded(self.A, part.a_slices, assignment.a[x], (part.chunk_rows, part.block_rows))
            b = self._coded(self.B, part.b_slices, assignment.b[y], (part.chunk_rows, part.block_cols))
            total = total + a.T @ b
        return np.asarray(total)

    def _coded(self, matrix: Array, slices: Any, combination: Combination, shape: tuple[int, int]) -> Array:
        wide = np.result_type(combination.values, matrix, np.float64)
        out = np.zeros(shape, dtype=wide)
        for index, value in zip(combination.indices.tolist(), combination.values, strict=True):
            chunk = matrix[slices(index)]
            out[: chunk.shape[0], : chunk.shape[1]] += value * chunk
        phases = np.iscomplexobj(combination.values)
        return out.astype(np.result_type(matrix.dtype, np.complex64) if phases else matrix.dtype)

    def receive(self, assignment: Assignment) -> None:
        rows = rows_of(assignment)
        for output, coded in enumerate(rows):
            self.store.put((assignment.task, output), self.result(assignment, output), coded)
        self.decoder.add(assignment.task, rows)

    def run(self, tasks: Iterable[Assignment]) -> int:
        """Receive results until C is decodable, decode, and return N. Fails when they never suffice."""
        for assignment in tasks:
            if self.decoder.decodable():
                break
            self.receive(assignment)
        self.store.decode(self.decoder.plan())
        return self.decoder.results

    def error(self) -> float:
        """max |C - A^T B|_ij / (|A_i| |B_j|) against a product in higher precision."""
        if not self.store.C.size:
            return 0.0
        single = self.A.dtype.char in "fF"
        wide = np.result_type(self.A.dtype, np.float64 if single else np.longdouble)
        exact = self.A.astype(wide).T @ self.B.astype(wide)
        norms = [np.linalg.norm(x.astype(np.complex128), axis=0) for x in (self.A, self.B)]
        return float((np.abs(self.store.C - exact) / np.multiply.outer(*norms)).max())
