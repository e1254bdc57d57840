"""Plays the workers: multiplies what an assignment asks for, loses what the test loses, and decodes the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cmm.codes.base import Code
from cmm.core.grid import Partition
from cmm.core.rng import generator
from cmm.core.task import Array, Assignment, Combination
from cmm.linalg.blocks import BlockStore
from cmm.linalg.decoder import Decoder, DecodingError
from cmm.linalg.plan import Plan
from cmm.linalg.rehearse import NoiseModel, rehearse


def matrices(seed: int, s: int, r: int, t: int, dtype: npt.DTypeLike = np.float64) -> tuple[Array, Array]:
    """Two Gaussian matrices (s x r and s x t)."""
    rng = generator(seed, "matrices")
    drawn = [rng.standard_normal((s, columns)) + 1j * rng.standard_normal((s, columns)) for columns in (r, t)]
    if np.dtype(dtype).kind != "c":
        drawn = [part.real for part in drawn]
    return drawn[0].astype(dtype), drawn[1].astype(dtype)


@dataclass
class Workers:
    """All workers at once: the products of coded chunks, padded, in the dtype of A and B."""

    A: Array
    B: Array
    partition: Partition
    _coded: dict[tuple[str, bytes], Array] = field(default_factory=dict)

    def results(self, assignment: Assignment) -> list[Array]:
        """One padded block (block_rows, block_cols) per output row."""
        blocks = []
        for pairs in assignment.outputs:
            terms = [self._chunk("a", assignment.a[x]).T @ self._chunk("b", assignment.b[y]) for x, y in pairs]
            blocks.append(np.sum(terms, axis=0, dtype=terms[0].dtype))
        return blocks

    def _chunk(self, side: str, combination: Combination) -> Array:
        key = side, combination.key
        if key not in self._coded:
            self._coded[key] = self._encode(side, combination)
        return self._coded[key]

    def _encode(self, side: str, combination: Combination) -> Array:
        matrix, slices, width = (
            (self.A, self.partition.a_slices, self.partition.block_rows) if side == "a"
            else (self.B, self.partition.b_slices, self.partition.block_cols)
        )  # fmt: skip
        out = np.zeros((self.partition.chunk_rows, width), np.result_type(matrix.dtype, combination.values.dtype))
        for index, value in zip(combination.indices.tolist(), combination.values, strict=True):
            part = matrix[slices(index)]
            out[: part.shape[0], : part.shape[1]] += value * part
        if np.iscomplexobj(combination.values) and not np.iscomplexobj(matrix):
            return out.astype(np.result_type(matrix.dtype, np.complex64), copy=False)
        return out.astype(matrix.dtype, copy=False)


@dataclass
class Job:
    """One job: results go to the decoder (coefficients) and the store (blocks), as in the runtime."""

    code: Code
    A: Array
    B: Array
    arrived: list[int] = field(default_factory=list)
    repairs: int = 0

    def __post_init__(self) -> None:
        self.partition = Partition(self.code.grid, self.A.shape[0], self.A.shape[1], self.B.shape[1])
        self.workers = Workers(self.A, self.B, self.partition)
        self.decoder: Decoder = self.code.decoder(real_data=self.A.dtype.kind != "c")
        self.store = BlockStore(self.partition, self.A.dtype)

    def receive(self, assignment: Assignment) -> None:
        """Compute one assignment and accept its result."""
        rows = self.code.rows(assignment)
        for q, (block, row) in enumerate(zip(self.workers.results(assignment), rows, strict=True)):
            self.store.put((assignment.task, q), block, row)
        self.decoder.add(assignment.task, rows)
        self.arrived.append(assignment.task)

    def receive_until_decodable(self, tasks: Iterable[int]) -> bool:
        """Accept these tasks' results one after the other until C can be decoded. Whether it can."""
        for task in tasks:
            if self.decoder.decodable():
                break
            self.receive(self.code.task(task))
        return self.decoder.decodable()

    def repair_until_decodable(self, extra: int = 4) -> None:
        """Repairs for what is outstanding, at most as many as that and `extra`."""
        outstanding = self.decoder.outstanding()
        for _ in range(len(outstanding) + extra):
            if self.decoder.decodable():
                return
            self.receive(self.code.repair(self.decoder.outstanding(), self.code.P + self.repairs))
            self.repairs += 1

    def decode(self) -> tuple[Array, Plan]:
        """C and the plan that made it."""
        plan = self.decoder.plan()
        self.store.decode(plan)
        return self.store.C, plan

    def error(self) -> float:
        """Largest |C - A^T B|_ij relative to |A_i| |B_j|, against a product in higher precision."""
        return relative_error(self.store.C, self.A, self.B)


def relative_error(C: Array, A: Array, B: Array) -> float:
    """max |C - A^T B|_ij / (|A_i| |B_j|); zero columns demand exact zeros."""
    if not C.size:
        return 0.0
    wide = np.clongdouble if A.dtype.kind == "c" else np.longdouble
    exact = A.T.astype(wide) @ B.astype(wide)
    scale = np.outer(np.linalg.norm(A.astype(wide), axis=0), np.linalg.norm(B.astype(wide), axis=0)).astype(float)
    return float((np.abs(C - exact).astype(float) / np.where(scale == 0, np.finfo(float).tiny, scale)).max())


def failure(decoder: Decoder) -> DecodingError:
    """The refusal of a decoder that cannot decode yet."""
    try:
        decoder.plan()
    except DecodingError as error:
        return error
    raise AssertionError("a plan was made of too few results")


def sources(plan: Plan) -> set[int]:
    """Tasks whose results a plan uses."""
    return {task for task, _ in plan.sources} | {key[0] for key, _ in plan.direct.values()}


def lose(tasks: Sequence[int], share: float, rng: np.random.Generator) -> list[int]:
    """The tasks whose results arrive, in random order, when each is lost with this probability."""
    shuffled = rng.permutation(np.asarray(tasks, dtype=np.intp))
    kept: list[int] = shuffled[rng.random(len(tasks)) >= share].tolist()
    return kept


def estimate(job: Job, plan: Plan) -> float:
    """The error estimate as the runtime makes it: rehearsed, from column statistics of A and B."""
    noise = NoiseModel.measured(job.A, job.B, job.A.dtype, split=job.partition.grid.p)
    return rehearse(plan, noise=noise, dtype=job.A.dtype, rng=generator(0, "rehearsal"))
