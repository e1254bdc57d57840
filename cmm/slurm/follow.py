"""Submitting a script and following its job, with Slurm's own commands: sbatch, scontrol, and sacct where it exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cmm.core.errors import InternalError, UsageError

FIRST_LOOK, LONGEST_PAUSE = 0.5, 10.0  # seconds between two looks at the queue
UNKNOWN_LOOKS = 5  # how often in a row Slurm may not know the job before we believe it
ANSWER_SECONDS = 60.0  # for one command
TAIL_BYTES = 1 << 16  # of the job's output
INTERRUPTED, NO_CODE = 130, 1

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL",
         "DEADLINE"}  # fmt: skip


@dataclass(frozen=True)
class State:
    """What Slurm says about a job, or about one element of an array."""

    job: str
    state: str
    reason: str
    code: int  # exit code, or 128 + signal
    nodes: str
    log: str

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def exit_code(self) -> int:
        """For `--wait`: the job's own code; where Slurm ended it and gives none, NO_CODE."""
        return self.code or (0 if self.state == "COMPLETED" else NO_CODE)

    def __str__(self) -> str:
        more = f" with exit code {self.exit_code}" if self.ended else f" ({self.reason})" if self.reason else ""
        return f"{self.state}{more}" + (f" on {self.nodes}" if self.nodes and not self.reason else "")


def submit(script: str) -> str:
    """Submit the script's text; returns the job's number. Raises UsageError with what sbatch says."""
    if shutil.which("sbatch") is None:
        raise UsageError("--submit", "needs sbatch on PATH", "none",
                         "Run it on a login node of the cluster, or try scripts/slurm-local up here.")  # fmt: skip
    done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False)
    job = done.stdout.strip().partition(";")[0]
    if done.returncode or not job.isdigit():
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise UsageError("--submit", "must be a script that sbatch takes", said, "See sbatch's own words, and sinfo.")
    return job


def follow(job: str, look: Callable[[str], list[State]] | None = None,
           pause: Callable[[float], None] = time.sleep) -> int:  # fmt: skip
    """Wait for the end of a job, or of all elements of an array, telling changes on stderr. Returns its exit code (of
    the first element that failed), or INTERRUPTED at Ctrl-C, which leaves the job alone. A job that is queued again is
    followed on."""
    try:
        last = _await_end(job, look or states, pause)
    except KeyboardInterrupt:
        print(f"cmm: job {job} goes on: squeue -j {job} shows it, scancel {job} ends it", file=sys.stderr)
        return INTERRUPTED
    for state in last if len(last) == 1 else []:
        _print_log(state.log)
    return next((state.exit_code for state in last if state.exit_code), 0)


def _await_end(job: str, look: Callable[[str], list[State]], pause: Callable[[float], None]) -> list[State]:
    told: dict[str, str] = {}
    between, unknown, before = FIRST_LOOK, 0, False
    while True:
        found = look(job)
        unknown = 0 if found else unknown + 1
        if unknown > UNKNOWN_LOOKS:
            raise InternalError(f"Slurm does not know job {job} any more, and there is no sacct to ask; its log "
                                "and its report say how it ended.")  # fmt: skip
        for state in found:
            if told.get(state.job) != str(state):
                told[state.job] = str(state)
                print(f"cmm: job {state.job}: {state}", file=sys.stderr, flush=True)
                between = FIRST_LOOK
        ended = bool(found) and all(state.ended for state in found)
        if ended and before:  # seen twice: a job that is being queued again can look ended for a moment
            return found
        before = ended
        pause(between)
        between = FIRST_LOOK if ended else min(LONGEST_PAUSE, 1.5 * between)


def states(job: str) -> list[State]:
    """The job, or the elements of the array, as Slurm has them now; empty when nobody knows it."""
    text = _ask(["scontrol", "show", "job", "-o", job])
    found = [parse_record(line) for line in text.splitlines() if line.startswith("JobId=")]
    if found or shutil.which("sacct") is None:
        return found
    lines = _ask(["sacct", "-n", "-X", "-P", "-j", job, "-o", "JobID,State,ExitCode,NodeList"]).splitlines()
    return [parse_accounting(line) for line in lines if line.count("|") == 3]


def _ask(words: Sequence[str]) -> str:
    """Its output; empty when it fails: controllers restart, and are asked again."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS).stdout
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return ""


def parse_record(line: str) -> State:
    """One line of `scontrol show job -o`: NAME=VALUE pairs, whose values may hold spaces."""
    pairs = dict(re.findall(r"(\S+?)=(.*?)(?= [A-Z][A-Za-z/:]*=|$)", line))
    name = pairs.get("JobId", "?")
    if "ArrayTaskId" in pairs:
        name = f"{pairs.get('ArrayJobId', name)}_{pairs['ArrayTaskId']}"
    elif "HetJobOffset" in pairs:
        name = f"{pairs.get('HetJobId', name)}+{pairs['HetJobOffset']}"
    reason = pairs.get("Reason", "None")
    state = pairs.get("JobState", "UNKNOWN")
    waiting = state == "PENDING" and reason != "None"
    nodes = "" if pairs.get("NodeList") in (None, "(null)") else pairs["NodeList"]
    return State(name, state, reason if waiting else "", _code(pairs.get("ExitCode", "0:0")), nodes,
                 pairs.get("StdOut", ""))  # fmt: skip


def parse_accounting(line: str) -> State:
    """One line of sacct: JobID|State|ExitCode|NodeList; a state can have words behind it (CANCELLED by 1000)."""
    name, state, code, nodes = line.split("|")
    return State(name, state.split(" ")[0], "", _code(code), nodes, "")


def _code(text: str) -> int:
    code, _, number = text.partition(":")
    return int(code) if code.isdigit() and int(code) else 128 + int(number) if number.isdigit() and int(number) else 0


def _print_log(path: str) -> None:
    """The end of the job's output, where this machine can read it."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        if path:
            print(f"cmm: the output of the job is in {path}", file=sys.stderr)
        return
    print(text, end="", flush=True)
