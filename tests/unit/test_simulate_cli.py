"""The command line: tables, files, exit codes, and going on after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cmm.simulate.cli import main
from cmm.simulate.statistics import Store

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--grid", "4x4", "--tasks", "24", "--trials", "4", "--processes", "1", "--no-progress"]


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_recovery_prints_a_line_for_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure, table = tmp_path / "x.png", tmp_path / "x.csv"
    code = main(["recovery", "--code", "rkrp", "--code", "fr:groups=2x2", "--alpha", "0.1,0.3", *QUICK,
                 "--csv", str(table), "--figure", str(figure)])  # fmt: skip
    found = rows(capsys.readouterr().out)
    assert code == 0
    assert [line[0] for line in found[2:]] == ["rkrp", "rkrp", "fr groups=2x2", "fr groups=2x2"]
    assert {line[3] for line in found[2:]} == {"uniform over P"}
    assert [line[5] for line in found[2:]] == ["22", "17", "22", "17"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert sum(batch.stats.trials for batch in Store(table).batches) == 16


def test_a_second_run_only_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recovery", "--code", "rkrp", "--results", "K+1,K", *QUICK, "--csv", str(tmp_path / "x.csv")]
    assert main(words) == 0
    first, size = capsys.readouterr().out, (tmp_path / "x.csv").stat().st_size
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "x.csv").stat().st_size == size


def test_results_may_count_from_the_recovery_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    """matdot has K = 1 block and needs 2p - 1 results."""
    assert main(["recovery", "--code", "matdot", *QUICK, "--grid", "3x1x1", "--results", "T,T+1,K"]) == 0
    found = [(line[5], line[7].split(" (")[0]) for line in rows(capsys.readouterr().out)[2:]]
    assert found == [("5", "0 of 4"), ("6", "0 of 4"), ("1", "4 of 4")]


def test_threshold_names_the_arrival_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["threshold", "--code", "fr:groups=2x2", "--arrival", "systematic", "--arrival", "ranks:6", "--alpha",
                 "0.1,0.2", *QUICK]) == 0  # fmt: skip
    found = rows(capsys.readouterr().out)
    systematic = [f"systematic first, {share} % of them lost" for share in (10, 20)]
    assert [line[3] for line in found[2:]] == [*systematic, "whole ranks of 6 lost together"]


def test_latency_ranks_schemes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", "--workers", "8", "--scheme", "fr/pull", "--scheme", "uncoded/oneshot", "--model",
                 "shifted-exponential:1@worker", "--profile", "ideal", "--trials", "2", "--processes", "1",
                 "--no-progress", "--figure", str(tmp_path / "x.svg")]) == 0  # fmt: skip
    found = rows(capsys.readouterr().out)
    assert found[0] == ["scheme", "W = 8, shifted-exponential:1@worker"]
    assert [line[0] for line in found[2:4]] == ["fr (pull)", "uncoded (oneshot)"]
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_design_prints_evidence_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "--grid", "20x20", "--tasks", "600", "--alpha", "0.1", "--trials", "5"]) == 0
    out = capsys.readouterr().out
    assert "use  --code fr --param groups=" in out
    assert "the rule of docs/codes.md" in out
    assert "probability 0.1" in out


@pytest.mark.parametrize(("words", "names"), [
    (["recovery", "--code", "rkrpp", "--alpha", "0.1"], "--code"),
    (["recovery", "--code", "rkrp", "--alpha", "1.5"], "--alpha"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1:0.2"], "--alpha"),
    (["recovery", "--code", "rkrp"], "--results"),
    (["recovery", "--code", "rkrp", "--results", "K-1"], "--results"),
    (["recovery", "--code", "rkrp", "--results", "25"], "--results"),
    (["recovery", "--code", "rkrp:wrong=1", "--alpha", "0.1"], "--param wrong"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--arrival", "nearest"], "--arrival"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--trials", "0"], "--trials"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--decoder", "peeling+outer"], "--decoder"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--figure", "x.txt"], "--figure"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--unknown"], "'--unknown'"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--trial", "3"], "got '--trial'. Did you mean --trials?"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--results", "K+1"], "--alpha"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--trials", "1e12"], "--trials"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--processes", "1e6"], "--processes"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--tasks", "2000000000000"], "--tasks"),
    (["recovery", "--code", "rkrp", "--alpha", "0.1", "--grid", "1000000x1000000"], "--grid"),
    (["recovery", "--code", "rkrp:grid=5000x5000", "--alpha", "0.1"], "--grid"),
    (["recovery", "--code", "polynomial:nodes=1;1;2,grid=1x3,tasks=3", "--alpha", "0.1"], "--param nodes"),
    (["recovery", "--code", "polynomial:nodes=1,1,2,grid=1x3,tasks=3", "--alpha", "0.1"], "--param nodes"),
    (["threshold"], "--code"),
    (["latency", "--workers", "100000000"], "--workers"),
    (["latency", "--workers", "8", "--scheme", "fr:tasks=many"], "--tasks"),
    (["latency", "--workers", "8", "--scheme", "fr:grid=3x3,tasks=4"], "--tasks"),
    (["latency", "--workers", "8", "--code", "matdot:grid=3x3"], "--grid"),
    (["latency", "--workers", "8", "--scheme", "fr:grid=30x30", "--size", "9x9x9"], "into more than 9 parts"),
    (["latency", "--workers", "8", "--model", "pareto:nan"], "finite"),
    (["latency", "--workers", "8", "--scheme", "fr", "--tolerance", "0"], "--tolerance"),
    (["recovery", "--code", "rkrp", "--tasks", "3", "--results", "K"], "--tasks: must be at least 16"),
    (["recovery", "--code", "rkrp", "--results", "T-1"], "--results"),
    (["design", "--grid", "4x4", "--tasks", "1e12", "--alpha", "0.1"], "--tasks"),
    (["design", "--grid", "8x8", "--tasks", "90", "--alpha", "0.1", "--construction", "paper", "--outer", "3x3"],
     "outer: must be at least the grid 8x8"),
    (["design", "--grid", "8x8", "--tasks", "90", "--alpha", "0.1", "--construction", "paper", "--outer", "ab"],
     "outer: must be MxN"),
    (["design", "--grid", "8x8", "--tasks", "90", "--alpha", "0.1", "--outer", "9x9"], "--construction paper"),
    ([], "COMMAND"),
])  # fmt: skip
def test_bad_input_is_named(words: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = QUICK if words[:1] in (["recovery"], ["threshold"]) else []
    assert main([*quick_merge(words, quick)]) == 64
    assert names in capsys.readouterr().err


def quick_merge(words: list[str], quick: list[str]) -> list[str]:
    """The quick flags first, so that the words override them."""
    return [*words[:1], *quick, *words[1:]]


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recovery", "--code", "rkrp", "--alpha", "0.1", *QUICK, "--csv", str(tmp_path / "no" / "x.csv")]) == 73
    assert "--csv" in capsys.readouterr().err


COMMANDS = (
    ["recovery", "--code", "rkrp", "--alpha", "0.1"],
    ["threshold", "--code", "rkrp"],
    ["latency", "--workers", "4", "--scheme", "fr"],
    ["design", "--grid", "4x4", "--tasks", "32", "--alpha", "0.1"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=[words[0] for words in COMMANDS])
@pytest.mark.parametrize("seed", ["-1", "1.5", "x", "9" * 40])
def test_a_seed_is_a_whole_number(words: list[str], seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, f"--seed={seed}"]) == 64
    assert "--seed: must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("words", COMMANDS[:3], ids=[words[0] for words in COMMANDS[:3]])
def test_files_that_cannot_be_what_is_asked_for(words: list[str], tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    binary, other, missing = tmp_path / "binary.csv", tmp_path / "other.csv", tmp_path / "no" / "x"
    binary.write_bytes(bytes(range(256)))
    other.write_text("a,b\n1,2\n")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    cases = (("--csv", tmp_path, 73), ("--csv", tmp_path / "pipe.csv", 73), ("--csv", "/dev/full", 73),
             ("--csv", binary, 65), ("--csv", other, 65), ("--csv", f"{missing}.csv", 73),
             ("--figure", f"{missing}.png", 73), ("--figure", tmp_path / "folder.png", 73))  # fmt: skip
    for flag, path, code in cases:
        assert main([*words, flag, str(path), "--no-progress"]) == code, (flag, path)
        error = capsys.readouterr().err
        assert flag in error
        assert error.count("\n") == 1
    assert not missing.parent.exists()
    assert binary.read_bytes() == bytes(range(256))


def test_schemes_that_cannot_be_built_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Among the defaults; one that was asked for is refused (above)."""
    assert main(["latency", "--workers", "3", "--size", "90x90x1", "--model", "none", "--trials", "1", "--profile",
                 "ideal", "--processes", "1", "--no-progress"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    refused = [line[0] for line in rows(out) if "refused" in line]
    assert refused
    for scheme in refused:
        assert f"\nrefused: {scheme}, W = 3: --" in out


def test_traces_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    for content, text in ((b"a,b\n1,2\n", "no 'worker'"), (bytes(range(256)), "must be text"), (b"", "holds no times")):
        trace.write_bytes(content)
        assert main(["latency", "--workers", "4", "--scheme", "fr", "--model", f"trace:{trace}"]) == 65
        assert text in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    words = [sys.executable, "-m", "cmm.simulate", "recovery", "--code", "fr:groups=3x3", "--grid", "12x12",
             "--tasks", "220", "--alpha", "0.2:0.3:4", "--trials", "4000", "--batch", "2", "--processes", "2",
             "--csv", str(path)]  # fmt: skip
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               env={**os.environ, "PYTHONPATH": str(ROOT)},
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip
    try:
        limit = time.monotonic() + 60
        while not path.exists() or path.read_text().count("\n") < 5:
            assert time.monotonic() < limit
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 75
    assert b"Traceback" not in errors
    done = sum(batch.stats.trials for batch in Store(path).batches)
    assert 4 <= done < 16000


def test_the_simulator_does_without_mpi() -> None:
    code = "import sys, cmm.simulate.cli; print('mpi4py' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
                          capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    assert done.stdout.strip() == "False"
