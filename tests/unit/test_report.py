"""The report: any record can be written and read back, and its summary says what counts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import fields
from datetime import datetime
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm import report as command
from cmm.core.errors import DataError, ExitCode, InputMissingError, Outcome, OutputError, UsageError
from cmm.runtime import launch, report
from cmm.runtime.progress import Progress
from cmm.runtime.report import Problem, Record, Seconds, Status, Verification, WorkerReport, load, summary_lines
from cmm.runtime.surroundings import environment, peak_memory
from cmm.runtime.timeline import bars, draw
from cmm.runtime.timeline import main as draw_again

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def complete() -> Record:
    """A record as a job with a lost and a slow worker leaves it."""
    record = Record(job={"out": "/data/C.npy", "report": "/data/C.npy.report.json"}, host="node7", seed=3)
    record.problem = Problem(3001, 1999, 1501, "float64")
    record.code = report.CodeUsed("fr", "4x4", 16, 24, 3, "pull", {"construction": "systematic", "loss": None})
    record.decoding = report.Decoding("lu", "", 17, 1, 4, error_estimate=2e-14, tolerance=1e-9, condition=math.nan)
    record.verification = Verification("all", True, 1.2e-16, 3e-14, 1e-13, 17, 1)
    record.seconds = Seconds(read=0.1, decode=0.25, total=1.5)
    for rank in (3, 1, 2):
        record.worker(rank).host = f"node{rank}"
    record.worker(2).status, record.worker(3).status = Status.LOST, Status.STRAGGLER
    record.worker(1).task_seconds += [0.25, np.float64(0.5)]
    record.event(0.5, 1, "systematic", 0, 0.25)
    record.event(0.75, 3, "repair", 20, 0.125)
    record.event(0.8, 3, "rejected", 20)
    record.event(1.0, 0, "local", 3, 0.1)
    record.event(1.25, 0, "decode", None, 0.25)
    record.event(1.5, 2, "unanswered", 1, 1.5)
    record.event(1.5, 2, "lost")
    record.end(Outcome.COMPLETE, ExitCode.COMPLETE)
    return record


def test_the_contract_of_the_report() -> None:
    table = json.loads(complete().to_json())
    contract = {
        "problem": {"s", "r", "t", "dtype"},
        "code": {"name", "grid", "K", "P", "params"},
        "decoding": {"results_used", "missing_blocks", "inactivations", "condition", "error_estimate", "refinement",
                     "block_operations"},
        "verification": {"mode", "passed", "residual", "limit", "rejected_results"},
        "seconds": {"read", "scale", "encode", "send", "wait", "decode", "verify", "write", "total"},
    }  # fmt: skip
    for key, inner in contract.items():
        assert inner <= table[key].keys()
    assert {"outcome", "exit_code", "seed", "environment", "bytes_sent", "bytes_received"} <= table.keys()
    assert {"rank", "host", "tasks_done", "task_seconds", "status"} <= table["workers"][0].keys()
    assert {"versions", "mpi", "blas", "threads"} <= environment().keys()
    assert (table["version"], table["outcome"], table["exit_code"]) == (1, "complete", 0)
    assert table["peak_memory_bytes"] >= 10_000_000
    assert [entry["rank"] for entry in table["workers"]] == [1, 2, 3]
    assert {entry["status"] for entry in table["workers"]} <= {"ok", "straggler", "lost", "rejected"}
    assert table["decoding"]["condition"] is None


def test_times_are_utc_and_in_order() -> None:
    record = complete()
    started, finished = datetime.fromisoformat(record.started), datetime.fromisoformat(record.finished)
    assert started <= finished
    assert started.utcoffset() is not None
    assert started.utcoffset().total_seconds() == 0  # type: ignore[union-attr]


def test_the_documentation_names_every_field() -> None:
    text = DOCS.read_text()
    for part in (Record, Problem, report.CodeUsed, report.Decoding, Verification, report.Counts, WorkerReport):
        for item in fields(part):
            assert f"`{item.name}`" in text or f".{item.name}`" in text or f"`{item.name}." in text, item.name
    for item in fields(Seconds):
        assert item.name in text


@pytest.mark.parametrize("outcome", Outcome)
def test_a_record_can_be_written_at_any_moment(tmp_path: Path, outcome: Outcome) -> None:
    record = Record()
    record.end(outcome, ExitCode.INTERNAL, "why")
    path = tmp_path / "r.json"
    record.write(path)
    assert load(path).to_json() == record.to_json()
    assert os.listdir(tmp_path) == ["r.json"]
    assert summary_lines(record)


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    record = complete()
    record.write(tmp_path / "r.json")
    again = load(tmp_path / "r.json")
    record.decoding.condition = None  # was not finite
    assert again == record
    assert again.to_json() == record.to_json()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.floats().map(np.float64) | st.integers(-99, 99).map(np.int32) | st.sampled_from(Outcome),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(), values, max_size=4))
def test_any_value_gives_strict_json(job: dict[str, object]) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    text = Record(job=job, warnings=["\ud800"]).to_json()
    assert json.loads(text.encode().decode(), parse_constant=refuse)["version"] == 1


def test_an_unwritable_report_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="--report"):
        Record().write(tmp_path / "no" / "r.json")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, InputMissingError),
        ("", DataError),
        ("[1]", DataError),
        ("{}", DataError),
        ('{"version": 99, "outcome": "complete", "exit_code": 0}', DataError),
        ('{"version": 1, "outcome": "complete", "exit_code": 0}', DataError),
        ("[" * 100_000, DataError),
    ],
)
def test_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None,
                           error: type[DataError]) -> None:  # fmt: skip
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error):
        load(path)
    assert command.main([str(path)]) == error.exit_code
    assert "cmm: FILE: " in capsys.readouterr().err


def test_keys_that_a_later_cmm_adds_are_no_damage(tmp_path: Path) -> None:
    table = json.loads(complete().to_json())
    for part in (table, table["decoding"], table["workers"][0]):
        part["later"] = 1
    (tmp_path / "r.json").write_text(json.dumps(table))
    assert load(tmp_path / "r.json").decoding.results_used == 17


@pytest.mark.parametrize("change", ["outcome", "exit_code", "workers", "problem"])
def test_a_damaged_report(tmp_path: Path, change: str) -> None:
    table = json.loads(complete().to_json())
    table[change] = "nonsense"
    (tmp_path / "r.json").write_text(json.dumps(table))
    with pytest.raises(DataError, match="complete report"):
        load(tmp_path / "r.json")


# ---- the summary -------------------------------------------------------------------------------------------------


def test_summary_of_a_complete_job() -> None:
    lines = summary_lines(complete())
    text = "\n".join(lines)
    for part in ("1999 x 1501", "float64", "fr construction=systematic, pull, grid 4x4: K = 16 blocks",
                 "N = 17 results", "lost: rank 2 (node2)", "straggler: rank 3 (node3)",
                 "1.5 (read 0.1, decode 0.25)", "PASSED", "residual 1.2e-16, limit 3e-14", "1 results rejected",
                 "node7:/data/C.npy.report.json"):  # fmt: skip
        assert part in text
    assert lines[-1] == "C is complete: node7:/data/C.npy"
    assert "loss" not in text


def test_the_last_line_announces_the_banner_and_the_failure() -> None:
    record = complete()
    record.leaving = "abort"
    assert summary_lines(record)[-1].startswith("C is complete: node7:/data/C.npy; a message about MPI_ABORT below is")
    record.verification.passed = False
    record.end(Outcome.UNVERIFIED, ExitCode.UNVERIFIED, "residual too large")
    lines = summary_lines(record)
    assert "FAILED" in "\n".join(lines)
    assert lines[-1] == "C is NOT there, unverified (exit code 3): residual too large"
    assert "decoded from N = 17 results" in "\n".join(lines)
    record.end(Outcome.INTERRUPTED, ExitCode.STOPPED, "SIGUSR1")
    assert "not decoded; accepted 17 results" in "\n".join(summary_lines(record))


def test_many_stragglers_are_cut_short() -> None:
    record = Record(workers=[WorkerReport(rank, status=Status.LOST) for rank in range(1, 100)])
    assert "lost: rank 1, 2, 3, 4, 5, 6, 7, 8 and 91 more" in "\n".join(summary_lines(record))


def test_the_command_prints_it_and_exits_with_the_code_of_the_job(tmp_path: Path) -> None:
    record = complete()
    record.end(Outcome.INACCURATE, ExitCode.INACCURATE, "out of reach")
    record.write(tmp_path / "r.json")
    for flags, text in (([], "C is NOT there, inaccurate"), (["--json"], '"outcome": "inaccurate"')):
        result = subprocess.run([sys.executable, "-m", "cmm.report", str(tmp_path / "r.json"), *flags],
                                capture_output=True, text=True, check=False)  # fmt: skip
        assert (result.returncode, result.stderr) == (5, "")
        assert text in result.stdout
    assert command.main(["--nonsense"]) == 64
    assert command.main(["--help"]) == 0


# ---- small parts -------------------------------------------------------------------------------------------------


def test_seconds_add_up() -> None:
    seconds = Seconds()
    seconds.add("decode", 0.5)
    with seconds.measure("decode"):
        pass
    assert 0.5 <= seconds.decode < 1


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_EVENTS", 3)
    record = Record()
    for task in range(5):
        record.event(0.1, 1, "coded", task)
    assert (len(record.events), record.events_dropped) == (3, 2)


def test_surroundings() -> None:
    found = environment("Open MPI v5.0.11\0\n, package", 2)
    assert found["mpi"] == "Open MPI v5.0.11 , package"
    assert found["versions"]["numpy"] == np.__version__
    assert "thread(s)" in found["blas"]
    before = peak_memory()
    block = np.ones(before // 8 + 1_000_000)
    assert peak_memory() >= before + 8_000_000
    assert block.nbytes > before


# ---- progress ----------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_every_five_percent_or_thirty_seconds() -> None:
    stream, clock = StringIO(), Clock()
    progress = Progress("lines", 100, stream=stream, clock=clock)
    for done in range(1, 101):
        clock.now += 2
        progress.update(done)
    assert len(stream.getvalue().splitlines()) == 20
    clock.now += 29
    progress.update(100)
    assert len(stream.getvalue().splitlines()) == 20
    clock.now += 2
    progress.update(100, "waiting for rank 3")
    assert stream.getvalue().splitlines()[-1] == "cmm: 100 of 100 results (100 %) after 231.0 s, waiting for rank 3"
    progress.close()


def test_a_short_job_is_silent() -> None:
    stream, clock = StringIO(), Clock()
    progress = Progress("lines", 100, stream=stream, clock=clock)
    for done in range(1, 101):
        clock.now += 0.009
        progress.update(done)
    assert stream.getvalue() == ""
    clock.now += 0.2
    progress.update(100)
    assert stream.getvalue() == "cmm: 100 of 100 results (100 %) after 1.1 s\n"


def test_no_progress() -> None:
    stream = StringIO()
    progress = Progress("none", 10, stream=stream)
    progress.update(10)
    progress.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("mode", ["lines", "bar"])
def test_what_cannot_be_written_ends_the_progress_and_nothing_else(mode: str) -> None:
    clock = Clock()
    with open("/dev/full", "w", buffering=1) as stream:
        progress = Progress(mode, 3, stream=stream, clock=clock)
        for done in range(1, 4):
            clock.now += 40
            progress.update(done)
        assert progress.mode == "none"
        progress.close()
        progress.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or closing would fail


def test_a_total_of_zero() -> None:
    stream, clock = StringIO(), Clock()
    progress = Progress("lines", 0, stream=stream, clock=clock)
    clock.now = 40
    progress.update(0)
    assert stream.getvalue() == "cmm: 0 of 0 results after 40.0 s\n"


@pytest.mark.parametrize(
    ("size", "stream", "mode"),
    [(None, Terminal, "bar"), (1, Terminal, "bar"), (4, Terminal, "lines"), (None, StringIO, "lines")],
)
def test_auto_is_a_bar_only_alone_on_a_terminal(monkeypatch: pytest.MonkeyPatch, size: int | None,
                                                stream: type[StringIO], mode: str) -> None:  # fmt: skip
    monkeypatch.setattr(launch, "world_size", lambda: size)
    out = stream()
    progress = Progress("auto", 10, stream=out)
    assert progress.mode == mode
    progress.update(4, total=12)
    time.sleep(0.15)  # tqdm draws ten times a second
    progress.update(12)
    progress.close()
    progress.close()
    if mode == "bar":
        assert "12/12" in out.getvalue()


def test_progress_refuses_an_unknown_mode() -> None:
    with pytest.raises(UsageError, match="--progress"):
        Progress("dots", 3)


# ---- timeline ----------------------------------------------------------------------------------------------------


def test_bars_are_what_lasted() -> None:
    found = bars(complete().events)
    assert found[("systematic", 1)] == [(0.25, 0.25)]
    assert found[("unanswered", 2)] == [(0.0, 1.5)]
    assert found[("decode", 0)] == [(1.0, 0.25)]
    assert len(found) == 5  # the marks are none


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_timelines_are_drawn(tmp_path: Path, suffix: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"t.{suffix}"
    draw(complete(), path)
    assert path.read_bytes().startswith(magic)
    if suffix == "svg":  # texts of a drawing are paths; the number of drawn groups is not
        assert path.stat().st_size > 10_000


def test_a_timeline_of_nothing_and_of_many_ranks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(Record(), tmp_path / "empty.png")
    crowd = Record(workers=[WorkerReport(rank) for rank in range(1, 400)])
    for rank in range(400):
        crowd.event(rank * 0.01, rank, "coded", rank, 0.005)
    draw(crowd, tmp_path / "crowd.png")
    assert (tmp_path / "crowd.png").stat().st_size > (tmp_path / "empty.png").stat().st_size


def test_the_timeline_can_be_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    complete().write(tmp_path / "r.json")
    assert draw_again([str(tmp_path / "r.json"), str(tmp_path / "t.png")]) == 0
    assert (tmp_path / "t.png").exists()
    assert draw_again([str(tmp_path / "no.json"), str(tmp_path / "t.png")]) == 66
    assert draw_again([str(tmp_path / "r.json")]) == 64
    assert draw_again([str(tmp_path / "r.json"), str(tmp_path / "no" / "t.png")]) == 73
    assert capsys.readouterr().err.count("cmm: ") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_summary_that_cannot_be_printed_keeps_the_exit_code(tmp_path: Path) -> None:
    record = complete()
    record.end(Outcome.INACCURATE, ExitCode.INACCURATE, "out of reach")
    record.write(tmp_path / "r.json")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "cmm.report", str(tmp_path / "r.json")], stdout=full, text=True,
                              stderr=subprocess.PIPE, cwd=DOCS.parents[1], timeout=60, check=False)  # fmt: skip
    assert done.returncode == ExitCode.INACCURATE
    assert done.stderr == "cmm: the summary cannot be printed: No space left on device\n"
