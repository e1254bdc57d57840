"""Every job file that ships, run as it stands, on matrices of its own names but of a smaller size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cmm.core.jobfile import parse
from cmm.runtime.report import load, summary_lines
from tests.mpi.launch import mpirun

JOBS = [path for path in sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*.toml"))
        if "cmm.gradient" not in path.read_text()]  # fmt: skip
RANKS = {"injection-demo": 9}  # the job file says so
LATE = {"injection-demo": {2, 3}}  # ranks that must be seen not to be ok, however short the tasks are


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """jobs/ and data/digits/ as in a checkout: nonnegative features, as those of the digits are."""
    shutil.copytree(JOBS[0].parent, tmp_path / "jobs")
    data = tmp_path / "data" / "digits"
    data.mkdir(parents=True)
    features = np.random.default_rng(5).random((520, 449))
    np.save(data / "features.npy", features)
    np.save(data / "features32.npy", features.astype(np.float32))
    return tmp_path


@pytest.mark.one_mpi
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_runs_and_its_result_is_right(checkout: Path, path: Path) -> None:
    job = checkout / "jobs" / path.name
    done = mpirun(RANKS.get(path.stem, 6), "-m", "cmm.run", job, timeout=90)
    assert done.returncode == 0, str(done)
    spec = parse([str(job)]).spec
    assert spec is not None
    report = load(spec.report)
    assert summary_lines(report)[-1] in done.stdout
    assert report.outcome == "complete"
    assert report.verification.passed
    A = np.load(spec.a).astype(np.float64)
    C = np.load(spec.out)
    norms = np.linalg.norm(A, axis=0)
    error = float(np.max(np.abs(C - A.T @ A) / np.outer(norms, norms)))
    assert C.dtype == np.load(spec.a, mmap_mode="r").dtype
    assert error <= (1e-3 if C.dtype == np.float32 else 1e-11)
    late = {entry.rank for entry in report.workers if entry.status != "ok"}
    assert late >= LATE.get(path.stem, set()), json.dumps([vars(entry) for entry in report.workers], default=str)
    assert not done.leftovers
