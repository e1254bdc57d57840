"""docs/refusals.md is what the command says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_page_of_refusals_is_true() -> None:
    pytest.importorskip("h5py")
    words = [sys.executable, ROOT / "scripts" / "refusals", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
