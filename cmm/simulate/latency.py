"""Time to C under models of workers: every scheme and dispatch on the same problem, machine and stragglers.

    from cmm.simulate.latency import Latency, run_latency
    run_latency(Latency("fr/pull", workers=1000, model="shifted-exponential:1@worker"), trial=0)

The coordinator, the codes, the decoders and the judge of accuracy are those of the runtime; only time is simulated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from cmm.codes.base import Code
from cmm.codes.defaults import build_code
from cmm.codes.registry import CODES
from cmm.codes.sizes import squarest
from cmm.core.errors import Refusal, UsageError
from cmm.core.grid import Grid, Partition
from cmm.core.rng import generator
from cmm.engine import events as ev
from cmm.engine.coordinator import Coordinator, Policy
from cmm.linalg.rehearse import NoiseModel
from cmm.runtime.judge import MAX_EXTRA, TolerancePlanner
from cmm.simulate.clock import Clock, Run, TaskCosts, Work
from cmm.simulate.experiment import HASH_DIGITS, parse_code, read_tasks
from cmm.simulate.profile import PROFILES, MachineProfile
from cmm.simulate.rows import CsvFile, read_cell
from cmm.simulate.workers import Population, parse_models

OPERANDS_KEPT = 4  # coded chunks a side, as the runtime
MANY = 200  # workers
MOST_WORKERS = 100_000  # each has its books, and a job takes minutes to simulate from there on
LIMIT = 1e4  # units of time after which a run is given up
NAMES = {"uncoded/pull": "uncoded (pull)", "uncoded/oneshot": "uncoded (oneshot)",
         "replication/pull": "uncoded + backup copies (replication, pull)",
         "replication/oneshot": "replication (oneshot)"}  # fmt: skip


@dataclass(frozen=True)
class Latency:
    """One scheme under one model.

    Attributes
    ----------
    scheme : NAME[/DISPATCH][:KEY=VALUE,...]; grid= and tasks= are chosen as the runtime does when left out
    workers : W
    model : of stragglers, see workers.py
    size : s, r, t of A (s × r) and B (s × t)
    profile : of the machine
    tolerance : of the estimated error, as the runtime
    seed : of code and stragglers
    """

    scheme: str
    workers: int = 1000
    model: str = "shifted-exponential:1@worker"
    size: tuple[int, int, int] = (100_000, 100_000, 100_000)
    profile: MachineProfile = PROFILES["default"]
    tolerance: float = 1e-9
    seed: int = 0

    def __post_init__(self) -> None:
        split_scheme(self.scheme)
        parse_models(self.model)
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError("--workers", f"must be from 1 to {MOST_WORKERS}", self.workers, "Correct it.")
        if min(self.size) < 1:
            raise UsageError("--size", "must be at least 1", self.size, "Raise it.")

    @property
    def name(self) -> str:
        """Of the scheme, for tables."""
        name, dispatch, params = split_scheme(self.scheme)
        plain = NAMES.get(f"{name}/{dispatch}", f"{name} ({dispatch})")
        return plain + (" " + ", ".join(f"{k}={v}" for k, v in params.items()) if params else "")

    @property
    def unit(self) -> float:
        """Seconds of the whole product on all workers undisturbed."""
        return 2.0 * math.prod(self.size) / (self.workers * self.profile.gemm)

    @property
    def key(self) -> str:
        """Content hash."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]

    def build(self, seed: int) -> Code:
        """The code, with grid, P and parameters as the runtime would choose. Raises UsageError."""
        name, dispatch, params = split_scheme(self.scheme)
        grid = Grid.parse(params.pop("grid")) if "grid" in params else None
        tasks = read_tasks(params.pop("tasks")) if "tasks" in params else None
        return build_code(name, self.workers, self.size, grid=grid, tasks=tasks, dispatch=dispatch, seed=seed,
                          params=params)  # fmt: skip


def split_scheme(text: str) -> tuple[str, str, dict[str, str]]:
    """(code, dispatch, parameters). Raises UsageError."""
    head, colon, rest = text.partition(":")
    name, _, dispatch = head.partition("/")
    if dispatch not in ("", "pull", "oneshot"):
        raise UsageError("--scheme", "must be NAME, NAME/pull or NAME/oneshot", repr(text), "For example fr/pull.")
    name, params = parse_code(name + colon + rest)
    return name, dispatch or "pull", params


def all_schemes(workers: int) -> list[str]:
    """Every registered code with both dispatches, and replication with two copies of every block.

    With many workers LT codes get one coded chunk a task in place of eight: their plan is made from all symbols.
    """
    few = {"lt": ":rows=1"} if workers > MANY else {}
    schemes = [f"{name}/{d}{few.get(name, '')}" for name in sorted(CODES) for d in ("pull", "oneshot")]
    if workers >= 2:
        grid = squarest(workers // 2, workers, workers)
        schemes.append(f"replication/oneshot:grid={grid},tasks={2 * grid.K}")
    return schemes


@dataclass(frozen=True)
class LatencyResult:
    """One simulated job. Times in seconds.

    Attributes
    ----------
    outcome : complete, incomplete, inaccurate, refused, or "time is up"
    total : until C is decoded; collect: until the last needed result was in
    decode, encode, send, receive, compute : the master's (send without encoding)
    load : share of the collecting time the master was busy
    sent, received : bytes
    K, P, N : blocks, tasks, results used
    issued, repairs, copies, discarded, computed : tasks (computed: by the master)
    work : seconds of all finished tasks of workers
    unit : seconds of the whole product on all workers undisturbed
    remark : why it failed or was refused
    """

    outcome: str
    total: float = math.nan
    collect: float = math.nan
    decode: float = 0.0
    encode: float = 0.0
    send: float = 0.0
    receive: float = 0.0
    compute: float = 0.0
    load: float = 0.0
    sent: int = 0
    received: int = 0
    K: int = 0
    P: int = 0
    N: int = 0
    issued: int = 0
    repairs: int = 0
    copies: int = 0
    discarded: int = 0
    computed: int = 0
    missing: int = 0
    work: float = 0.0
    unit: float = math.nan
    grid: str = ""
    remark: str = ""


def run_latency(spec: Latency, trial: int = 0) -> LatencyResult:
    """Simulate one job; refusals and failures are outcomes, not exceptions."""
    rng = generator(spec.seed, "latency", trial)
    code_seed, straggler_seed = (int(x) for x in rng.integers(2**62, size=2))
    try:
        code = spec.build(code_seed)
        partition = Partition(code.grid, *spec.size)
    except Refusal as refused:
        return LatencyResult("refused", remark=str(refused), unit=spec.unit)
    population = Population(parse_models(spec.model), spec.workers, straggler_seed, spec.unit)
    costs = _costs(spec, code, partition)
    judge, coordinator = _coordinator(spec, code, partition, costs)
    ended = Clock(coordinator, costs, spec.profile, population).run(LIMIT * spec.unit)
    return _result(spec, code, coordinator, judge, costs, ended)


def _costs(spec: Latency, code: Code, partition: Partition) -> TaskCosts:
    kept = max(OPERANDS_KEPT, code.shared_chunks[0]), max(OPERANDS_KEPT, code.shared_chunks[1])
    cx = code.complex_coefficients
    return TaskCosts(partition, spec.profile, 16 if cx else 8, kept, 4.0 if cx else 1.0)


def _coordinator(spec: Latency, code: Code, partition: Partition,
                 costs: TaskCosts) -> tuple[TolerancePlanner, Coordinator]:  # fmt: skip
    """As Session._master makes it."""
    decoder = code.decoder(real_data=True)
    noise = NoiseModel.for_dtype(np.float64, spec.size[0], 1 / math.sqrt(spec.size[0]), code.grid.p)
    judge = TolerancePlanner(decoder, spec.tolerance, noise, np.dtype(np.float64), code.seed % 2**31)
    flops = 2.0 * spec.size[0] * partition.block_rows * partition.block_cols
    policy = Policy(dispatch=code.dispatch, workers=spec.workers, expected_task_seconds=flops / 1e9 + 0.1,
                    max_extra=MAX_EXTRA, block_seconds=spec.profile.axpy(costs.block))  # fmt: skip
    order = code.order(generator(code.seed, "order"), spec.workers)
    return judge, Coordinator(code, decoder, policy, judge, order)


def _result(spec: Latency, code: Code, coordinator: Coordinator, judge: TolerancePlanner, costs: TaskCosts,
            ended: Run) -> LatencyResult:  # fmt: skip
    book, counts = ended.ledger, coordinator.counts
    complete = isinstance(ended.last, ev.Finish) and judge.plan is not None
    decode = spec.profile.decoding(judge.plan, costs.block) if complete and judge.plan is not None else 0.0
    outcome = "complete" if complete else "time is up"
    if isinstance(ended.last, ev.Fail):
        outcome = ended.last.outcome.value
    busy = sum(book.seconds.values())
    return LatencyResult(
        outcome, ended.end + decode if complete else math.nan, ended.end, decode, book.encoding,
        book.seconds[Work.SEND] - book.encoding, book.seconds[Work.RECEIVE], book.seconds[Work.COMPUTE],
        busy / ended.end if ended.end else 0.0, book.bytes_sent, book.bytes_received, code.grid.K, code.P,
        coordinator.N, counts.issued, counts.repairs, counts.copies, counts.discarded, counts.computed,
        len(judge.plan.missing) if judge.plan is not None else 0, book.work, spec.unit, str(code.grid),
        ended.last.message if isinstance(ended.last, ev.Fail) else "",
    )  # fmt: skip


# ---- a sweep of them -----------------------------------------------------------------------------------------------

COLUMNS = ("key", "trial", "scheme", "workers", "model", "profile", *(entry.name for entry in fields(LatencyResult)),
           "spec")  # fmt: skip


@dataclass(frozen=True)
class LatencyRow:
    """One simulated job and what it was: one CSV row."""

    spec: Latency
    trial: int
    result: LatencyResult

    def to_row(self) -> list[str]:
        """The fields of COLUMNS."""
        x = self.spec
        values = [repr(v) if isinstance(v, float) else str(v) for v in asdict(self.result).values()]
        return [x.key, str(self.trial), x.scheme, str(x.workers), x.model, x.profile.name, *values,
                json.dumps(asdict(x), sort_keys=True, separators=(",", ":"))]  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> LatencyRow:
        """What `to_row` wrote. Raises ValueError, KeyError, TypeError or UsageError when it did not."""
        data = json.loads(row["spec"])
        spec = Latency(**{**data, "size": tuple(data["size"]), "profile": MachineProfile(**data["profile"])})
        if spec.key != row["key"]:
            raise ValueError("the content hash does not match")
        values = {
            entry.name: read_cell(entry.name, row[entry.name], str(entry.type)) for entry in fields(LatencyResult)
        }
        return cls(spec, read_cell("trial", row["trial"], "int"), LatencyResult(**values))


def run_row(job: tuple[Latency, int]) -> LatencyRow:
    """For a process of a sweep."""
    return LatencyRow(job[0], job[1], run_latency(*job))


class LatencyStore:
    """Rows in memory and, with a path, appended to a CSV file; a trial that is there already is not run again."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = CsvFile(path, COLUMNS)
        self.rows: dict[tuple[str, int], LatencyRow] = {}
        self._file.begin(lambda row: self._accept(LatencyRow.from_row(row)))

    def add(self, row: LatencyRow) -> None:
        """Take in a row and append it."""
        if self._accept(row):
            self._file.append(row.to_row())

    def _accept(self, row: LatencyRow) -> bool:
        return self.rows.setdefault((row.spec.key, row.trial), row) is row

    def of(self, spec: Latency) -> list[LatencyResult]:
        """The results of a spec, by trial."""
        return [row.result for (key, _), row in sorted(self.rows.items()) if key == spec.key]

    def missing(self, specs: Iterable[Latency], trials: int) -> list[tuple[Latency, int]]:
        """What is still to be run, trial by trial."""
        return [(spec, trial) for trial in range(trials) for spec in specs if (spec.key, trial) not in self.rows]
