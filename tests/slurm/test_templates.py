"""Every template in slurm/ is what cmm.slurm writes, and is submitted as it lies there, in a smaller size."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from cmm.doctor.launching import srun_plugins
from tests.slurm.conftest import Cluster, Job
from tests.slurm.templates import FOLDER, TEMPLATES, rendered

SMALL = ("--nodes=2", "--ntasks-per-node=2", "--mem=600M")
OF = {"openmpi": ("openmpi.sbatch",), "mpich": ("mpich.sbatch", "mpich-srun.sbatch")}
# numpy's own error of a product of 300 terms, relative to the columns' norms, and as much again for decoded blocks
TOLERANCE = 1e-12


def test_the_folder_holds_what_is_rendered() -> None:
    assert {path.name for path in FOLDER.glob("*.sbatch")} == set(TEMPLATES)
    assert {name: (FOLDER / name).read_text() for name in TEMPLATES} == {name: rendered(name) for name in TEMPLATES}


@pytest.mark.parametrize("name", TEMPLATES)
def test_bash_reads_it(name: str) -> None:
    assert subprocess.run(["bash", "-n", FOLDER / name], capture_output=True, check=False).stderr == b""


@pytest.mark.parametrize("name", ["openmpi.sbatch", "openmpi-srun.sbatch", "mpich.sbatch", "mpich-srun.sbatch"])
def test_a_job(name: str, cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    skip_other(name, vendor)
    if name == "openmpi-srun.sbatch" and "pmix" not in (srun_plugins() or ""):
        pytest.skip("Slurm finds no libpmix (package libpmix-dev)")
    job = make_job()
    number = cluster.sbatch(*SMALL, FOLDER / name, cwd=job.folder)
    (state,) = cluster.ended(number)
    output = cluster.output(number)
    assert (state.state, state.exit_code) == ("COMPLETED", 0), output
    assert job.inputs.error() < TOLERANCE
    assert len(json.loads(job.report.read_text())["workers"]) == 3
    assert f"module load {vendor}/5" in output
    assert [line["ExitCode"] for line in cluster.completion(number)] == ["0:0"]


def test_heterogeneous(cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    skip_other("heterogeneous.sbatch", vendor)
    job = make_job()
    number = cluster.sbatch("--mem=600M", ":", "--nodes=2", "--ntasks-per-node=1", "--mem=400M",
                            FOLDER / "heterogeneous.sbatch", cwd=job.folder)  # fmt: skip
    found = cluster.ended(number)
    assert [(state.job, state.exit_code) for state in found] == [(f"{number}+0", 0), (f"{number}+1", 0)]
    assert job.inputs.error() < TOLERANCE
    assert len(json.loads(job.report.read_text())["workers"]) == 2


def test_array(cluster: Cluster, vendor: str, make_job: Callable[..., Job]) -> None:
    skip_other("array.sbatch", vendor)
    job = make_job()
    number = cluster.sbatch("--nodes=1", "--ntasks-per-node=2", "--mem=400M", "--array=0,2",
                            FOLDER / "array.sbatch", cwd=job.folder)  # fmt: skip
    found = cluster.ended(number)
    assert sorted((state.job, state.exit_code) for state in found) == [(f"{number}_0", 0), (f"{number}_2", 0)]
    reports = [json.loads((job.folder / f"C.seed-{seed}.npy.report.json").read_text()) for seed in (1, 3)]
    assert [report["seed"] for report in reports] == [1, 3]
    assert not job.report.exists()


def skip_other(name: str, vendor: str) -> None:
    """One environment holds one MPI; the other one's templates run in the other environment."""
    needs = "mpich" if name.startswith(("mpich", "heterogeneous")) else "openmpi"
    if needs != vendor:
        pytest.skip(f"needs {needs}, and this environment has {vendor}")
