"""One product from beginning to end on the master: look, plan, run, decode, unscale, check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cmm.codes.base import Code
from cmm.codes.defaults import build_code
from cmm.core.errors import DataError, InaccurateError, UnverifiedError
from cmm.core.grid import Grid, Partition
from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.engine.coordinator import Coordinator, Policy
from cmm.linalg.blocks import BlockStore, Settle
from cmm.linalg.plan import CombinationPlan, Plan
from cmm.linalg.rehearse import NoiseModel
from cmm.linalg.rows import stack
from cmm.matrices.files import MatrixSource, as_source, check_exact, working_dtype
from cmm.matrices.integers import ExactSums, ExactSystem, IntegerRange, as_int64, check_bounds, integral, product_holds
from cmm.matrices.nonfinite import fill_nonfinite
from cmm.matrices.scaling import ScaledMatrix, clear_zero_lines, look_at, unscale
from cmm.runtime import stopping
from cmm.runtime.checkpoint import Checkpoint
from cmm.runtime.clock import Clock
from cmm.runtime.encoder import Encoder, ReadChunk
from cmm.runtime.judge import DEFAULT_TOLERANCE, MAX_EXTRA, TolerancePlanner
from cmm.runtime.link import MasterLink
from cmm.runtime.master import Master
from cmm.runtime.records import Saved, same_task
from cmm.runtime.report import CodeUsed, Problem, Record
from cmm.verify.freivalds import ResultCheck
from cmm.verify.product import check_product

__all__ = ["Clock", "Options", "Session", "as_source"]

OPERANDS_KEPT = 4  # coded chunks kept per side: 8 in all, the budget
SAMPLED_COLUMNS = 16  # of A and of B, for the noise model


@dataclass(frozen=True)
class Options:
    """How to compute a product; the fields are those of `cmm.core.spec.JobSpec`."""

    op: str = "T"
    code: str = "fr"
    grid: Grid | None = None
    tasks: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    dispatch: str = "pull"
    seed: int = 0
    tolerance: float | None = None
    verify: str = "all"
    give_up: float | None = None


class Session:
    """The product C = A^T B (or A^H B) of two sources.

    Parameters
    ----------
    a, b : the matrices
    options : see Options
    link : the workers; None for a single rank
    record : filled while the job runs
    clock : phases
    progress : called with (results so far, results aimed at)
    planned : grid and tasks of an earlier run, for what the options leave to be chosen

    Attributes
    ----------
    checkpoint : begun for this product's identity, or None; set before `run`
    """

    def __init__(self, a: MatrixSource, b: MatrixSource, options: Options, link: MasterLink | None, record: Record,
                 clock: Clock, progress: Callable[[int, int], None] | None = None,
                 planned: tuple[Grid, int] | None = None) -> None:  # fmt: skip
        self.planned = planned
        self.checkpoint: Checkpoint | None = None
        self.options, self.link, self.record, self.clock, self.progress = options, link, record, clock, progress
        if a.shape[0] != b.shape[0]:
            raise DataError("--b", f"must have as many rows as A ({a.shape[0]})", f"{b.shape[0]} rows in {b.name}",
                            "Transpose it, or use the matching file.")  # fmt: skip
        self.dtype = working_dtype(a.dtype, b.dtype)
        self.exact = integral(a.dtype, b.dtype)  # then C is computed exactly, in int64
        self.sources = (a, b)
        self.s, self.r, self.t = a.shape[0], a.shape[1], b.shape[1]
        record.problem = Problem(self.s, self.r, self.t, "int64" if self.exact else str(self.dtype), options.op)
        record.seed = options.seed
        self.code = self._build_code()
        record.code = CodeUsed(**self.code.describe())
        self.partition = Partition(self.code.grid, self.s, self.r, self.t)
        self.tolerance = options.tolerance or DEFAULT_TOLERANCE[self.dtype.str[1:]]

    def _build_code(self) -> Code:
        options, workers = self.options, self.link.workers if self.link else 1
        grid, tasks = options.grid, options.tasks
        if self.planned is not None:
            grid = self.planned[0] if grid is None else grid
            tasks = self.planned[1] if tasks is None and grid == self.planned[0] else tasks
        return build_code(options.code, workers, (self.s, self.r, self.t), grid=grid, tasks=tasks,
                          dispatch=options.dispatch, seed=options.seed, params=options.params,
                          complex_data=self.dtype.kind == "c", exact=self.exact)  # fmt: skip

    # ---- the phases ------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")  # results are judged; and BLAS kernels raise flags for lanes beyond the end of a vector
    def run(self) -> Array:
        """Compute C (r x t, working dtype). Raises CmmError of every kind."""
        with stopping.interruptible():
            with self.clock.phase("scale", self.record):
                self.A, self.B = self._look()
            master = self._master()
            if self.checkpoint is not None:
                with self.clock.phase("checkpoint", self.record):
                    self._restore(master, self.checkpoint)
        ready: list[int] = []
        if self.link is not None:
            ready = self.link.open((self.partition.block_rows, self.partition.block_cols), self.worker_dtype)
        try:
            master.run(ready)
        finally:
            self._account(master)
            if self.link is not None:  # touched memory for the next call
                for side, encoder in (("a", master.encode_a), ("b", master.encode_b)):
                    self.link.operands[side] = (encoder.shape, encoder.dtype, encoder.leave())
        if self.link is not None:
            self.link.stop()
        with stopping.interruptible():
            return self._finish(master)

    @property
    def form(self) -> tuple[tuple[int, int], np.dtype[Any], tuple[int, int]]:
        """What a result looks like: shape and dtype of a block, chunks of A and of B."""
        partition, grid = self.partition, self.code.grid
        return (partition.block_rows, partition.block_cols), self.worker_dtype, (grid.chunks_a, grid.chunks_b)

    def _restore(self, master: Master, checkpoint: Checkpoint) -> None:
        checkpoint.restored = master.restore(self._known_tasks(checkpoint))
        checkpoint.start()

    def _known_tasks(self, checkpoint: Checkpoint) -> Iterator[tuple[Saved, list[Array]]]:
        """What is in the checkpoint; results of fixed tasks only where the task is what the code says."""
        for saved, blocks in checkpoint.saved():
            number = saved.assignment.task
            if number >= self.code.P:
                yield saved, blocks
            elif same_task(fixed := self.code.task(number), saved.assignment):
                yield replace(saved, assignment=fixed), blocks

    def _look(self) -> tuple[ScaledMatrix, ScaledMatrix]:
        a, b = self.sources
        self.bound = self._integer_bound() if self.exact else 0
        for source in self.sources:
            check_exact(source)
        scale = not self.exact
        return look_at(a, self.dtype, self.options.op, scale=scale), look_at(b, self.dtype, scale=scale)

    def _integer_bound(self) -> int:
        """No |C_ij| is larger. Raises DataError when float64 could round."""
        weights = self.code.integer_weights
        assert weights is not None, "asked when the code was built"
        a, b = self.sources
        return check_bounds(IntegerRange.of(a), IntegerRange.of(b), *weights)

    @property
    def worker_dtype(self) -> np.dtype[Any]:
        """What workers multiply: complex when the code's coefficients are."""
        return np.result_type(self.dtype, np.complex64) if self.code.complex_coefficients else self.dtype

    def _master(self) -> Master:
        code, partition = self.code, self.partition
        decoder = code.decoder(real_data=self.dtype.kind != "c")
        judge = TolerancePlanner(decoder, self.tolerance, self._noise(), self.dtype, self.options.seed)
        workers = self.link.workers if self.link else 0
        flops = 2.0 * self.s * partition.block_rows * partition.block_cols
        policy = Policy(
            dispatch=self.options.dispatch, workers=workers, give_up=self.options.give_up, cap=self.options.tasks,
            expected_task_seconds=flops / 1e9 + 0.1, max_extra=MAX_EXTRA,
            block_seconds=3 * partition.block_rows * partition.block_cols * self.dtype.itemsize / 5e9,
        )  # fmt: skip
        order = code.order(generator(self.options.seed, "order"), workers)
        self.coordinator = Coordinator(code, decoder, policy, judge, order)
        self.store = BlockStore(partition, self.dtype)
        self.check = ResultCheck(partition, self.A, self.B) if self.options.verify == "all" else None
        return Master(self.link, self.coordinator, judge, self._encoder("a"), self._encoder("b"), self.store,
                      self.check, self.clock, self.record, self.progress, self.checkpoint)  # fmt: skip

    def _encoder(self, side: str) -> Encoder:
        partition = self.partition
        cols = partition.block_rows if side == "a" else partition.block_cols
        groups = self.code.shared_chunks[0 if side == "a" else 1]
        shape, capacity = (partition.chunk_rows, cols), max(OPERANDS_KEPT, groups)
        encoder = Encoder(self.reader(side), shape, self.worker_dtype, capacity)
        if self.link is not None and side in self.link.operands:
            old_shape, old_dtype, buffers = self.link.operands.pop(side)
            if (old_shape, old_dtype) == (shape, self.worker_dtype):
                encoder.begin_with(buffers[:capacity])
        return encoder

    def reader(self, side: str) -> ReadChunk:
        """read(chunk, first row, last row, out) for the encoder."""
        matrix, slices = (self.A, self.partition.a_slices) if side == "a" else (self.B, self.partition.b_slices)

        def read(chunk: int, start: int, stop: int, out: Array) -> None:
            rows, cols = slices(chunk)
            matrix.block(slice(rows.start + start, min(rows.start + stop, rows.stop)), cols, out=out)

        return read

    def _noise(self) -> NoiseModel:
        """How much the workers' products err, from a few sampled columns of A and B."""
        rng = generator(self.options.seed, "sample")
        samples = []
        for matrix in (self.A, self.B):
            columns = np.sort(rng.choice(matrix.shape[1], min(SAMPLED_COLUMNS, matrix.shape[1]), replace=False))
            picked = [matrix.block(slice(0, self.s), slice(int(c), int(c) + 1)) for c in columns]
            samples.append(np.concatenate(picked, axis=1) if picked else np.zeros((self.s, 0)))
        return NoiseModel.measured(samples[0], samples[1], self.worker_dtype, self.s, self.code.grid.p)

    # ---- from results to C -----------------------------------------------------------------------------------

    def _finish(self, master: Master) -> Array:
        plan = master.judge.plan
        assert plan is not None, "the coordinator asked the judge"
        C = self.store.C
        if self.exact:
            return self._finish_exact(plan)
        with self.clock.phase("decode", self.record):
            self.store.decode(plan)
            clear_zero_lines(C, self.A.norms, self.B.norms)
        if self.options.verify != "none":  # before unscaling: a product that overflows then is not at fault
            with self.clock.phase("verify", self.record):
                self._verify(C, master.judge.estimate or 0.0 if len(plan.missing) else 0.0)
        with self.clock.phase("decode", self.record):
            unscale(C, self.A.exponents, self.B.exponents)
            lines = fill_nonfinite(C, self.sources[0].array, self.sources[1].array, self.A.finite, self.B.finite)
        if lines.rows or lines.columns:
            self.record.warnings.append(
                f"{lines.rows} columns of A and {lines.columns} of B hold NaN or infinity; so do their lines of C"
            )
        return C

    def _proof(self, plan: Plan) -> Settle | None:
        """For integers: what is solved for is rounded, and must satisfy the results exactly."""
        if not len(plan.missing):
            return None
        if isinstance(plan, CombinationPlan):
            rows = stack(list(plan.rows), plan.unknowns)
            return ExactSums(plan.combination, plan.take, rows, plan.targets, self.bound).settle
        return ExactSystem(stack(list(plan.rows), plan.unknowns)[:, plan.missing], self.bound).settle

    def _finish_exact(self, plan: Plan) -> Array:
        with self.clock.phase("decode", self.record):
            proof = self._proof(plan)
            try:
                self.store.decode(plan, proof)
                result = as_int64(self.store.C)
            except InaccurateError as error:
                if self.options.verify == "all":
                    raise
                self.record.verification.passed = False
                raise UnverifiedError(
                    f"{error}, and the results were not checked. C was not written. Run again with --verify all, "
                    "which finds a worker that sends wrong ones."
                ) from error
        if self.options.verify != "none":
            with self.clock.phase("verify", self.record):
                holds = product_holds(self.sources[0].array, self.sources[1].array, result)
            checked = self.record.verification
            checked.passed, checked.residual, checked.limit = holds, 0.0 if holds else 1.0, 0.0
            checked.smallest_detected = 0.0
            if not holds:
                raise UnverifiedError("C failed its exact check modulo two primes. C was not written.")
        return result

    def _verify(self, C: Array, error: float) -> None:
        verdict = check_product(self.A, self.B, C, unscaled=False, error=error, tolerance=self.tolerance,
                                results=self.check)  # fmt: skip
        checked = self.record.verification
        checked.passed, checked.residual, checked.limit = verdict.ok, verdict.residual, verdict.limit
        checked.smallest_detected = verdict.missed
        if not verdict.ok:
            raise UnverifiedError(
                f"C failed its check: residual {verdict.residual:.1e}, limit {verdict.limit:.1e}. C was not written. "
                "Run again with --verify all, which finds the worker whose results are wrong."
            )
        if self.options.verify == "final" and verdict.missed > self.tolerance:
            self.record.warnings.append(
                f"the check of C would not see every error below {verdict.missed:.1e}, more than the tolerance: "
                "--verify all checks the single results too, more sharply"
            )

    def _account(self, master: Master) -> None:
        """Everything the report says about the run, whether it succeeded or not."""
        record, coordinator, judge = self.record, self.coordinator, master.judge
        master.unanswered()
        for rank, status in coordinator.statuses().items():
            entry = record.worker(rank)
            entry.status = status
            entry.host = self.link.hosts[rank] if self.link else ""
            entry.reason = coordinator.workers[rank].reason
        decoding, counts = record.decoding, record.counts
        decoding.results_used, decoding.overhead = coordinator.N, max(0, coordinator.N - self.code.grid.K)
        decoding.tolerance, decoding.error_estimate = self.tolerance, judge.estimate
        if judge.plan is not None:
            self._describe(judge.plan)
        counts.repairs, counts.copies = coordinator.counts.repairs, coordinator.counts.copies
        counts.results_accepted, counts.results_rejected = coordinator.counts.accepted, coordinator.counts.rejected
        counts.results_discarded = coordinator.counts.discarded
        counts.master_computed = coordinator.counts.computed
        record.verification.mode = self.options.verify
        record.verification.rejected_results = counts.results_rejected
        record.verification.checked_results = master.checked
        if self.link is not None:
            record.bytes_sent, record.bytes_received = self.link.bytes_sent, self.link.bytes_received
            counts.results_discarded += self.link.discarded

    def _describe(self, plan: Plan) -> None:
        decoding = self.record.decoding
        decoding.method, decoding.reason, decoding.missing_blocks = plan.method, plan.reason, len(plan.missing)
        decoding.rank, decoding.deficiency, decoding.condition = plan.rank, plan.deficiency, float(plan.condition)
        decoding.inactivations, decoding.refinement = plan.inactivations, plan.refinement
        decoding.block_operations = plan.block_operations
