"""scripts/slurm-local: what it refuses, before it looks for Slurm. The cluster itself: tests/slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.environment import ROOT


def slurm_local(*words: object, path: str = os.defpath) -> tuple[int, str]:
    """Exit code and what it says on stderr, which is one line."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "slurm-local"), *map(str, words)], text=True,
                          env=os.environ | {"PATH": path}, capture_output=True, timeout=60, check=False)  # fmt: skip
    assert done.stderr.count("\n") == (done.returncode != 0), done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(("words", "said"), [
    (["up", "--nodes", "65"], "--nodes: must be a whole number from 1 to 64; got '65'"),
    (["up", "--nodes", "x"], "--nodes: must be a whole number from 1 to 64; got 'x'"),
    (["up", "--cpus", "0"], "--cpus: must be a whole number from 1 to 256; got '0'"),
    (["up", "--state", "a b"], "--state: must have letters, digits"),
    (["up", "--state", "/" + 80 * "x"], "--state: must have a path of at most 80 characters"),
    (["sideways"], "command line: "), ([], "command line: "), (["up", "--node", "2", "--nosuch"], "command line: "),
])  # fmt: skip
def test_what_breaks_a_rule(words: list[str], said: str) -> None:
    code, text = slurm_local(*words)
    assert code == 64
    assert text.startswith(f"scripts/slurm-local: {said}")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The folder of a cluster must have a path of at most 80 characters; pytest's own may have more."""
    with tempfile.TemporaryDirectory(prefix="cmm-") as name:
        yield Path(name)


def test_what_is_not_there(short_path: Path) -> None:
    tmp_path = short_path
    assert slurm_local("down", "--state", tmp_path / "none") == (0, "")
    (tmp_path / "slurm.conf").write_text("NodeName=n1 CPUs=2 RealMemory=1\n")
    for program in ("slurmctld", "slurmd", "munged", "sbatch"):
        (tmp_path / program).touch(0o755)
    code, text = slurm_local("up", "--state", tmp_path, "--nodes", 2, path=str(tmp_path))
    assert code == 64
    assert "--nodes, --cpus: must be those of the cluster that is there" in text
    code, text = slurm_local("up", "--state", tmp_path / "slurm.conf" / "below", path=str(tmp_path))
    assert code == 73
    assert "--state: must be a folder that can be written to" in text
