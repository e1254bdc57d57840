"""Rules of single values that end in the script. Standard library only.

What stands in an #SBATCH line has no character that could end it or start another option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cmm.core.errors import UsageError

LAUNCHERS = {
    "mpirun": "Open MPI's mpirun inside the allocation",
    "mpiexec": "MPICH's mpiexec inside the allocation",
    "srun-pmi2": "MPICH with srun --mpi=pmi2",
    "srun-pmix": "Open MPI with srun --mpi=pmix",
}
WARN = 120  # seconds before the time limit
MOST_RANKS = 10**6  # as cmm.run
MOST_TASKS = 1000  # of an array: Slurm's own limit where the site has not set one


@dataclass(frozen=True)
class Rule:
    """What a text must match, entirely, and what is said otherwise. most: of a whole number."""

    pattern: str
    says: str
    remedy: str
    most: int | None = None

    def check(self, argument: str, text: str) -> str:
        """The text. Raises UsageError."""
        if not re.fullmatch(self.pattern, text, re.ASCII) or (self.most is not None and int(text) > self.most):
            raise UsageError(argument, self.says, repr(text), self.remedy)
        return text


def _count(most: int, remedy: str, what: str = "a whole number") -> Rule:
    return Rule(r"[1-9]\d{0,8}", f"must be {what} from 1 to {most}", remedy, most)


_NAME = Rule(r"[A-Za-z0-9_.,+@-]+", "must be letters, digits and . , _ + @ -", "Use the name that Slurm shows (sinfo).")
_PATH = Rule(r"[^\x00-\x1f\x7f]+", "must be a path without control characters", "Rename the file or folder.")
RULES = {
    "nodes": _count(65533, "Use for example 4."),  # as many as Slurm can have
    "tasks_per_node": _count(4096, "One rank per core, or fewer with more threads (--cpus-per-task)."),
    "cpus_per_task": _count(4096, "Every rank gets as many BLAS threads."),
    "time": Rule(r"\d{1,9}(:\d{1,2}){0,2}|\d{1,5}-\d{1,2}(:\d{1,2}){0,2}", "must be a time limit of Slurm",
                 "Use HOURS:MINUTES:SECONDS, MINUTES, or DAYS-HOURS."),
    "mem": Rule(r"[1-9]\d*[KMGT]?(,[1-9]\d*[KMGT]?)?", "must be an amount of memory per node",
                "Use for example 16G, or 900M; with --master-apart also 64G,16G."),
    "warn": _count(65535, "Slurm looks every 30 s; use 120 or more where the checkpoint is large.",
                   "a whole number of seconds"),
    "partition": _NAME, "account": _NAME, "qos": _NAME, "name": _NAME,
    "constraint": Rule(r"[A-Za-z0-9_.,&|*()\[\]-]+", "must be an expression of features", "Use for example 'a|b'."),
    "module": Rule(r"[A-Za-z0-9_.][A-Za-z0-9_./+=@-]*", "must be the name of a module", "See module avail."),
    "sbatch": Rule(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:%@+*&|()\[\]/-]+)?", "must be an option of sbatch, --NAME or "
                   "--NAME=VALUE without spaces", "Write --sbatch=--exclusive."),
    "log": Rule(r"[A-Za-z0-9_.%/+@-]+", "must be letters, digits and . _ % / + @ -", "Use for example %x-%j.out."),
    "venv": _PATH, "checkpoint": _PATH, "o": _PATH,
}  # fmt: skip

# Options of sbatch and srun that cmm.slurm writes itself, or that make no sense in a script -> what to use instead.
OWN = {"nodes": "--nodes", "ntasks": "--nodes and --tasks-per-node", "ntasks-per-node": "--tasks-per-node",
       "cpus-per-task": "--cpus-per-task", "mem": "--mem", "mem-per-cpu": "--mem", "time": "--time",
       "partition": "--partition", "account": "--account", "qos": "--qos", "constraint": "--constraint",
       "job-name": "--name", "output": "--log", "array": "--array", "requeue": "--requeue", "no-requeue": "Leave it "
       "out: without --requeue nothing is queued again.", "signal": "--warn",
       "open-mode": "Leave it out: with --requeue the log is appended to.", "wait": "--wait",
       "mpi": "--launcher srun-pmi2 (MPICH) or srun-pmix (Open MPI)", "wrap": "a job file",
       "parsable": "Leave it out: --submit says the number.",
       "test-only": "Leave it out: without --submit nothing is submitted."}  # fmt: skip


def instead(name: str) -> str:
    """What to use instead of an option of sbatch (without its dashes), as a sentence; empty where it may be used."""
    found = OWN.get(name, "")
    return found if not found or found[0].isupper() else f"Use {found}."


def refuse_odd_time(text: str) -> None:
    """Raise UsageError for 99 minutes beside hours, and the like: a slip, though Slurm takes it."""
    _, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if any(part > 59 for part in parts[1:]) or (dash and parts[0] > 23):
        raise UsageError("--time", "must have minutes and seconds below 60, and hours below 24 beside days", repr(text),
                         "Use HOURS:MINUTES:SECONDS, MINUTES, or DAYS-HOURS.")  # fmt: skip


def time_limit(text: str) -> int:
    """Seconds of a time limit as Slurm reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = [*parts, 0, 0][:3] if dash else [0, *parts, 0][:3] if len(parts) < 3 else parts
    return ((24 * int(days or 0) + hours) * 60 + minutes) * 60 + seconds
