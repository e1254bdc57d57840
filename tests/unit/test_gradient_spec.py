"""`python -m cmm.gradient` as a user meets it, without mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cmm.core.errors import CmmError, InputMissingError, UsageError
from cmm.gradient.data import DataSet
from cmm.gradient.planning import make_encoding, plan_lines, worker_bytes
from cmm.gradient.spec import TABLE, GradientSpec, build, parse

ROOT = Path(__file__).resolve().parents[2]
JOBS = [path for path in sorted((ROOT / "jobs").glob("*.toml")) if "cmm.gradient" in path.read_text()]
FILES = ["--data", "X.npy", "--labels", "y.npy", "--out", "t.npy"]


def run(*argv: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    launchers = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL")
    env = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    env |= {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-m", "cmm.gradient", *argv], cwd=cwd, env=env, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip


def spec_of(*flags: str) -> GradientSpec:
    spec = parse([*FILES, *flags]).spec
    assert spec is not None
    return spec


def test_flags_win_over_the_job_file(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('data = "X.npy"\nlabels = "y.npy"\nout = "t.npy"\nloss = "logistic"\nridge = 1\n'
                   'inject = ["freeze:2"]\nspeeds = [1, 2]\ncode = "heterogeneous-frc"\n')  # fmt: skip
    spec = parse([str(job), "--loss", "huber", "--inject", "slow:1:2"]).spec
    assert spec is not None
    assert (spec.data, spec.loss, spec.ridge) == (str(tmp_path / "X.npy"), "huber", 1.0)
    assert [str(item) for item in spec.inject] == ["slow:1:2"]
    assert spec.speed_list() == [1.0, 2.0]
    assert spec.report == str(tmp_path / "t.npy.report.json")


def test_the_configuration_builds_the_same_job(tmp_path: Path) -> None:
    spec = spec_of("--inject", "freeze:2@1", "--ridge", "0.5", "--resume", "--checkpoint", "c.npz", "--parts", "14")
    (tmp_path / "again.toml").write_text(TABLE.to_toml(spec))
    assert parse([str(tmp_path / "again.toml")]).spec == spec
    assert set(TABLE.mapping(spec)) == set(TABLE.by_key)


@pytest.mark.parametrize(("flags", "words"), [
    (["--los", "huber"], "--loss"),
    (["--loss", "hubber"], "Did you mean huber"),
    (["--loss", "a b:c"], "MODULE:NAME"),
    (["--code", "frcc"], "--code"),
    (["--stragglers", "-1"], "--stragglers"),
    (["--iterations", "many"], "--iterations"),
    (["--ridge", "nan"], "--ridge"),
    (["--step", "0"], "--step"),
    (["--speeds", "1,2"], "heterogeneous-frc"),
    (["--speeds", "1,x", "--code", "heterogeneous-frc"], "--speeds"),
    (["--resume"], "--checkpoint"),
    (["--checkpoint", "c.npy"], ".npz"),
    (["--plot", "loss.txt"], ".png"),
    (["--code", "polynomial", "--loss", "logistic"], "least-squares"),
    (["--inject", "corrupt:1", "--verify", "none"], "--verify full"),
    (["--verify", "some"], "--verify"),
    (["--out", "X.npy"], "--out"),
    (["--workers", "3"], "--dry-run"),
    (["a.toml", "b.toml"], "JOB.toml"),
])  # fmt: skip
def test_refusals(flags: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse([*FILES, *flags])


def test_what_is_missing() -> None:
    for name in ("data", "labels", "out"):
        given = {"data": "/X.npy", "labels": "/y.npy", "out": "/t.npy"}
        del given[name]
        with pytest.raises(UsageError, match=f"--{name}"):
            build(given)
    with pytest.raises(InputMissingError):
        parse(["nowhere.toml"])


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_that_ship(path: Path) -> None:
    command = parse([str(path)])
    assert command.action == "run"
    assert command.spec is not None


def test_the_documentation_has_the_table_of_options() -> None:
    assert TABLE.markdown() in (ROOT / "docs" / "gradient.md").read_text()


# ---- instead of computing ----------------------------------------------------------------------------------------


def test_help_codes_and_version(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"--{key}" in done.stdout for key in TABLE.by_key)
    assert "75 stopped but resumable" in " ".join(done.stdout.split())
    assert "generalized-frc" in run("--list-codes", cwd=tmp_path).stdout
    assert run("--version", cwd=tmp_path).stdout.startswith("cmm ")
    assert run("--nonsense", cwd=tmp_path).returncode == 64


def test_a_dry_run_states_loads_and_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.ones((1100, 30)))
    np.save(tmp_path / "y.npy", np.ones(1100))
    done = run(*FILES[:4], "--stragglers", "3", "--dry-run", "--workers", "11", cwd=tmp_path)
    assert done.returncode == 0, done
    assert "loads: 4 4 4 6 4 4 4 5 3 3 3 parts; total 44, largest 6, imbalance d_s 6" in done.stdout
    assert "0.149 MB of data on a worker (rank 4, 55% of the data)" in done.stdout  # 600 x 31 x 8 bytes
    done = run(*FILES[:4], "--dry-run", "--workers", "2", "--stragglers", "2", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("cmm: ")) == (64, 1)
    done = run("--data", "none.npy", *FILES[2:4], "--dry-run", cwd=tmp_path)
    assert done.returncode == 66


def test_parsing_loads_neither_numpy_nor_mpi() -> None:
    code = "import sys, cmm.gradient.__main__; print(sorted({'numpy', 'mpi4py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          check=False)  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# ---- planning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "n", "expected"), [
    ([], 1, ("generalized-frc", 1, 0)),
    ([], 11, ("generalized-frc", 11, 2)),
    (["--stragglers", "3"], 11, ("generalized-frc", 11, 3)),
    (["--parts", "25"], 11, ("generalized-frc", 25, 2)),
    (["--code", "uncoded"], 11, ("uncoded", 11, 0)),
    (["--code", "cyclic"], 11, ("cyclic", 11, 2)),
    (["--code", "frc"], 12, ("frc", 12, 2)),
    (["--code", "polynomial", "--stragglers", "2"], 11, ("polynomial", 5, 2)),
    (["--code", "heterogeneous-frc"], 3, ("heterogeneous-frc", 24, 1)),
    (["--code", "heterogeneous-frc", "--speeds", "4,1,1"], 3, ("heterogeneous-frc", 24, 1)),
])  # fmt: skip
def test_what_is_chosen(flags: list[str], n: int, expected: tuple[str, int, int]) -> None:
    code = make_encoding(spec_of(*flags), n, 1000)
    assert (code.name, code.k, code.stragglers) == expected


@pytest.mark.parametrize(("flags", "n", "rows"), [
    (["--stragglers", "4"], 4, 100),
    (["--parts", "101"], 4, 100),
    (["--code", "frc", "--stragglers", "2"], 11, 100),
    (["--code", "cyclic", "--parts", "5"], 4, 100),
    (["--code", "cyclic"], 4, 3),
    (["--code", "polynomial", "--stragglers", "7"], 4, 100),
    (["--code", "polynomial", "--stragglers", "5", "--parts", "5"], 11, 100),
    (["--code", "uncoded", "--stragglers", "1"], 4, 100),
    (["--code", "heterogeneous-frc", "--speeds", "1,2"], 4, 100),
    (["--code", "uncoded"], 4, 3),
])  # fmt: skip
def test_what_cannot_be_planned(flags: list[str], n: int, rows: int) -> None:
    with pytest.raises(CmmError) as caught:
        make_encoding(spec_of(*flags), n, rows)
    assert caught.value.exit_code == 64


def test_memory_follows_the_load(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.ones((1100, 30), dtype=np.float32))
    np.save(tmp_path / "y.npy", np.ones(1100))
    data = DataSet(str(tmp_path / "X.npy"), str(tmp_path / "y.npy"))
    code = make_encoding(spec_of("--stragglers", "3"), 11, 1100)
    assert worker_bytes(code, data) == [load * 100 * 31 * 8 for load in code.loads]  # float64, whatever the file
    coded = make_encoding(spec_of("--code", "polynomial", "--stragglers", "2"), 11, 1100)
    assert worker_bytes(coded, data) == [220 * 31 * 8] * 11
    assert any("1/5 of the data" in line for line in plan_lines(coded, data))
