"""`python -m cmm.bench` with real jobs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cmm.runtime.report import load
from tests.mpi.launch import mpirun, python


@pytest.mark.one_mpi
def test_a_sweep_runs_jobs_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "results.csv"
    flags = ("-m", "cmm.bench", "sweep", "--ranks", "1,3", "--size", "60x50x40", "--out", out, "--scratch", tmp_path)
    done = python(*flags, "--repeat", 1, timeout=60)
    assert done.returncode == 0, done
    assert done.stdout.count("PASSED") == 2, done
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["ranks"], row["check"], row["s"], row["t"]) for row in rows] == [
        ("1", "PASSED", "60", "40"), ("3", "PASSED", "60", "40")]  # fmt: skip
    assert all(0 < float(row["time"]) <= float(row["total"]) + 0.01 < float(row["command"]) + 0.02 for row in rows)
    out.write_text("".join(out.read_text().splitlines(keepends=True)[:-1]))  # the last run never happened
    again = python(*flags, "--repeat", 1, "--json", timeout=60)
    assert again.returncode == 0, again
    assert again.stderr.count("cmm: 1 of 1:") == 1, again
    record = json.loads(again.stdout)
    assert [(point["ranks"], point["passed"]) for point in record["points"]] == [(1, 1), (3, 1)]
    assert record == json.loads(out.with_suffix(".json").read_text())
    assert record["environment"]["mpi"]
    assert list(tmp_path.glob("cmm-bench-*")) == []


@pytest.mark.one_mpi
def test_a_job_that_fails_is_a_row_and_an_exit_code_and_is_run_again(tmp_path: Path) -> None:
    """A launcher that starts nothing stands for a site that was out of order for a while."""
    out, broken = tmp_path / "results.csv", tmp_path / "launcher"
    broken.write_text("#!/bin/sh\necho no such fabric >&2\nexit 7\n")
    broken.chmod(0o755)
    flags = ("-m", "cmm.bench", "sweep", "--ranks", 2, "--size", 40, "--repeat", 1, "--out", out)
    done = python(*flags, "--launcher", broken, timeout=60)
    assert done.returncode == 3, done
    again = python(*flags, timeout=60)
    assert again.returncode == 0, again
    with out.open() as file:
        failed, passed = csv.DictReader(file)
    assert (failed["check"], failed["time"], failed["gflops"]) == ("FAILED", "nan", "nan")
    assert failed["remark"] == "exit code 7: no such fabric"
    assert passed["check"] == "PASSED"


@pytest.mark.one_mpi
def test_messages_are_measured(tmp_path: Path) -> None:
    done = mpirun(2, "-m", "cmm.runtime.pingpong", timeout=60)
    found = json.loads(done.stdout)
    assert 1e-8 < found["latency"] < 1
    assert 1e6 < found["bandwidth"] < 1e12
    assert found["mpi"]


@pytest.mark.one_mpi
def test_reports_of_a_sweep_are_reports(tmp_path: Path) -> None:
    """The row is made from the report alone: what a user's own job writes can be read the same way."""
    from cmm.bench.measure import Bench
    from cmm.bench.points import Point

    bench = Bench(tmp_path, limit=60)
    run = bench.job(Point(3, 64, 48, 40, "fr/oneshot:grid=2x2,tasks=8", "freeze:2"), 0)
    record = load(tmp_path / "report.json")
    assert (run.grid, run.K, run.P, run.dispatch) == ("2x2", 4, 8, "oneshot")
    assert (run.N, run.missing) == (record.decoding.results_used, record.decoding.missing_blocks)
    assert run.passed
    assert run.missing > 0
    assert run.late == "2 straggler"
