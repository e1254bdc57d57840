"""Memory that each rank will need, before anything is computed (design, budgets: stated before the run for every code).

Pure arithmetic on shapes: bytes of the buffers that grow with the matrices, without the interpreter and its libraries
(about 100 MB a rank). What can be said only as a bound is a bound, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmm.codes.base import Code
from cmm.core.grid import Partition

DOUBLE = 8  # bytes


@dataclass(frozen=True)
class Buffers:
    """How many buffers the runtime keeps.

    operands : coded chunks a side that the master keeps at least
    receiving : results of one task each that may be on their way in
    window : tasks that a worker may hold
    decoding : blocks of working space of the numeric phase
    workspace : bytes it takes at least
    """

    operands: int = 4
    receiving: int = 4
    window: int = 2
    decoding: int = 8
    workspace: int = 8 << 20


@dataclass(frozen=True)
class TaskShape:
    """What one task carries: coded operands of A and of B, and result blocks."""

    parts_a: int
    parts_b: int
    outputs: int

    @classmethod
    def of(cls, code: Code) -> TaskShape:
        """The largest of the first and the last fixed task (systematic tasks carry one of each)."""
        tasks = [code.task(index) for index in {0, code.P - 1}]
        return cls(max(len(t.a) for t in tasks), max(len(t.b) for t in tasks), max(len(t.outputs) for t in tasks))


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes per rank.

    Attributes
    ----------
    a, b : the inputs as the master holds or maps them
    c : the result
    coded : coded chunks that the master keeps, both sides
    receiving : result blocks on their way in
    surplus : results that wait for decoding and find no empty slot of C; a bound for the typical N
    decoding : working space of the numeric phase
    checks : vectors of the Freivalds checks
    credit : what one worker that has stopped answering keeps occupied on the master
    worker : all buffers of one worker
    workers : W
    """

    a: int
    b: int
    c: int
    coded: int
    receiving: int
    surplus: int
    decoding: int
    checks: int
    credit: int
    worker: int
    workers: int

    @property
    def beyond(self) -> int:
        """What the master needs beyond A, B and C while all workers answer."""
        return self.coded + self.receiving + self.surplus + self.decoding + self.checks

    def master(self, unresponsive: int = 0) -> int:
        """All of the master's bytes with so many workers that have stopped answering."""
        return self.a + self.b + self.c + self.beyond + min(unresponsive, self.workers) * self.credit

    def lines(self) -> list[str]:
        """For `--dry-run`: one line a rank and its parts."""
        parts = [("coded chunks", self.coded), ("arriving results", self.receiving), ("waiting results", self.surplus),
                 ("decoding", self.decoding), ("checks", self.checks)]  # fmt: skip
        beyond = ", ".join(f"{name} {size_text(size)}" for name, size in parts if size)
        text = [
            f"master     {size_text(self.master())}: A {size_text(self.a)}, B {size_text(self.b)}, "
            f"C {size_text(self.c)}, {beyond}"
        ]
        if self.workers:
            text += [f"           and {size_text(self.credit)} for every worker that stops answering",
                     f"worker     {size_text(self.worker)}"]  # fmt: skip
        return text


def memory_forecast(partition: Partition, code: Code, workers: int, *, itemsize: int, input_itemsizes: tuple[int, int],
                    wire_itemsize: int | None = None, verify: str = "all", task: TaskShape | None = None,
                    buffers: Buffers | None = None) -> MemoryForecast:  # fmt: skip
    """Bytes per rank of a job.

    Parameters
    ----------
    partition : the sizes and how they are cut
    code : gives task shapes, thresholds and shared chunks
    workers : W; 0 when the master works alone
    itemsize : of C
    input_itemsizes : of A and B as stored
    wire_itemsize : of coded chunks and results; None: twice `itemsize` when the coefficients are complex, else the same
    verify : "none", "final" or "all": the checks of results keep vectors
    task : operands and outputs of the largest task; None: read off the code
    buffers : how many the runtime keeps
    """
    task, buffers = task or TaskShape.of(code), buffers or Buffers()
    wire = wire_itemsize or itemsize * (2 if code.complex_coefficients else 1)
    a, b = (partition.chunk_rows * side * wire for side in (partition.block_rows, partition.block_cols))
    block = partition.block_rows * partition.block_cols * wire
    operands = task.parts_a * a + task.parts_b * b
    shared = code.shared_chunks
    return MemoryForecast(
        a=partition.s * partition.r * input_itemsizes[0],
        b=partition.s * partition.t * input_itemsizes[1],
        c=partition.r * partition.t * itemsize,
        coded=max(buffers.operands, shared[0], task.parts_a) * a + max(buffers.operands, shared[1], task.parts_b) * b,
        receiving=(buffers.receiving if workers else 1) * task.outputs * block,
        surplus=_surplus(code, task) * block,
        decoding=max(buffers.workspace, buffers.decoding * block),
        checks=_checks(partition) if verify == "all" else 0,
        credit=buffers.window * operands,
        worker=buffers.window * (operands + task.outputs * block) if workers else 0,
        workers=workers,
    )


def results_bytes(code: Code, partition: Partition, itemsize: int) -> int:
    """Bytes of the results that a job typically needs, as a checkpoint keeps them. itemsize: of results."""
    return _blocks_needed(code, TaskShape.of(code)) * partition.block_rows * partition.block_cols * itemsize


def _blocks_needed(code: Code, task: TaskShape) -> int:
    """Result blocks at the recovery threshold."""
    return code.recovery_threshold.results * task.outputs


def _surplus(code: Code, task: TaskShape) -> int:
    """Blocks that wait outside C: results beyond its K slots. Without direct results (p > 1) all of them wait."""
    results = _blocks_needed(code, task)
    return results if code.grid.p > 1 else max(0, results - code.grid.K)


def _checks(partition: Partition) -> int:
    """Freivalds: u_j for every chunk of B and w_ij for every pair of chunks, and norms, in double precision."""
    grid = partition.grid
    u = partition.s * grid.n
    w = grid.chunks_a * grid.chunks_b * partition.block_rows
    return (u + w + 2 * grid.chunks_a * partition.block_rows) * DOUBLE


def size_text(size: float) -> str:
    """Bytes as a person reads them, to three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
