"""The short form of the soak: every part with its faults, nothing wrong, nothing left."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from scripts.environment import ROOT
from tests.mpi.launch import environment


@pytest.mark.slow
def test_the_short_soak() -> None:
    words = [sys.executable, ROOT / "scripts" / "soak", "--short"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
                          env=environment({}, {}), stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row[1]: row[2:] for line in done.stdout.splitlines() if len(row := re.split(r"\s*\|\s*", line)) > 10}
    assert {"calls", "kinds", "launches", "tasks"} <= set(rows)
    for part in ("calls", "kinds", "launches", "tasks"):
        assert rows[part][3:7] == ["0", "0", "0", "0"]  # wrong C, failed, hangs, orphans
    assert int(rows["kinds"][0]) == 100
    assert int(rows["tasks"][1]) >= 3900
    assert "left in /dev/shm: nothing" in done.stdout
