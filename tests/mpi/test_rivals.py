"""The side-by-side benchmark with the systems that need nothing beyond cmm's own environment, tiny."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.mpi.launch import python


@pytest.mark.one_mpi
def test_a_frozen_worker_costs_neither_the_pool_with_copies_nor_fr_the_result(tmp_path: Path) -> None:
    out = tmp_path / "rivals.csv"
    flags = ("-m", "benchmarks.rivals", "--size", 96, "--workers", 3, "--grid", "2x3", "--repeat", 1, "--limit", 40,
             "--system", "pool+copies+abort,fr", "--scenario", "two-frozen", "--out", out)  # fmt: skip
    done = python(*flags, timeout=100, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done
    with out.open() as file:
        rows = {row["system"]: row for row in csv.DictReader(file)}
    assert {name: row["right"] for name, row in rows.items()} == {"pool+copies+abort": "yes", "fr": "yes"}, done
    assert all(0 < float(row["to_c"]) < float(row["to_exit"]) < 40 for row in rows.values())
    assert all(float(row["error"]) < 1e-13 for row in rows.values())
    assert all(row["remark"] == "" for row in rows.values())  # both of the frozen workers were seen to stop
