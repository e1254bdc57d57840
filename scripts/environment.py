"""Virtual environments with one MPI each, and how that MPI's launcher is called. Standard library only."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MPIS = ("openmpi", "mpich")
# Every rank runs its BLAS on one thread: ranks are what fills the cores.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class SetupError(Exception):
    """Something on this machine is missing; the message says what and how to get it."""


def need_python() -> None:
    """Raise SetupError where this Python cannot make the environment."""
    if sys.version_info < (3, 11):  # noqa: UP036  this runs before anything is installed
        raise SetupError(f"Python 3.11 or later is needed, this is {sys.version.split()[0]} ({sys.executable}).")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        raise SetupError(f"{sys.executable} cannot make virtual environments; on Debian: apt-get install python3-venv"
                         ) from error  # fmt: skip


def make_venv(path: Path, extras: Sequence[str], *, editable: bool = False) -> Path:
    """Make or complete the virtual environment `path` with cmm and its extras; return its Python.

    An editable environment is left as it is while the project's dependencies and extras are what they were. Raises
    SetupError where pip fails or where the environment holds another MPI than the one in `extras`.
    """
    need_python()
    python = path / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", "--clear", str(path)])
    refuse_second_mpi(path, extras)
    stamp, digest = path / "cmm.stamp", fingerprint(extras, editable)
    if editable and stamp.exists() and stamp.read_text() == digest:
        return python
    shutil.rmtree(ROOT / ".build", ignore_errors=True)  # setuptools would ship modules that no longer exist
    target = f"{ROOT}[{','.join(extras)}]"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *(["--editable"] if editable else []), target])
    stamp.write_text(digest)
    return python


def refuse_second_mpi(path: Path, extras: Sequence[str]) -> None:
    """One MPI per environment: both wheels write bin/mpirun, and the last one wins half of it."""
    wanted = set(MPIS) & set(extras)
    present = {name for name in MPIS if any(path.glob(f"lib/python*/site-packages/{name}-*.dist-info"))}
    if present - wanted and wanted:
        raise SetupError(f"{path} already holds {', '.join(sorted(present))}, and one environment holds one MPI. "
                         f"Name another folder, or remove this one.")  # fmt: skip


def fingerprint(extras: Sequence[str], editable: bool) -> str:
    """What an installation depends on."""
    content = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "setup.cfg").read_bytes()
    return hashlib.sha256(content + repr((sorted(extras), editable, sys.version, str(ROOT))).encode()).hexdigest()


def run(command: Sequence[str], **options: object) -> None:
    """Run a command that has to succeed. Raises SetupError with its exit code."""
    code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, **options).returncode  # type: ignore[call-overload]
    if code:
        raise SetupError(f"exit code {code} from: {' '.join(command)}")


@functools.cache
def find_launcher(prefix: str) -> tuple[str, str]:
    """The mpirun of the environment at `prefix`, else the one on PATH, and its kind: openmpi or mpich."""
    own = Path(prefix) / "bin" / "mpirun"
    mpirun = str(own) if own.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise SetupError(f"no mpirun in {prefix}/bin or on PATH; install the extra openmpi or mpich, or load an MPI.")
    version = subprocess.run(
        [mpirun, "--version"], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return mpirun, "openmpi" if "Open MPI" in version.stdout + version.stderr else "mpich"


def launcher(prefix: str | Path, ranks: int) -> tuple[list[str], dict[str, str]]:
    """The words that start `ranks` ranks with the MPI at `prefix`, and the variables it needs on this machine."""
    mpirun, kind = find_launcher(str(prefix))
    words, variables = [mpirun, "-n", str(ranks)], dict(ONE_THREAD)
    if kind == "openmpi":
        if ranks > len(os.sched_getaffinity(0)):
            words.append("--oversubscribe")
        if "SLURM_JOB_ID" in os.environ:
            words += ["--bind-to", "none"]
        if os.geteuid() == 0:
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return words, variables
