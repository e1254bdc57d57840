"""The templates in slurm/: recorded scripts of cmm.slurm. `python -m tests.slurm.templates` records them again."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from cmm.slurm.options import read, request
from cmm.slurm.script import render

FOLDER = Path(__file__).resolve().parents[2] / "slurm"
_SIZE = "job.toml --nodes 4 --tasks-per-node 8 --time 1:00:00 --partition main"
_OPENMPI = f"{_SIZE} --mem 16G --module openmpi/5 --venv '~/venvs/cmm'"
_MPICH = f"{_SIZE} --module mpich/5 --venv '~/venvs/cmm'"
TEMPLATES = {
    "openmpi.sbatch": _OPENMPI,
    "openmpi-srun.sbatch": f"{_OPENMPI} --launcher srun-pmix",
    "mpich.sbatch": f"{_MPICH} --mem 16G --launcher mpiexec",
    "mpich-srun.sbatch": f"{_MPICH} --mem 16G --launcher srun-pmi2",
    "heterogeneous.sbatch": f"{_MPICH} --mem 64G,16G --launcher srun-pmi2 --master-apart",
    "array.sbatch": f"{_OPENMPI} --array seed=1,2,3",
    "preemptible.sbatch": f"{_OPENMPI} --checkpoint checkpoint --requeue",
}


def rendered(name: str) -> str:
    """The script as cmm.slurm writes it today, with paths relative to the folder of job.toml."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.toml").write_text('a = "A.npy"\nb = "B.npy"\nout = "C.npy"\n')
        os.chdir(folder)
        try:
            command = read(shlex.split(TEMPLATES[name]))
            assert command is not None
            text = render(request(command, folder="", venv="", root=False))
            return text.replace(os.getcwd() + "/", "")
        finally:
            os.chdir(before)


if __name__ == "__main__":
    for name in TEMPLATES:
        (FOLDER / name).write_text(rendered(name))
