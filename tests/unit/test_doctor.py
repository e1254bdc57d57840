"""The doctor: what it concludes from what it sees, and a real run (tests/slurm has more launchers)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cmm.doctor import launching, site, world
from cmm.doctor.__main__ import main
from cmm.doctor.findings import Grade, as_mapping, healthy, lines, note, ok, wrong
from scripts.environment import launcher
from tests.mpi.launch import python

ONE = {
    "size": 2,
    "hosts": ["a", "a"],
    "cores": [2, 2],
    "shared_core": False,
    "latency": {"same host": 1e-6},
    "ulfm": True,
}


def grades(found: Any) -> list[Grade]:
    return [finding.grade for finding in found]


def test_what_is_mistyped_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["--jsn"], ["all"]):
        assert main(words) == 64
        assert capfd.readouterr().err.startswith(
            f"cmm.doctor: command line: must be an option of cmm.doctor; got '{words[0]}'"
        )
    assert main(["--help"]) == 0
    assert "--json" in capfd.readouterr().out


def test_notes_do_not_make_it_ill() -> None:
    found = [ok("a", "fine"), note("b", "slow", "do this")]
    assert healthy(found)
    assert lines(found)[-1] == "nothing has to be changed"
    assert not healthy([*found, wrong("c", "bad", "do that")])
    assert lines([wrong("c", "bad", "do that")])[-2:] == [f"{'':16} -> do that", "1 to change"]
    assert as_mapping(found)["findings"][1] == {"check": "b", "grade": "note", "text": "slow", "remedy": "do this"}


def test_one_world() -> None:
    assert grades(launching.judge_world([ONE], 2, "mpirun")) == [Grade.OK, Grade.OK]


def test_singletons_are_explained() -> None:
    alone = {**ONE, "size": 1, "hosts": ["a"], "cores": [2], "latency": {}}
    for answers in ([alone, alone], [alone]):
        (found,) = launching.judge_world(answers, 2, "srun")
        assert found.grade is Grade.WRONG
        assert "another MPI than the library" in found.text
        assert "--mpi=pmi2 (MPICH)" in found.remedy


def test_a_slow_message_is_a_note() -> None:
    assert grades(launching.judge_world([{**ONE, "latency": {"other host": 5e-4}}], 2, "mpirun")) == [
        Grade.NOTE,
        Grade.OK,
    ]


@pytest.mark.parametrize(("change", "threads", "grade"), [
    ({}, "1", Grade.OK),
    ({}, "2", Grade.NOTE),  # 2 ranks of 2 threads on 2 cores
    ({"cores": [1, 1], "shared_core": True}, "1", Grade.WRONG),
    ({"hosts": ["a", "b"], "cores": [1, 1]}, "1", Grade.OK),
])  # fmt: skip
def test_layout(change: dict[str, Any], threads: str, grade: Grade) -> None:
    assert grades(world.layout({**ONE, **change}, {"OMP_NUM_THREADS": threads})) == [grade]


def test_what_a_launcher_needs() -> None:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    assert launching.options("openmpi", 2, 1, {}) == ["--oversubscribe", *root]
    inside = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
    assert launching.options("openmpi", 2, 1, inside) == ["--bind-to", "none", "--map-by", "node", *root]
    assert launching.options("mpich", 2, 1, inside) == ["-ppn", "1"]
    assert launching.options("mpich", 2, 1, {}) == []


def test_a_program_that_hangs_is_ended() -> None:
    tried = launching.attempt(
        [sys.executable, "-c", "import time; print('on it', flush=True); time.sleep(60)"], seconds=1
    )
    assert (tried.code, tried.answers, tried.said) == (None, [], "on it")


def test_answers_among_other_words() -> None:
    tried = launching.attempt([sys.executable, "-c", 'print("hello\\n{\\"size\\": 1}\\n{oops\\n[1]")'])
    assert (tried.code, tried.answers, tried.said) == (0, [{"size": 1}], "hello {oops [1]")


def test_shared_memory(tmp_path: Path) -> None:
    assert site.shared_memory(1, str(tmp_path)).grade is Grade.OK
    assert site.shared_memory(10**9, str(tmp_path)).grade is Grade.WRONG
    assert site.shared_memory(1, str(tmp_path / "none")).grade is Grade.NOTE


def test_scratch(tmp_path: Path) -> None:
    assert site.scratch("/tmp").grade is Grade.OK
    assert site.scratch(str(tmp_path / "none")).grade is Grade.WRONG
    deep = tmp_path / ("x" * site.LONGEST_SCRATCH)
    deep.mkdir()
    assert site.scratch(str(deep)).grade is Grade.NOTE


def test_sessions_of_killed_launchers(tmp_path: Path) -> None:
    """Numbers without a process, and only those: a running launcher's session is its own business."""
    assert site.sessions(str(tmp_path)) == []
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"ompi.{os.getpid()}", "ompi.host.0", f"ompi.{gone.pid}"):
        (tmp_path / name).mkdir()
    (found,) = site.sessions(str(tmp_path))
    assert found.grade is Grade.NOTE
    assert found.text.startswith("1 session folder(s)")
    assert f"ompi.{gone.pid}" in found.text


def test_a_launcher_that_takes_too_long_leaves_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="cmm-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        words, needed = launcher(sys.prefix, 1)
        for name, value in needed.items():
            monkeypatch.setenv(name, value)
        started = Path(folder) / "started"
        tried = launching.attempt([*words, sys.executable, "-c", "import pathlib, sys, time\n"
                                   "pathlib.Path(sys.argv[1]).touch(); time.sleep(60)", str(started)], 5.0)  # fmt: skip
        assert tried.code is None
        assert started.exists(), tried.said
        assert list(Path(folder).iterdir()) == [started]


def test_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert grades(site.root("openmpi", {})) == [Grade.WRONG]
    assert grades(site.root("openmpi", allowed)) == [Grade.OK]
    assert site.root("mpich", {}) == []


def test_no_launcher_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found, mpirun, kind = launching.launcher("openmpi")
    assert (found.grade, mpirun, kind) == (Grade.WRONG, "", "")


def test_the_command() -> None:
    """The real thing: two ranks by this environment's mpirun. Whether all is well is the machine's business."""
    with tempfile.TemporaryDirectory(prefix="cmm-") as folder:  # a short path, without sessions of others
        done = python("-m", "cmm.doctor", "--json", timeout=90, env={"TMPDIR": folder})
    answer = json.loads(done.stdout)
    checks = {finding["check"]: finding for finding in answer["findings"]}
    assert done.returncode == (0 if answer["healthy"] else 1), str(done)
    assert {"versions", "mpi", "launcher", "world", "blas", "shm", "scratch"} <= set(checks)
    assert checks["mpi"]["grade"] == "ok", str(done)


def test_usage() -> None:
    assert main(["--jsn"]) == 64
