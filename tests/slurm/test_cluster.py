"""The local cluster itself, and the doctor inside an allocation."""

from __future__ import annotations

import json
import sys

from scripts.environment import ROOT
from tests.slurm.conftest import Cluster


def test_starting_it_again_changes_nothing(cluster: Cluster) -> None:
    pids = {path.name: path.read_text() for path in (cluster.state / "run").glob("*.pid")}
    assert len(pids) == 6  # munge, the controller, four nodes
    done = cluster.run(sys.executable, ROOT / "scripts/slurm-local", "up", "--state", cluster.state, cwd=cluster.home)
    assert done.returncode == 0, done.stderr
    assert f"export SLURM_CONF={cluster.state}/slurm.conf" in done.stdout
    assert {path.name: path.read_text() for path in (cluster.state / "run").glob("*.pid")} == pids


def test_the_doctor_tells_a_world_from_singletons(cluster: Cluster, vendor: str) -> None:
    """Two ranks on two nodes, first by a plugin that this MPI does not speak, then by its own launcher."""
    doctor = f"{sys.executable} -m cmm.doctor --json"
    foreign = {"openmpi": "pmi2", "mpich": "none"}[vendor]
    script = f"srun --mpi={foreign} {doctor} >foreign; echo $? >code; {doctor} >own"
    number = cluster.sbatch("--nodes=2", "--ntasks-per-node=1", "--wrap", script, cwd=cluster.home)
    assert cluster.ended(number)[0].exit_code == 0, cluster.output(number)
    found = {name: {finding["check"]: finding for finding in json.loads((cluster.home / name).read_text())["findings"]}
             for name in ("foreign", "own")}  # fmt: skip
    assert (cluster.home / "code").read_text().strip() != "0"
    assert found["foreign"]["world"]["grade"] == "wrong"
    assert "belongs to another MPI" in found["foreign"]["world"]["text"]
    assert "one world of 2 ranks" in found["own"]["world"]["text"]
    assert f"inside job {number}, 2 node(s)" in found["own"]["slurm"]["text"]
