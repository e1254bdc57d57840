"""Rivals: scenarios on real processes, selection, tables. Real runs: tests/mpi/test_rivals.py."""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rivals.__main__ import chosen, main
from benchmarks.rivals.harness import Result
from benchmarks.rivals.programs.common import cuts
from benchmarks.rivals.scenarios import MEAN, PERIOD, SCENARIOS, Scenario, Trouble
from benchmarks.rivals.systems import SYSTEMS
from benchmarks.rivals.table import rivals_table
from cmm.bench.processes import running, state_of
from cmm.core.errors import UsageError

STOPS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", STOPS_ITSELF])
    yield process
    process.kill()
    process.wait()


def trouble(scenario: Scenario, process: subprocess.Popen[bytes]) -> Trouble:
    found = Trouble(scenario, [1], lambda: {1: process.pid}, seed=0)
    found.start()
    return found


def test_a_killed_worker_dies_of_sigkill(stopped: subprocess.Popen[bytes]) -> None:
    running = trouble(SCENARIOS["killed"], stopped)
    assert stopped.wait(20) == -signal.SIGKILL
    running.stop()
    assert running.hit == {1}


def test_a_frozen_worker_is_woken(stopped: subprocess.Popen[bytes]) -> None:
    start = time.monotonic()
    running = trouble(replace(SCENARIOS["frozen"], spells=lambda worker, seed: iter([(0.3, math.inf)])), stopped)
    assert stopped.wait(20) == 0
    running.stop()
    assert time.monotonic() - start >= 0.3


def test_one_that_is_frozen_for_good_stays_so(stopped: subprocess.Popen[bytes]) -> None:
    running = trouble(SCENARIOS["two-frozen"], stopped)
    while not running.hit:
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        stopped.wait(0.3)
    running.stop()


def test_spells_are_what_the_scenarios_say() -> None:
    slow = SCENARIOS["slow"].spells
    exponential = SCENARIOS["exponential"].spells
    assert slow is not None
    assert exponential is not None
    stopped, running = next(slow(1, 0))
    assert (stopped + running, running / (stopped + running)) == pytest.approx((PERIOD, 1 / 5))
    draws = [
        list(itertools.islice(exponential(worker, seed), 400)) for worker, seed in ((1, 0), (1, 0), (2, 0), (1, 1))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]
    mean = sum(map(sum, draws[0])) / 800
    assert abs(mean - MEAN) < 5 * MEAN / math.sqrt(800)  # five standard deviations
    assert SCENARIOS["exponential"].victims(7) == 7
    assert SCENARIOS["two-frozen"].victims(8) == 2


def test_tasks_cover_the_result() -> None:
    parts = cuts(10, 4)
    assert [index for part in parts for index in range(10)[part]] == list(range(10))


def test_names_are_checked() -> None:
    assert chosen("--system", "fr, pool+copies+abort", SYSTEMS) == ["fr", "pool+copies+abort"]
    with pytest.raises(UsageError):
        chosen("--scenario", "none,nosuch", SCENARIOS)


@pytest.mark.parametrize(("flags", "code", "said"), [
    (["--grid", "65x2"], 64, "--grid: must not cut 64 columns"), (["--grid", "2x2x2"], 64, "--grid: must be MxN"),
    (["--grid", ""], 64, "--grid: must name one"), (["--size", "64,128"], 64, "--size: must be a whole number"),
    (["--workers", "2,4"], 64, "--workers: must be a whole number"),
    (["--out", "r.json"], 64, "--out: must end in .csv"),
    (["--siz", "64"], 64, "command line: must be an option of benchmarks.rivals; got '--siz'. Did"),
    (["--out", "no/r.csv"], 73, "--out: must lie in an existing directory"),
])  # fmt: skip
def test_what_breaks_a_rule_is_refused_before_anything_runs(
    flags: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["rivals", "--size", "64", "--system", "numpy", *flags])
    assert main() == code
    assert f"benchmarks.rivals: {said}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_table_counts_what_was_not_there() -> None:
    row = Result("fr", "none", 4, 64, 16, 0, 1.0, 2.0, "yes", 1e-16, 0, "")
    rows = [row, replace(row, repeat=1, to_c=3.0),
            replace(row, system="pool", to_c=math.nan, to_exit=math.nan, right="no C")]  # fmt: skip
    text = rivals_table(rows)
    lines = {cells[1].strip(): [cell.strip() for cell in cells] for cells in (x.split("|") for x in text.splitlines())
             if len(cells) > 3}  # fmt: skip
    assert lines["fr"][3] == "2.00 [1.50 … 2.50]"
    assert lines["pool"][3:6] == ["no C", "no end", "0 of 1: no C"]
    assert text.index("| pool") < text.index("| fr")  # as in the list of systems


def test_what_is_stopped_at_the_limit_never_goes_on(tmp_path: Path) -> None:
    """The launcher dies last: else its stopped children would be woken, and a result would come after the limit."""
    late = tmp_path / "late"
    child = f"import os, signal; os.setpgid(0, 0); {STOPS_ITSELF}; open({str(late)!r}, 'w').close()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with running([sys.executable, "-c", parent]) as job:
        while "T" not in {state_of(pid) for pid in job.processes()}:
            time.sleep(0.01)
        ended = job.wait(0.0)
        assert ended.code is None
        assert job.processes() == {}
    time.sleep(0.2)
    assert not late.exists()
    assert not job.folder.exists()
