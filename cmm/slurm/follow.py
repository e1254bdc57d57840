"""Following a job to its end, with Slurm's own commands: scontrol, and sacct where it exists."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cmm.core.errors import InternalError
from cmm.slurm.commands import NoAnswer, ask

FIRST_LOOK, LONGEST_PAUSE = 0.5, 10.0  # seconds between two looks at the queue
UNKNOWN_LOOKS = 5  # how often in a row Slurm may not know the job before we believe it
REMIND = 60.0  # seconds after which a job that still waits is told again, with its reason
LONGEST_SILENCE = 1800.0  # seconds without any answer from Slurm until the wait is given up
TAIL_BYTES = 1 << 16  # of the job's output
INTERRUPTED, NO_CODE = 130, 1

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL",
         "DEADLINE"}  # fmt: skip
# Reasons of a job that will not start by waiting, or not soon -> what to do. Slurm's others (Resources, Priority) pass.
STUCK = {
    "PartitionNodeLimit": "the partition never gives so many nodes to one job: scancel it, and ask for fewer --nodes",
    "PartitionTimeLimit": "the partition never gives so much time: scancel it, and ask for less --time",
    "PartitionConfig": "the partition cannot give what is asked for: scancel it, and see scontrol show partition",
    "PartitionDown": "the partition is down: ask the site",
    "PartitionInactive": "the partition takes no jobs now: ask the site",
    "BadConstraints": "no node is like that: scancel it, and see sinfo",
    "ReqNodeNotAvail": "nodes are down, drained or reserved: see sinfo -R",
    "Nodes_required_for_job_are_DOWN": "see sinfo -R",
    "InvalidAccount": "scancel it, and name an --account that you may use",
    "InvalidQOS": "scancel it, and name a --qos that you may use",
    "AccountNotAllowed": "scancel it, and name an --account that may use the partition",
    "QOSNotAllowed": "scancel it, and name a --qos that may use the partition",
    "JobHeldUser": "it is held: scontrol release lets it go",
    "JobHeldAdmin": "the site holds it: ask there",
}


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

    @property
    def hint(self) -> str:
        """What to do about a job that waits for something that does not come by itself; else empty."""
        name = self.reason.split(",")[0].split("(")[0].strip()  # ReqNodeNotAvail,_UnavailableNodes:n1
        limits = name.startswith(("Assoc", "QOSMax", "QOSGrp", "QOSMin"))
        return STUCK.get(name, "a limit of the account or QOS: ask the site, or wait" if limits else "")

    def __str__(self) -> str:
        more = f" with exit code {self.exit_code}" if self.ended else f" ({self.reason})" if self.reason else ""
        return f"{self.state}{more}" + (f" on {self.nodes}" if self.nodes and not self.reason else "")


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
    _show(sorted(last, key=lambda state: state.job))
    return next((state.exit_code for state in last if state.exit_code), 0)


def _await_end(job: str, look: Callable[[str], list[State]], pause: Callable[[float], None]) -> list[State]:
    said, clock = _Said(), 0.0  # seconds paused
    between, unknown, before, answered = FIRST_LOOK, 0, False, 0.0
    while True:
        try:
            found, answered = look(job), clock
            unknown = 0 if found else unknown + 1
        except NoAnswer as error:  # controllers restart, and are asked again
            found = []
            said.silence(job, str(error), clock - answered, clock)
        if unknown > UNKNOWN_LOOKS:
            raise InternalError(f"Slurm does not know job {job} any more, and there is no sacct to ask; its log "
                                "and its report say how it ended.")  # fmt: skip
        if said.states(found, clock):
            between = FIRST_LOOK
        ended = bool(found) and all(state.ended for state in found)
        if ended and before:  # seen twice: a job that is being queued again can look ended for a moment
            return found
        before = ended
        pause(between)
        clock += between
        between = FIRST_LOOK if ended else min(LONGEST_PAUSE, 1.5 * between)


@dataclass
class _Said:
    """What was told of which job, and when, in seconds of the wait."""

    told: dict[str, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    last: float = 0.0

    def states(self, found: Sequence[State], clock: float) -> bool:
        """Tell what has changed, and every minute that something still waits. Returns whether something changed."""
        changed = [state for state in found if self.told.get(state.job) != str(state)]
        for state in changed:
            self.told[state.job], self.since[state.job] = str(state), clock
            self._say(f"job {state.job}: {state}" + (f": {state.hint}" if state.hint else ""), clock)
        waiting = [state for state in found if state.state == "PENDING"]
        if waiting and clock - self.last >= REMIND:
            first, more = waiting[0], f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            minutes = (clock - self.since[first.job]) / 60
            self._say(f"job {first.job}{more}: still {first} after {minutes:.0f} min" + (
                f": {first.hint}" if first.hint else ""), clock)  # fmt: skip
        return bool(changed)

    def silence(self, job: str, why: str, seconds: float, clock: float) -> None:
        """Tell that Slurm does not answer. Raises InternalError when it has not for too long."""
        if seconds > LONGEST_SILENCE:
            raise InternalError(f"Slurm has not answered for {seconds / 60:.0f} min ({why}); job {job} may go on: its "
                                "log and its report say how it ended.")  # fmt: skip
        if self.told.get("") != why or clock - self.last >= REMIND:
            self.told[""] = why
            self._say(f"job {job}: no answer from Slurm ({why}); asking on", clock)

    def _say(self, text: str, clock: float) -> None:
        self.last = clock
        print(f"cmm: {text}", file=sys.stderr, flush=True)


def states(job: str) -> list[State]:
    """The job, or the elements of the array, as Slurm has them now; empty when nobody knows it. Raises NoAnswer."""
    answer = ask(["scontrol", "show", "job", "-o", job])
    found = [parse_record(line) for line in answer.out.splitlines() if line.startswith("JobId=")]
    if found:
        return found
    if answer.code and "nvalid job id" not in answer.said:
        raise NoAnswer(answer.said or f"scontrol: exit code {answer.code}")
    if shutil.which("sacct") is None:
        return []
    lines = ask(["sacct", "-n", "-X", "-P", "-j", job, "-o", "JobID,State,ExitCode,NodeList"]).out.splitlines()
    return [parse_accounting(line) for line in lines if line.count("|") == 3]


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


def _show(last: Sequence[State]) -> None:
    """The output of a job, of whose parts the first has it; of an array, where those that failed have theirs."""
    if len(last) == 1 or "+" in last[0].job:
        _print_log(last[0].log)
        return
    for state in (state for state in last if state.exit_code and state.log):
        print(f"cmm: the output of job {state.job} is in {state.log}", file=sys.stderr, flush=True)


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
