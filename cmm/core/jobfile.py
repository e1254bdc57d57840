"""From what the user types to a `JobSpec`: flags, job files (TOML) and the merge of both. Standard library only.

`--param` replaces single keys of the job file's [params], and the whole table when `--code` changes the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cmm.core.options import Option, OptionTable, default_report, require
from cmm.core.spec import RULES, JobSpec

OPTIONS: tuple[Option, ...] = (
    Option("a", "path", "FILE", "the matrix A, s x r (a 1-D file is one column)"),
    Option("b", "path", "FILE", "the matrix B, s x t"),
    Option("out", "path", "FILE", "where C = A^T B (r x t) goes"),
    Option("report", "path", "FILE", "where the report goes (default: OUT.report.json)"),
    Option("op", "text", "T|H", "T: C = A^T B; H: C = A^H B"),
    Option("code", "text", "NAME", "the erasure code, see --list-codes"),
    Option("grid", "grid", "MxN", "cut A into M and B into N column chunks; PxMxN also splits the shared dimension "
           "(default: chosen from the number of workers)"),
    Option("tasks", "int", "P", "number of tasks (oneshot), or the most that are issued (pull)"),
    Option("params", "params", "KEY=VALUE", "a parameter of the code; may be repeated"),
    Option("dispatch", "text", "pull|oneshot", "pull: workers ask for work; oneshot: all tasks are dealt at the start"),
    Option("inject", "injections", "SPEC", "make stragglers, for tests; may be repeated: slow:RANKS:FACTOR, "
           "sleep:RANKS:SECONDS, exp:RANKS:MEAN, freeze:RANKS[@SECONDS], kill:RANKS[@SECONDS], "
           "corrupt:RANKS[:PROBABILITY]; RANKS like 2, 2,5, 1-3 or all"),
    Option("seed", "int", "N", "seed of all coefficients and injections"),
    Option("tolerance", "float", "X", "largest estimated error of C_ij relative to |A_i||B_j| "
           "(default: 1e-9; 1e-3 for float32)"),
    Option("verify", "text", "none|final|all", "check nothing, C, or every result and C"),
    Option("threads", "int", "N", "BLAS threads per rank"),
    Option("give_up", "float", "SECONDS", "when no worker answers any more: give up after SECONDS instead of "
           "computing the missing blocks on the master"),
    Option("checkpoint", "path", "FOLDER", "keep every accepted result there until C is complete"),
    Option("checkpoint_every", "float", "SECONDS", "how often they are synced: what a power cut can lose at most"),
    Option("resume", "bool", "", "go on from the checkpoint if there is one"),
    Option("overwrite", "bool", "", "replace an existing output"),
    Option("timeline", "path", "FILE.png", "draw who did what when"),
    Option("progress", "text", "auto|bar|lines|none", "a bar, lines, or nothing on stderr"),
)  # fmt: skip

ACTIONS = {
    "help": "print this help",
    "version": "print the version",
    "list-codes": "print the codes: name, paper, recovery threshold, what each is good for",
    "show-config": "print the merged job as a job file",
    "dry-run": "print the plan, its accuracy and the memory each rank will need; compute nothing",
}

TABLE = OptionTable(
    "cmm.run", OPTIONS, RULES, JobSpec, actions=ACTIONS,
    description="Compute C = A^T B over MPI ranks with an erasure code over the reals.",
    epilog="Flags win over the job file. Exit codes: 0 complete and verified, 3 verification failed, 4 too many "
           "workers lost, 5 tolerance out of reach, 64 usage, 65 bad data, 66 no such input, 70 internal error, "
           "73 cannot write, 75 stopped but resumable.",
)  # fmt: skip
NEEDS = {"run": ("a", "b", "out"), "dry-run": ("a", "b"), "show-config": ()}


@dataclass(frozen=True)
class Command:
    """What the command line asks for. `action`: run, help, version, list-codes, show-config or dry-run.

    spec : None for help, version and list-codes
    workers : --workers of a dry run, or None
    """

    action: str
    spec: JobSpec | None = None
    workers: int | None = None


def parse(argv: Sequence[str]) -> Command:
    """Read flags and the job file they name. Raises UsageError or InputMissingError."""
    given = TABLE.read(argv)
    if given.action not in NEEDS:
        return Command(given.action)
    return Command(given.action, build(_merge(given.file, given.flags), NEEDS[given.action]), given.workers)


def _merge(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    code = values.get("code", TABLE.defaults["code"])
    kept = values.get("params", {}) if flags.get("code", code) == code else {}
    return {**values, **flags, "params": {**kept, **flags.get("params", {})}}


def build(values: Mapping[str, Any], needs: Iterable[str] = NEEDS["run"]) -> JobSpec:
    """The JobSpec of checked values. Raises UsageError for a missing file name, or one file in two places."""
    require(values, needs)
    filled: dict[str, Any] = {"a": "", "b": "", "out": "", **values}
    filled.setdefault("report", default_report(filled["out"]))
    spec = JobSpec(**filled)
    spec.refuse_contradictions()
    return spec
