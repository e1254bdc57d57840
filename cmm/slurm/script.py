"""The batch script as text. Pure: the same request gives the same bytes; slurm/ holds recorded ones.

Everything of the site stands at the top, where it can be changed by hand. Values reach the shell quoted, once, in an
assignment; below that only variables are used, in double quotes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from cmm.core.options import default_report
from cmm.slurm.options import Request
from cmm.slurm.rules import LAUNCHERS

MARK = "# cmm on a cluster: "  # in the second line, by which a script is known

# What a signal-safe wait looks like in bash: `wait` returns when a trap has run, although the process goes on.
_WAIT = """\
launcher=$!
while wait "$launcher"; code=$?; kill -0 "$launcher" 2>/dev/null; do :; done"""

_TRAPS = """\
# Slurm's warning is passed on: the ranks stop in order, and the report says 75.
again=yes
launcher=
forward() { [ -z "$launcher" ] || kill -USR1 "$launcher"; }
trap forward USR1              # the time limit is near
trap 'again=no; forward' TERM  # preempted or cancelled: Slurm decides what comes next"""

_DONE_BEFORE = """\
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && python -m cmm.report "$REPORT" >/dev/null 2>&1; then
    exec python -m cmm.report "$REPORT"    # complete before it was queued again
fi
saved() { du -s --apparent-size -B1 "$CHECKPOINT" 2>/dev/null || echo 0; }
before=$(saved)"""

_PROOF = """\
# The report is the proof, launchers' exit codes are not: it makes the exit code of this job."""

_END = """\
[ -e "$REPORT" ] || { echo "no report: refused or lost"; [ "$code" -gt 0 ] || code=70; exit "$code"; }
python -m cmm.report "$REPORT\""""

_REQUEUE = """\
if [ -e "$REPORT" ]; then
    python -m cmm.report "$REPORT"
    code=$?
else
    echo "no report: refused or lost"
    [ "$code" -gt 0 ] || code=70
    [ "$(saved)" = "$before" ] || code=75
fi
# Stopped by the time limit, or because a node was lost: again, as long as every run saves something.
if [ "$code" -eq 75 ] && [ "$again" = yes ] && [ "$(saved)" != "$before" ]; then
    echo "queued again"
    scontrol requeue %s
fi
exit "$code\""""


def render(request: Request) -> str:
    """The whole script."""
    groups = [_head(request), _directives(request), _site(request), _job(request), _run(request), _end(request)]
    return "\n\n".join("\n".join(lines) for lines in groups if lines) + "\n"


# ---- for Slurm ---------------------------------------------------------------------------------------------------


def _head(request: Request) -> list[str]:
    lines = ["#!/bin/bash", f"{MARK}{LAUNCHERS[request.launcher]}. docs/cluster.md explains every line."]
    return [*lines, *([f"# Written by: {request.origin}"] if request.origin else [])]


def _directives(request: Request) -> list[str]:
    options: list[tuple[str, str | None]] = [("job-name", request.name)]
    per_node = ("ntasks-per-node", str(request.tasks_per_node))
    if request.master_apart:
        apart = [("nodes", "1"), ("ntasks", "1"), *_each(request, 0)]
        workers = [("nodes", str(request.nodes - 1)), per_node, *_each(request, 1)]
        lines = [*_sbatch([*options, *apart, *_whole(request)]), "#SBATCH hetjob", *_sbatch(workers)]
    else:
        lines = _sbatch([*options, ("nodes", str(request.nodes)), per_node, *_each(request, 0), *_whole(request)])
    return [*([f"# Memory: {request.memory_note}."] if request.memory_note else []), *lines]


def _each(request: Request, part: int) -> list[tuple[str, str | None]]:
    """What every part of a heterogeneous job has to say for itself."""
    first, others = request.memory
    computed = max(first, others) if not request.master_apart else (first, others)[part]
    given = request.mem.split(",")
    memory = given[min(part, len(given) - 1)] or (f"{computed}M" if computed else "")
    named = [("cpus-per-task", str(request.cpus_per_task)), ("mem", memory), ("time", request.time)]
    named += [(name, getattr(request, name)) for name in ("partition", "account", "qos", "constraint")]
    own = [text[2:].partition("=") for text in request.sbatch]
    return [*((name, value) for name, value in named if value), *((name, value or None) for name, _, value in own)]


def _whole(request: Request) -> list[tuple[str, str | None]]:
    log = request.log or ("%x-%A_%a.out" if request.array else "%x-%j.out")
    options: list[tuple[str, str | None]] = [("output", log)]
    if request.array:
        options.append(("array", f"0-{len(request.array.values) - 1}"))
    if request.requeue:
        return [*options, ("open-mode", "append"), ("requeue", None), ("signal", f"B:USR1@{request.warn}")]
    return [*options, ("no-requeue", None), ("no-kill", None)]


def _sbatch(options: Iterable[tuple[str, str | None]]) -> list[str]:
    return [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options]


# ---- for the shell -----------------------------------------------------------------------------------------------


def _site(request: Request) -> list[str]:
    lines = ["# ---- the site: modules, environment"]
    lines += [f"module load {shlex.quote(name)} || exit" for name in request.modules]
    if request.venv:
        lines.append(f"source {_home(request.venv + '/bin/activate')} || exit")
    if request.root and request.launcher == "mpirun":
        lines.append("export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1    # root submitted this")
    if request.folder:
        lines.append(f"cd {shlex.quote(request.folder)} || exit")
    return lines if len(lines) > 1 else [*lines, "# (the environment of the shell that submits it)"]


def _home(path: str) -> str:
    """The path quoted for the shell, which still fills in a ~ at its beginning."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def _job(request: Request) -> list[str]:
    lines = ["# ---- the job"]
    if request.job:
        lines.append(f"JOB={shlex.quote(request.job)}")
    if request.array:
        columns = {"VALUE": request.array.values, "OUT": request.array.outs,
                   "REPORT": [default_report(out) for out in request.array.outs]}  # fmt: skip
        lines += [f"{name}S=({shlex.join(values)})" for name, values in columns.items()]
        lines += [f'{name}="${{{name}S[$SLURM_ARRAY_TASK_ID]}}"' for name in columns]
    else:
        lines.append(f"REPORT={shlex.quote(request.specs[0].report)}")
    if request.checkpoint:
        own = '/"$SLURM_ARRAY_TASK_ID"' if request.array else ""
        lines.append(f"CHECKPOINT={shlex.quote(request.checkpoint)}{own}")
    return [*lines, f"export OMP_NUM_THREADS={request.cpus_per_task}    # BLAS threads per rank"]


def arguments(request: Request) -> tuple[list[str], list[str]]:
    """What follows `python -m cmm.run`, one shell word each: the user's and the script's."""
    words = ['"$JOB"'] if request.job else []
    words += [shlex.quote(text) for text in request.flags]
    if request.array:
        words += [] if request.array.option.name == "out" else [f'{request.array.option.flag}="$VALUE"']
        words.append('--out="$OUT"')
    ours = ['--report="$REPORT"', '--threads="$OMP_NUM_THREADS"']
    return words, [*ours, *(['--checkpoint="$CHECKPOINT"', "--resume"] if request.checkpoint else [])]


def _run(request: Request) -> list[str]:
    lines = [_TRAPS, "", *_DONE_BEFORE.splitlines()] if request.requeue else []
    if request.checkpoint and request.array:
        lines.append('mkdir -p -m 700 -- "${CHECKPOINT%/*}"')
    lines += ['rm -f -- "$REPORT"    # an earlier run must not speak for this one', ""]
    given, ours = arguments(request)
    lines += [*_launch(request), " ".join(["    python -m cmm.run", *given, "\\"]),
              " ".join(["   ", *ours, *(["&"] if request.requeue else [])])]  # fmt: skip
    return [*lines, *(_WAIT.splitlines() if request.requeue else ["code=$?"]), 'echo "launcher: exit code $code"']


def _launch(request: Request) -> list[str]:
    """The lines that start the ranks; the last one goes on."""
    if request.launcher == "mpirun":  # bind-to none: else all ranks of a node share the cores of one
        return [*_DAEMONS, 'mpirun --bind-to none -n "$SLURM_NTASKS" \\']
    if request.launcher == "mpiexec":
        return [*_DAEMONS, "unset SLURM_NTASKS_PER_NODE    # mpiexec starts one daemon per node, and srun would warn",
                'mpiexec -n "$SLURM_NTASKS" \\']  # fmt: skip
    groups = " --het-group=0,1" if request.master_apart else ""
    return ["# Supervisors hide a worker's death from Slurm. What they cannot hide (no MPI at the start) ends the step",
            "# at once; a lost node does not, and ranks that have ended start no countdown for the others.",
            f"srun --mpi={request.launcher.removeprefix('srun-')}{groups} --cpus-per-task={request.cpus_per_task} \\",
            "    --kill-on-bad-exit=1 --wait=0 --no-kill \\"]  # fmt: skip


_DAEMONS = ["export SLURM_CPU_BIND=none    # the launcher's daemons may use all cores of the allocation"]


def _end(request: Request) -> list[str]:
    if not request.requeue:
        return [*_PROOF.splitlines(), *_END.splitlines()]
    name = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if request.array else '"$SLURM_JOB_ID"'
    return [*_PROOF.splitlines(), *(_REQUEUE % name).splitlines()]
