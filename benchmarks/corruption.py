"""What the check of results finds: wrong results of every kind, and honest ones.

    python -m benchmarks.corruption [--results 1000]        each kind of fault in so many results of every dtype
    python -m benchmarks.corruption --honest 1000000        honest results: how close to the limit, and false alarms

Results are made as workers make them (the runtime's encoder and kernel, tasks of the codes) and judged by
cmm.verify.freivalds.ResultCheck as the master uses it. A wrong result that passes is counted as below the tolerance
only where no element is off by more than the check claims to see or than the job's tolerance (1e-9, or 1e-3 in single
precision, of the norms of the columns), and as missed otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cmm.codes.registry import code_class
from cmm.core.grid import Grid, Partition
from cmm.core.task import Assignment, Combination
from cmm.matrices.files import as_source
from cmm.matrices.scaling import ScaledMatrix, look_at
from cmm.runtime.encoder import Encoder
from cmm.runtime.kernel import products
from cmm.runtime.protocol import pack_program
from cmm.verify.freivalds import ResultCheck, Verdict

Array = npt.NDArray[Any]
DTYPES = ("float32", "float64", "complex64", "complex128")
TOLERANCE = {"float32": 1e-3, "complex64": 1e-3, "float64": 1e-9, "complex128": 1e-9}  # the job's defaults
KINDS = ("normal", "positive", "constant", "two values", "mixed", "heavy tails", "bad scale", "sparse", "orthogonal")
FAULTS = ("one element off by 1e-6", "one bit flipped", "zeros: the block", "zeros: a part", "swapped", "stale",
          "NaN")  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A code and a size: what a job is."""

    code: str
    grid: str
    tasks: int
    s: int
    r: int
    t: int
    dispatch: str = "oneshot"
    params: Mapping[str, Any] = field(default_factory=dict)


SETTINGS = (
    Setting("fr", "4x4", 24, 700, 90, 83),
    Setting("rkrp", "3x4", 18, 301, 61, 50, params={"systematic": "no"}),
    Setting("orthopoly", "2x3", 9, 150, 40, 200),
    Setting("entangled", "2x2x2", 12, 401, 100, 90),
    Setting("rotation", "4x2", 12, 90, 64, 48),
    Setting("sparse", "4x3", 20, 64, 128, 30),
    Setting("uncoded", "2x2", 4, 2000, 64, 64),
)


def data(kind: str, shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> Array:
    """Matrices that round in different ways (`orthogonal` is completed by the caller)."""
    reach = 30 if np.finfo(dtype).bits == 32 else 250
    make = {
        "normal": lambda: rng.normal(size=shape),
        "positive": lambda: rng.uniform(size=shape),
        "orthogonal": lambda: rng.uniform(size=shape),
        "constant": lambda: np.full(shape, rng.uniform(0.1, 1)),
        "two values": lambda: rng.choice([0.1, 0.9], size=shape),
        "mixed": lambda: np.where(np.arange(shape[1]) % 2, rng.normal(size=shape), rng.uniform(size=shape)),
        "heavy tails": lambda: rng.standard_cauchy(size=shape) ** 3,
        "bad scale": lambda: rng.normal(size=shape) * 10.0 ** rng.integers(-reach, reach, shape[1]),
        "sparse": lambda: rng.normal(size=shape) * (rng.uniform(size=shape) < 0.02),
    }[kind]
    return (make() + 1j * make() if dtype[0] == "c" else make()).astype(dtype)


class Job:
    """The master's side of a job (operands, check), and workers that multiply honestly."""

    def __init__(self, setting: Setting, kind: str, dtype: str, rng: np.random.Generator) -> None:
        s, r, t, self.dtype = setting.s, setting.r, setting.t, dtype
        A, B = data(kind, (s, r), dtype, rng), data(kind, (s, t), dtype, rng)
        if kind == "orthogonal":  # A^T B is zero, its partial sums are not
            half = s // 2
            A[half : 2 * half], B[half : 2 * half], A[2 * half :] = A[:half], -B[:half], 0
        with np.errstate(all="ignore"):
            self.a, self.b = look_at(as_source(A, "A"), np.dtype(dtype)), look_at(as_source(B, "B"), np.dtype(dtype))
        seed = int(rng.integers(1 << 30))
        self.code = code_class(setting.code)(Grid.parse(setting.grid), setting.tasks, seed, setting.dispatch,
                                             setting.params)  # fmt: skip
        self.partition = p = Partition(self.code.grid, s, r, t)
        self.wire = np.result_type(dtype, np.complex64) if self.code.complex_coefficients else np.dtype(dtype)
        self._encode = (self._encoder(self.a, p.a_slices, p.block_rows),
                        self._encoder(self.b, p.b_slices, p.block_cols))  # fmt: skip
        self.check = ResultCheck(p, self.a, self.b).prepare()

    def _encoder(self, matrix: ScaledMatrix, slices: Any, cols: int) -> Encoder:
        def read(chunk: int, start: int, stop: int, out: Array) -> None:
            rows, columns = slices(chunk)
            matrix.block(slice(rows.start + start, min(rows.start + stop, rows.stop)), columns, out=out)

        return Encoder(read, (self.partition.chunk_rows, cols), self.wire, 16)

    def operands(self, assignment: Assignment) -> tuple[list[Array], list[Array]]:
        """The coded chunks that the task's worker would receive."""
        sides = []
        for encoder, combinations in zip(self._encode, (assignment.a, assignment.b), strict=True):
            used = [encoder.use(combination) for combination in combinations]
            for operand in used:
                while not operand.step():
                    pass
                operand.users -= 1
            sides.append([operand.buffer for operand in used])
        return sides[0], sides[1]

    def work(self, assignment: Assignment) -> list[Array]:
        """The honest result, block by block."""
        a, b = self.operands(assignment)
        out = [np.empty((self.partition.block_rows, self.partition.block_cols), self.wire) for _ in assignment.outputs]
        for _ in products(a, b, pack_program(assignment.outputs), out):
            pass
        return out

    def norms(self, assignment: Assignment, output: int) -> Array:
        """What errors of the elements of an output are relative to: the product of the norms of the two coded columns,
        as if their source columns were orthogonal (the rounding of an encoder does not cancel where they do)."""
        p, squares = self.partition, np.zeros((self.partition.block_rows, self.partition.block_cols))
        for x, y in assignment.outputs[output]:
            left = _squares(assignment.a[x], self.a, p.a_slices, p.block_rows)
            squares += np.multiply.outer(left, _squares(assignment.b[y], self.b, p.b_slices, p.block_cols))
        return np.sqrt(squares)


def _squares(combination: Combination, matrix: ScaledMatrix, slices: Any, width: int) -> Array:
    total = np.zeros(width)
    for chunk, value in zip(combination.indices, combination.values, strict=True):
        columns = (np.abs(wide(matrix.block(*slices(int(chunk))))) ** 2).sum(axis=0)
        total[: len(columns)] += abs(value) ** 2 * columns
    return total


def wide(array: Array) -> Array:
    """In double precision."""
    return array.astype(np.result_type(array.dtype, np.float64))


def unseen(verdict: Verdict, honest: Verdict, norms: Array) -> Array:
    """What an error of one element that passed can have been at most, (block_rows, 1), absolute: the residual that the
    row was allowed and the one it had when it was honest, over the least |x| of 1/2, with |x| at most 1.5."""
    return 3 * (verdict.most + honest.most) * _row(norms)


# ---- faults ------------------------------------------------------------------------------------------------------


def bits(block: Array, at: int) -> Iterator[Array]:
    """The block with one bit of one real flipped: sign, exponent and the upper half of the mantissa, each in turn."""
    reals = np.finfo(block.dtype)
    width, mantissa = reals.bits, reals.nmant
    for bit in range(mantissa - mantissa // 2, width):
        found = block.copy()
        found.reshape(-1).view(f"u{width // 8}")[at] ^= np.asarray(1 << bit, f"u{width // 8}")
        yield found


def wrong(fault: str, block: Array, other: Array, earlier: Array, rng: np.random.Generator) -> Iterator[Array]:
    """Damaged copies of an honest block. `other`: another worker's result; `earlier`: an earlier job's."""
    found, at = block.copy(), int(rng.integers(block.size))
    if fault == "one element off by 1e-6":
        found.reshape(-1)[at] *= 1 + 1e-6
    elif fault == "zeros: the block":
        found[:] = 0
    elif fault == "zeros: a part":
        i, j = rng.integers(block.shape[0]), rng.integers(block.shape[1])
        found[i : i + 8, j : j + 8] = 0
    elif fault == "swapped":
        found = other
    elif fault == "stale":
        found = earlier
    elif fault == "NaN":
        reals = found.reshape(-1).view(f"f{np.finfo(block.dtype).bits // 8}")
        reals[int(rng.integers(reals.size))] = np.nan
    else:
        reals_per_element = 2 if block.dtype.kind == "c" else 1
        yield from bits(block, reals_per_element * at + int(rng.integers(reals_per_element)))
        return
    yield found


@dataclass
class Tally:
    """What became of one kind of fault in one dtype."""

    results: int = 0
    faults: int = 0
    detected: int = 0
    below: int = 0
    missed: int = 0
    largest: float = 0.0  # error that passed, relative to the norms of its columns
    of_claim: float = 0.0  # the same relative to what the check claims to see

    def judge(self, job: Job, assignment: Assignment, output: int, honest: Array, bad: Array, norms: Array,
              before: Verdict) -> None:  # fmt: skip
        """Count one damaged block; one that equals the honest block (judged `before`) is no fault."""
        if bad.tobytes() == honest.tobytes():
            return
        self.faults += 1
        verdict = job.check.check(assignment, output, bad)
        if not verdict.ok:
            self.detected += 1
            return
        with np.errstate(all="ignore"):
            error, claim = np.abs(wide(bad) - wide(honest)), unseen(verdict, before, norms)
            allowed = (error <= claim) & (error <= TOLERANCE[job.dtype] * _row(norms))  # not with a NaN
            self.largest = max(self.largest, float(np.max(error / norms, where=norms > 0, initial=0.0)))
            self.of_claim = max(self.of_claim, float(np.max(error / claim, where=claim > 0, initial=0.0)))
        self.below += bool(allowed.all())
        self.missed += not allowed.all()


def _row(norms: Array) -> Array:
    """Root of the sum of squares of every row, (block_rows, 1)."""
    return np.sqrt((norms**2).sum(axis=1, keepdims=True))


def corrupt(results: int, seed: int, dtypes: Sequence[str] = DTYPES, kinds: Sequence[str] = KINDS,
            settings: Sequence[Setting] = SETTINGS) -> dict[tuple[str, str], Tally]:  # fmt: skip
    """Every kind of fault in at least so many results of every dtype: (fault, dtype) -> tally."""
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    rng = np.random.default_rng(seed)
    for dtype in dtypes:
        while min(tallies[fault, dtype].results for fault in FAULTS) < results:
            for setting in settings:
                _one_job(setting, str(rng.choice(kinds)), dtype, rng, tallies)
    return tallies


def _one_job(setting: Setting, kind: str, dtype: str, rng: np.random.Generator,
             tallies: dict[tuple[str, str], Tally]) -> None:  # fmt: skip
    job, before = Job(setting, kind, dtype, rng), Job(setting, kind, dtype, rng)
    tasks = [job.code.task(k) for k in range(job.code.P)]
    blocks = [job.work(task) for task in tasks]
    for k, task in enumerate(tasks):
        output = int(rng.integers(len(task.outputs)))
        honest, norms = blocks[k][output], job.norms(task, output)
        verdict = job.check.check(task, output, honest)
        if not verdict.ok:
            raise RuntimeError(f"an honest result was refused: {setting}, {kind}, {dtype}")
        other, earlier = blocks[k - 1][output], before.work(before.code.task(k))[output]
        for fault in FAULTS:
            tally = tallies[fault, dtype]
            tally.results += 1
            for bad in wrong(fault, honest, other, earlier, rng):
                tally.judge(job, task, output, honest, bad, norms, verdict)


def corruption_table(tallies: Mapping[tuple[str, str], Tally]) -> list[str]:
    """As Markdown."""
    lines = ["| fault | dtype | results | faults | detected | below tolerance | missed | largest error that passed |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for (fault, dtype), t in tallies.items():
        largest = f"{t.largest:.1e}" if t.below + t.missed else "–"
        cells = (fault, dtype, t.results, t.faults, t.detected, t.below, t.missed, largest)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


# ---- honest results ----------------------------------------------------------------------------------------------


@dataclass
class Honesty:
    """Honest results: how many were refused, how many recomputed in part, and residual : limit of each."""

    ratios: list[float] = field(default_factory=list)
    refused: int = 0
    recomputed: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)


def honest(count: int, seed: int, seconds: float = float("inf")) -> dict[str, Honesty]:
    """`count` honest results in all dtypes, of random sizes, codes and data: dtype -> what the check said."""
    rng, found, until = np.random.default_rng(seed), {dtype: Honesty() for dtype in DTYPES}, time.monotonic() + seconds
    done = 0
    while done < count and time.monotonic() < until:
        dtype, kind = DTYPES[done % 4], str(rng.choice(KINDS))
        job = Job(_random_setting(rng), kind, dtype, rng)
        tally = found[dtype]
        for k in range(job.code.P):
            task = job.code.task(k)
            for output, block in enumerate(job.work(task)):
                verdict = job.check.check(task, output, block)
                tally.ratios.append(verdict.residual / verdict.limit)
                tally.refused += not verdict.ok
                tally.recomputed += verdict.examined > 0
                tally.by_kind[kind] += verdict.examined > 0
                done += 1
    return found


def _random_setting(rng: np.random.Generator) -> Setting:
    """Hundreds of small blocks of one job, so that a million take minutes."""
    code = str(rng.choice(["fr", "uncoded", "rkrp", "sparse", "orthopoly", "replication"]))
    most = 4 if code in ("orthopoly", "rkrp") else 16
    m, n = (int(x) for x in rng.integers(2, most + 1, 2))
    width, height = (int(x) for x in np.exp(rng.uniform(0, np.log(48), 2)) + 1)
    s = int(np.exp(rng.uniform(0, np.log(4000))))
    K = m * n
    tasks = {"uncoded": K, "replication": 2 * K, "orthopoly": K + 3}.get(code, K + K // 2 + 1)
    return Setting(code, f"{m}x{n}", tasks, s, m * height - int(rng.integers(m)), n * width - int(rng.integers(n)))


def honest_table(found: Mapping[str, Honesty]) -> list[str]:
    """As Markdown."""
    lines = ["| dtype | honest results | refused | recomputed in part | residual : limit, median | 99.9 % | largest |",
             "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for dtype, tally in found.items():
        middle, high, most = np.quantile(tally.ratios, [0.5, 0.999, 1.0])
        counts = f"{len(tally.ratios)} | {tally.refused} | {tally.recomputed}"
        lines.append(f"| {dtype} | {counts} | {middle:.3f} | {high:.3f} | {most:.3f} |")
    kinds = sum((tally.by_kind for tally in found.values()), Counter[str]())
    return [*lines, "", f"Recomputed, by data: {', '.join(f'{k} {v}' for k, v in kinds.most_common()) or 'none'}."]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, default=1000, help="damaged results of each kind and dtype")
    parser.add_argument("--honest", type=int, default=0, help="honest results to check instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.monotonic()
    if options.honest:
        found = honest(options.honest, options.seed)
        print("\n".join(honest_table(found)))
        wrong_ones = sum(tally.refused for tally in found.values())
    else:
        tallies = corrupt(options.results, options.seed)
        print("\n".join(corruption_table(tallies)))
        wrong_ones = sum(tally.missed for tally in tallies.values())
    print(f"\nseed {options.seed}, {time.monotonic() - start:.0f} s")
    return 1 if wrong_ones else 0


if __name__ == "__main__":
    raise SystemExit(main())
