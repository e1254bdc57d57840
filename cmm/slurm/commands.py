"""Slurm's own commands, bounded in time: what they answer, whether the cluster answers at all, and what it can give."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cmm.core.errors import InternalError, UsageError
from cmm.slurm.options import Request
from cmm.slurm.rules import time_limit

ANSWER_SECONDS = 60.0  # for one command: what Slurm itself allows for a busy controller
PING_SECONDS = 20.0  # where there is no configuration, Slurm's commands look for one for a minute
SAY_AFTER = 5.0  # seconds of silence after which the user is told what is waited for


class NoAnswer(Exception):
    """Slurm did not answer, or could not be asked; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    said: str  # on stderr, in one line


def ask(words: Sequence[str], text: str = "", limit: float = ANSWER_SECONDS, patience: float = SAY_AFTER) -> Answer:
    """Run one command with `text` as its input. Raises NoAnswer when it does not end within `limit` seconds, or is not
    there; after `patience` seconds the user is told."""
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", start_new_session=True)  # fmt: skip
    except OSError as error:
        raise NoAnswer(f"{words[0]}: {error.strerror}") from None
    with process:
        try:
            return _answer(process, text, min(patience, limit))
        except subprocess.TimeoutExpired:
            if patience < limit:
                print(f"cmm: {words[0]} has not answered for {patience:.0f} s; waiting for {limit:.0f} s at most",
                      file=sys.stderr, flush=True)  # fmt: skip
        try:
            return _answer(process, text, max(0.0, limit - patience))
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{' '.join(words[:2])} did not end within {limit:.0f} s") from None
        finally:
            process.kill()  # also at Ctrl-C; one that has ended is left alone


def _answer(process: subprocess.Popen[str], text: str, seconds: float) -> Answer:
    out, err = process.communicate(text, timeout=seconds)
    return Answer(process.returncode, out, " ".join(err.split()))


def check_cluster() -> None:
    """Raise UsageError where there is no cluster to submit to, InternalError when its controller does not answer."""
    if shutil.which("sbatch") is None:
        raise UsageError("--submit", "needs sbatch on PATH", "none",
                         "Run it on a login node of the cluster, or try scripts/slurm-local up here.")  # fmt: skip
    conf = os.environ.get("SLURM_CONF", "")
    if conf and not os.path.isfile(conf):
        raise UsageError("SLURM_CONF", "must name the configuration of a cluster", repr(conf),
                         "Correct the variable, or unset it (for scripts/slurm-local: its env prints it).")  # fmt: skip
    if shutil.which("scontrol") is None:
        return
    try:
        answer = ask(["scontrol", "ping"], limit=PING_SECONDS)
    except NoAnswer as error:
        raise _unreachable(str(error)) from None
    if " is UP" not in answer.out:
        raise _unreachable(answer.said.split("scontrol: ")[-1] or " ".join(answer.out.split("*")[0].split()))


def _unreachable(why: str) -> InternalError:
    return InternalError(f"Slurm does not answer ({why}); nothing was submitted. Try scontrol ping; which cluster is "
                         f"asked stands in {os.environ.get('SLURM_CONF') or '/etc/slurm/slurm.conf'}.")  # fmt: skip


def submit(script: str) -> str:
    """Submit the script's text; returns the job's number. Raises UsageError with what sbatch says."""
    try:
        done = ask(["sbatch", "--parsable"], script)
    except NoAnswer as error:
        raise InternalError(f"{error}: squeue --me says whether the job was submitted all the same") from None
    job = done.out.strip().partition(";")[0]
    if done.code or not job.isdigit():
        said = done.said or " ".join(done.out.split()) or f"exit code {done.code}"
        if "nable to contact slurm controller" in said:
            raise _unreachable(said)
        raise UsageError("--submit", "must be a script that sbatch takes", said, "See sbatch's own words, and sinfo.")
    return job


# ---- what a partition gives ----------------------------------------------------------------------------------------


def check_partition(request: Request) -> None:
    """Raise UsageError for a job that would wait for ever: more nodes, or more time, than its partitions give. What
    Slurm does not tell is left to sbatch."""
    if any(text.startswith(("--clusters", "--reservation")) for text in request.sbatch):
        return
    try:
        answer = ask(["scontrol", "show", "partition", "-o"])
    except NoAnswer:
        return
    refuse_too_much(request, partitions(answer.out))
    if not any(text.startswith("--overcommit") for text in request.sbatch):
        refuse_too_many_cores(request, _cores_of_nodes(request.partition))


def _cores_of_nodes(partition: str) -> list[int]:
    """Of each kind of node, as Slurm counts them; empty when it does not tell."""
    try:
        answer = ask(["sinfo", "--noheader", "--format=%c", *(["--partition", partition] if partition else [])])
    except NoAnswer:
        return []
    return [int(word.rstrip("+")) for word in answer.out.split() if word.rstrip("+").isdigit()]


def refuse_too_many_cores(request: Request, cores: Sequence[int]) -> None:
    """Raise UsageError when no node has so many."""
    most, ranks, each = max(cores, default=0), request.tasks_per_node, request.cpus_per_task
    if cores and ranks * each > most:
        raise UsageError("--cpus-per-task" if each > 1 >= ranks / most else "--tasks-per-node",
                         f"must make at most {most} cores a node: no node has more, the job would wait for ever",
                         f"{ranks} ranks of {each}", "Ask for fewer, on more --nodes (sinfo -o '%n %c').")  # fmt: skip


def partitions(text: str) -> dict[str, dict[str, str]]:
    """`scontrol show partition -o` by name of the partition."""
    lines = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines()]
    return {line["PartitionName"]: line for line in lines if "PartitionName" in line}


def refuse_too_much(request: Request, known: Mapping[str, Mapping[str, str]]) -> None:
    """Raise UsageError when none of the job's partitions can give what it asks for."""
    wanted = request.partition.split(",") if request.partition else [
        name for name, line in known.items() if line.get("Default") == "YES"]  # fmt: skip
    if not wanted or not all(name in known for name in wanted):
        return
    where, lines = f"partition {','.join(wanted)}", [known[name] for name in wanted]
    nodes = max(_most_nodes(line, limits=not request.qos) for line in lines)
    if request.nodes > nodes:
        raise UsageError("--nodes", f"must be at most {nodes} in {where}: the job would wait for ever", request.nodes,
                         "Ask for fewer, with more --tasks-per-node, or for another --partition (sinfo).")  # fmt: skip
    longest = [line.get("MaxTime", "UNLIMITED") for line in lines]
    if request.time and not request.qos and all(text != "UNLIMITED" for text in longest):
        most = max(longest, key=time_limit)
        if time_limit(request.time) > time_limit(most):
            raise UsageError("--time", f"must be at most {most} in {where}: the job would wait for ever", request.time,
                             "Ask for less, and keep results with --checkpoint DIR --requeue.")  # fmt: skip


def _most_nodes(line: Mapping[str, str], limits: bool) -> int:
    """Of one job. A QOS may lift the partition's limits, but makes no nodes."""
    total, most = line.get("TotalNodes", ""), line.get("MaxNodes", "")
    found = [int(text) for text in ([total, most] if limits else [total]) if text.isdigit()]
    return min(found, default=10**6)
