"""What the text of a command does not tell: codes and their parameters, and the folders that a job needs."""

from __future__ import annotations

import json
import os
import sys

from cmm.core.errors import InputMissingError, OutputError, Refusal, UsageError
from cmm.core.spec import check_ranks, split_member
from cmm.slurm.commands import NoAnswer, ask
from cmm.slurm.options import Request
from cmm.slurm.rules import LAUNCHERS

SECONDS = 20.0  # to load an MPI library
# Of launchers that start ranks of one MPI only; mpirun is either's.
VENDORS = {"mpiexec": "mpich", "srun-pmi2": "mpich", "srun-pmix": "openmpi"}


def check_jobs(request: Request) -> None:
    """Raise the UsageError that each job would end with before it looks at its data."""
    from cmm.codes.defaults import check_code

    for spec in request.specs:
        check_ranks(spec.inject, request.ranks - 1)
        check_code(spec.code, spec.grid, spec.tasks, spec.dispatch, spec.params, request.ranks - 1)


def check_folders(request: Request, *, here: bool) -> list[str]:
    """What the job reads and writes outside its data has to have a folder: Slurm makes none for its log, and such a job
    ends without a word.

    here : this machine sees what the nodes see, so that what is missing is refused. Otherwise it is only told, except
        below the folder that the job runs in

    Returns the warnings. Raises OutputError or InputMissingError.
    """
    warnings = []
    for refusal, path in _missing(request):
        if here or _below(path, request.folder):
            raise refusal
        warnings.append(f"{refusal} (It may be there on the cluster; this machine does not see it.)")
    return warnings


def check_launcher(request: Request) -> list[str]:
    """A warning where the launcher does not belong to the MPI of this environment, which would make N worlds of one
    rank, or none. With modules, or an environment that is not here, nobody knows before the job runs."""
    vendor = VENDORS.get(request.launcher, "")
    python = os.path.join(os.path.expanduser(request.venv), "bin", "python") if request.venv else sys.executable
    if not vendor or request.modules or not os.access(python, os.X_OK):
        return []
    try:
        found = json.loads(ask([python, "-m", "cmm.runtime.library"], limit=SECONDS).out)
    except (NoAnswer, ValueError):  # no MPI here; the doctor says why
        return []
    if found["vendor"] in ("", vendor):
        return []
    known = ", ".join(name for name in LAUNCHERS if VENDORS.get(name, found["vendor"]) == found["vendor"])
    return [str(UsageError("--launcher", "must belong to the MPI that mpi4py loads", f"{request.launcher} with "
                           f"{found['version']}", f"Use {known}; python -m cmm.doctor tells more."))]  # fmt: skip


def _below(path: str, folder: str) -> bool:
    return bool(folder) and os.path.commonpath([os.path.abspath(path), folder]) == folder


def _missing(request: Request) -> list[tuple[Refusal, str]]:
    """(refusal, path) of everything that is not there."""
    found: list[tuple[Refusal, str]] = []
    refusal: Refusal | None
    outputs = [("--log", request.log), ("--checkpoint", request.checkpoint)]
    for spec in request.specs:  # C is judged with the data, where these are looked at
        outputs += [("--report", spec.report), ("--out", split_member(spec.out)[0] if request.mem else "")]
    for argument, name in dict.fromkeys(pair for pair in outputs if pair[1]):
        path = os.path.join(request.folder, name)  # the log's is relative
        refusal = _bad_output(argument, path)
        found += [(refusal, path)] if refusal else []
    script = os.path.join(os.path.expanduser(request.venv), "bin", "activate")
    if request.venv and not os.path.isfile(script):
        refusal = InputMissingError("--venv", "must be a virtual environment", f"{request.venv} without bin/activate",
                                    "Name the folder that python -m venv made.")  # fmt: skip
        found.append((refusal, script))
    return found


def _bad_output(argument: str, path: str) -> OutputError | None:
    parent, log = os.path.dirname(path), argument == "--log"
    if log and "%" in parent:  # Slurm fills in a name
        return None
    if not os.path.isdir(parent):
        return OutputError(argument, "must lie in an existing directory", path, f"Create {parent} first.")
    if log and os.path.isdir(path):
        return OutputError(argument, "must be a file", f"the directory {path}", "Use for example %x-%j.out.")
    return None
