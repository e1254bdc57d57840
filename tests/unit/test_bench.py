"""Benchmarks: lists of the command line, rows and resuming, fits, tables, figures. Real jobs are in tests/mpi."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cmm.bench.cli import array_path, main, read_ranks, read_store
from cmm.bench.machine import to_json
from cmm.bench.measure import Bench
from cmm.bench.overheads import FORMULAS, VARIABLES, cases, fits, overheads_table, slope
from cmm.bench.points import (
    Point,
    Run,
    Wanted,
    points,
    read_array,
    read_sizes,
    run_of,
    share,
    split_injections,
    split_schemes,
    weak_size,
)
from cmm.bench.processes import launcher
from cmm.bench.statistics import Spread, summary, sweep_table
from cmm.bench.store import Store
from cmm.core.errors import CmmError, DataError, ExitCode, Outcome, UsageError
from cmm.runtime.report import Record, Status
from cmm.simulate.profile import MachineProfile


def passed(point: Point, repeat: int = 0, **values: object) -> Run:
    run = Run(point.s, point.r, point.t, point.ranks, point.scheme, point.inject, point.scaling, repeat,
              grid="4x4", K=16, P=40, N=16, code="fr", dispatch="pull", time=1.0, total=1.3, command=2.0, gflops=3.0,
              read=0.0, scale=0.0, encode=0.1, send=0.1, compute=0.0, wait=0.5, decode=0.1, verify=0.1, write=0.1,
              load=0.5, residual=1e-15, check="PASSED", outcome="complete")  # fmt: skip
    return replace(run, **values)  # type: ignore[arg-type]


POINT = Point(4, 64, 64, 64, "fr/pull")

# ---- lists -------------------------------------------------------------------------------------------------------


def test_commas_inside_rank_lists_and_parameters_do_not_split() -> None:
    assert split_injections("none,slow:1,3:5,freeze:1,2+kill:3,4") == ["none", "slow:1,3:5", "freeze:1,2+kill:3,4"]
    assert split_schemes("fr:grid=2x2,tasks=6,uncoded,fr/oneshot:groups=2x2") == [
        "fr:grid=2x2,tasks=6", "uncoded", "fr/oneshot:groups=2x2"]  # fmt: skip
    assert read_sizes("64,8x4x2") == [(64, 64, 64), (8, 4, 2)]
    assert read_ranks("1-3,8,2") == [1, 2, 3, 8]


def test_every_combination_is_one_point() -> None:
    wanted = Wanted([2, 4], [(64, 64, 64)], ["fr", "uncoded"], ["none", "slow:1:5"], ["2x2", "auto"], ["auto"])
    found = points(wanted)
    assert len(found) == len(set(found)) == 16
    assert {point.scheme for point in found} == {"fr/pull", "uncoded/pull", "fr/pull:grid=2x2", "uncoded/pull:grid=2x2"}
    flags = found[0].flags()
    assert flags[flags.index("--grid") + 1] == "2x2"


def test_redundancy_becomes_a_number_of_tasks_on_the_chosen_grid() -> None:
    (point,) = points(Wanted([9], [(64, 64, 64)], ["fr/oneshot"], redundancies=["1.5"], grids=["2x3"]))
    assert point.scheme == "fr/oneshot:grid=2x3,tasks=9"
    (chosen,) = points(Wanted([9], [(64, 64, 64)], ["fr/oneshot"], redundancies=["2"]))
    flags = dict(zip(*[iter(chosen.flags())] * 2, strict=True))
    m, n = map(int, flags["--grid"].split("x"))
    assert int(flags["--tasks"]) == 2 * m * n


def test_weak_scaling_gives_every_worker_as_many_products() -> None:
    found = points(Wanted([2, 9], [(120, 60, 60)], ["fr"], scalings=["weak"]))
    assert weak_size((120, 60, 60), 8) == (240, 120, 120)
    assert [point.flops / point.workers for point in found] == pytest.approx([2.0 * 120 * 60 * 60] * 2)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_an_array_shares_all_points_and_none_twice(count: int) -> None:
    all_points = points(Wanted([2, 3, 4], [(8, 8, 8)], ["fr", "uncoded"]))
    shares = [list(share(all_points, f"{member}/{count}")) for member in range(count)]
    assert sorted(map(str, all_points)) == sorted(str(point) for part in shares for point in part)
    assert array_path(Path("d/r.csv"), "1/3") == Path("d/r.1-of-3.csv")


@pytest.mark.parametrize("bad", ["", "4/4", "-1/4", "1", "a/b", "1/0"])
def test_a_wrong_array_is_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        read_array(bad)


@pytest.mark.parametrize(("flags", "said"), [
    (["--ranks", "0"], "--ranks: "), (["--ranks", "2,x"], "--ranks: "), (["--ranks", "8-2,4"], "--ranks: "),
    (["--ranks", "1-2-3"], "--ranks: "), (["--size", "4x4"], "--size: "), (["--size", "-4"], "--size: "),
    (["--code", "nosuch"], "--code: "), (["--code", "fr/sideways"], "--code: "), (["--code", ""], "--code: "),
    (["--code", "fr:constrution=paper"], "--code: param constrution must be a parameter of fr"),
    (["--code", "fr:grid=axb"], "--code: grid must be MxN"), (["--code", "fr:tasks=x"], "--code: tasks must be"),
    (["--code", "fr/oneshot:grid=4x4,tasks=2"], "--code: tasks must be at least 16 for fr on a 4x4 grid; got 2 in"),
    (["--code", "fr:grid=9x9"], "--code: grid must not cut 8 columns"),
    (["--inject", "sleepy:1"], "--inject: "), (["--inject", ","], "--inject: must name one at least"),
    (["--inject", "none,slow:2:5"], "--inject: must name workers only; the workers are ranks 1 to 1; got rank 2"),
    (["--ranks", "1,3", "--inject", "slow:1:5"], "--inject: must name workers only; this job has no workers"),
    (["--scaling", "sideways"], "--scaling: "), (["--redundancy", "0.5"], "--redundancy: "),
    (["--code", "fr:tasks=4,grid=2x2", "--redundancy", "x"], "--redundancy: "),
    (["--code", "matdot/oneshot:p=4", "--grid", "2x2", "--redundancy", "1"], "--"),
    (["--grid", "4"], "--grid: "), (["--code", "fr:grid=2x2", "--grid", "4"], "--grid: "),
    (["--size", "64,8", "--grid", "2x2,9x9"], "--grid: must not cut 8 columns of A into more than 8 parts; got 9x9"),
    (["--repeat", "0"], "--repeat: "), (["--repeat", "1e9"], "--repeat: must be a whole number from 1 to 10000"),
    (["--limit", "0"], "--limit: "),
    (["--plot", "figure.foo"], "--plot: must end in .png"), (["--array", "3/3"], "--array: "),
    (["--out", "results.json"], "--out: must end in .csv"), (["--out", "results.txt"], "--out: must end in .csv"),
    (["--nosuch"], "command line: "), (["--rank", "3"], "got '--rank'. Did you mean --ranks?"),
    (["--launcher", ""], "--launcher: must name a command"),
    (["--launcher", "'mpirun"], "--launcher: must be words as a shell reads them"),
    (["--launcher", "nosuchlauncher --bind-to none"], "'nosuchlauncher' is not there"),
    (["--launcher", __file__], "is not one that can be executed"),
    (["--launcher", "true -n 4"], "--launcher: must leave the number of ranks to cmm.bench"),
])  # fmt: skip
def test_what_breaks_a_rule_is_refused_before_anything_runs(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bench, "job", no_job)
    given = ["sweep", "--ranks", "2", "--size", "8", "--out", "results.csv", *flags]
    assert main(given) == ExitCode.USAGE
    message = capsys.readouterr().err
    assert message.startswith("cmm.bench: ")
    assert said in message
    assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def no_job(bench: Bench, point: Point, repeat: int) -> Run:
    raise AssertionError(f"{point} was run")


def test_too_little_redundancy_is_told_in_its_own_name() -> None:
    least = points(Wanted([9], [(64, 64, 64)], ["matdot/oneshot"], grids=["4x1x1"], redundancies=["100"]))
    assert "tasks=100" in least[0].scheme
    with pytest.raises(UsageError, match=r"--redundancy: P must be at least 7 for matdot on a 4x1x1 .*; got 3, P = 3"):
        points(Wanted([9], [(64, 64, 64)], ["matdot/oneshot"], grids=["4x1x1"], redundancies=["3"]))


def test_no_room_and_no_folder_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "job", no_job)
    given = ["sweep", "--ranks", "2", "--scratch", str(tmp_path), "--out", str(tmp_path / "r.csv"), "--size"]
    assert main([*given, "8,1000000"]) == ExitCode.CANNOT_WRITE
    assert "--scratch: needs 3.2e+04 GB" in capsys.readouterr().err
    assert main([*given, "8", "--out", str(tmp_path / "no" / "r.csv")]) == ExitCode.CANNOT_WRITE
    assert main(["profile", "--out", str(tmp_path / "no" / "r.json")]) == ExitCode.CANNOT_WRITE
    assert main(["overheads", "--out", str(tmp_path / "no" / "r.csv")]) == ExitCode.CANNOT_WRITE
    assert main([*given, "8", "--out", str(tmp_path)]) == ExitCode.CANNOT_WRITE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["profile", "overheads"])
def test_the_other_commands_judge_the_launcher_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--launcher", "nosuchlauncher"]) == ExitCode.USAGE
    assert "--launcher: must be a command on PATH" in capsys.readouterr().err


def test_without_any_mpirun_a_launcher_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launcher(1, prefix=str(tmp_path)) == ([], {})
    with pytest.raises(UsageError, match="--launcher: must be given where there is no mpirun"):
        launcher(2, prefix=str(tmp_path))
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    assert launcher(2, "srun --mpi='pmi 2'") == (["srun", "--mpi=pmi 2", "-n", "2"], {})


# ---- rows --------------------------------------------------------------------------------------------------------


def store(path: Path | None = None) -> Store[Run]:
    return Store(Run, lambda run: run.key, path)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [passed(POINT, 0, time=1 / 3), passed(replace(POINT, scheme="fr/pull:grid=2x2,tasks=6"), 1),
            Run(8, 8, 8, 2, "fr/pull", "none", "strong", 0, remark='two "lines",\nof text')]  # fmt: skip
    first = store(path)
    for row in rows:
        first.add(row)
        first.add(row)  # the first one counts
    again = store(path)
    assert list(again.rows.values())[:2] == rows[:2]
    last = list(again.rows.values())[2]
    assert last.remark == 'two "lines", of text'
    assert math.isnan(last.time)
    assert not last.passed
    assert (POINT, 0) in again
    assert (POINT, 1) not in again


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    for repeat in range(3):
        store(path).add(passed(POINT, repeat))
    text = path.read_text()
    path.write_text(text[:-9])
    resumed = store(path)
    assert [(POINT, repeat) in resumed for repeat in range(3)] == [True, True, False]
    resumed.add(passed(POINT, 2))
    assert path.read_text() == text
    path.write_text(text.partition("\n")[0])  # cut off right after the heading
    for repeat in range(3):
        store(path).add(passed(POINT, repeat))
    assert path.read_text() == text


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "\x00\x01", None])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "runs.csv"
    if content is None:
        store(path).add(passed(POINT))
        path.write_text(path.read_text().replace("64,64,64,4", "64,64,64,four"))
    else:
        path.write_text(content)
    before = path.read_text()
    with pytest.raises(DataError, match="--out: "):
        store(path)
    assert path.read_text() == before


@pytest.mark.parametrize(("name", "value", "said"), [
    ("s", "-5", "s must be a whole number, 0 or more; got '-5'"), ("ranks", "0", "ranks must be 1 or more; got 0"),
    ("time", "-0.5", "time must be a number, 0 or more, or nan"), ("time", "inf", "time must be a number"),
    ("time", "nan", "time must be above 0 in a run that passed"), ("encode", "1e400", "encode must be a number"),
    ("check", "fine", "check must be PASSED, FAILED or not checked; got 'fine'"), ("K", "", "K must be a whole number"),
    ("scaling", "weak", "scaling must be strong or weak:SIZE; got 'weak'"), ("scheme", "nosuch", "got 'nosuch'"),
    ("inject", "", "must start with"), ("bytes_sent", "many", "bytes_sent must be a whole number, 0 or more"),
])  # fmt: skip
def test_cells_that_no_run_can_have_are_told_by_line_and_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str, said: str
) -> None:
    path = tmp_path / "a.csv"
    read_store(path).add(Run(10, 10, 10, 2, "fr", "none", "strong", 0, time=1.0, check="PASSED", outcome="complete"))
    heading, row = path.read_text().splitlines()
    cells = dict(zip(heading.split(","), row.split(","), strict=True)) | {name: value}
    path.write_text(f"{heading}\n{','.join(cells.values())}\n")
    assert main(["plot", str(path), "--figure", str(tmp_path / "a.png")]) == 65
    message = capsys.readouterr().err
    assert message.startswith("cmm.bench: FILE.csv: line 2 cannot be read (")
    assert said in message
    assert not (tmp_path / "a.png").exists()


def test_a_line_with_a_cell_too_many_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    read_store(path).add(Run(10, 10, 10, 2, "fr", "none", "strong", 0, time=1.0, check="PASSED", outcome="complete"))
    path.write_text(path.read_text().rstrip("\n") + ",1\n")
    assert main(["plot", str(path), "--figure", str(tmp_path / "a.png")]) == 65
    assert "it must have" in capsys.readouterr().err


def test_a_run_that_failed_is_made_again_and_both_rows_stay(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    failed = replace(passed(POINT), check="FAILED", outcome="no report", remark="no end within 1 s")
    for row in (failed, passed(replace(POINT, ranks=5))):
        read_store(path).add(row)
    resumed = read_store(path)
    assert [(POINT, 0) in resumed, (replace(POINT, ranks=5), 0) in resumed] == [False, True]
    resumed.add(passed(POINT, time=3.0))
    resumed.add(passed(POINT, time=4.0))  # the first that passed counts
    again = read_store(path)
    assert again.rows[POINT, 0] == passed(POINT, time=3.0)
    assert len(path.read_text().splitlines()) == 4


def test_a_sweep_runs_what_failed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The jobs are stand-ins: one fails the first time. Real ones: tests/mpi/test_bench.py."""
    made: list[tuple[int, int]] = []

    def job(bench: Bench, point: Point, repeat: int) -> Run:
        made.append((point.ranks, repeat))
        good = point.ranks == 2 or len(made) > 4
        return passed(point, repeat) if good else replace(passed(point, repeat), check="FAILED", outcome="incomplete")

    monkeypatch.setattr(Bench, "job", job)
    given = ["sweep", "--ranks", "2,3", "--size", "8", "--repeat", "2", "--out", str(tmp_path / "r.csv")]
    assert main([*given, "--launcher", "true"]) == ExitCode.UNVERIFIED
    assert "FAILED (2 of 2: incomplete)" in capsys.readouterr().out
    assert main([*given, "--launcher", "true"]) == ExitCode.COMPLETE
    assert made == [(2, 0), (3, 0), (2, 1), (3, 1), (3, 0), (3, 1)]
    assert "2 runs that failed before are run again" in capsys.readouterr().err
    assert main([*given, "--launcher", "true"]) == ExitCode.COMPLETE
    assert len(made) == 6


def test_a_row_says_what_the_report_says() -> None:
    record = Record(outcome=Outcome.COMPLETE, exit_code=ExitCode.COMPLETE)
    record.started, record.finished = "2026-01-01T00:00:58.500+00:00", "2026-01-01T00:01:00.500+00:00"
    record.seconds.total, record.seconds.wait, record.seconds.decode = 2.3, 0.5, 0.25
    record.verification.passed, record.verification.residual = True, 1e-16
    record.code.K, record.decoding.results_used = 16, 17
    record.worker(2).status = Status.STRAGGLER
    run = run_of(POINT, 3, record, command=2.5)
    assert (run.key, run.K, run.N, run.load, run.decode, run.check) == ((POINT, 3), 16, 17, 0.75, 0.25, "PASSED")
    assert run.gflops == pytest.approx(2 * 64**3 / 2.0 / 1e9)
    assert (run.time, run.total, run.command) == (2.0, 2.3, 2.5)
    assert run.late == "2 straggler"
    record.outcome = Outcome.INCOMPLETE
    failed = run_of(POINT, 0, record, 2.5)
    assert (failed.passed, failed.command, failed.decode) == (False, 2.5, 0.25)
    assert all(math.isnan(value) for value in (failed.time, failed.gflops, failed.load))  # there was no C
    record.outcome = Outcome.COMPLETE
    record.verification.passed = None
    assert run_of(POINT, 0, record, 1.0).check == "not checked"


def test_tables_have_medians_and_name_what_failed() -> None:
    runs = [passed(POINT, k, time=time) for k, time in enumerate((3.0, 1.0, 2.0))]
    assert Spread.of(run.time for run in runs) == Spread(2.0, 1.5, 2.5)
    assert "| 2 [1.5 … 2.5]" in sweep_table(runs)
    wrong = replace(runs[0], repeat=3, check="FAILED", outcome="incomplete", grid="", K=0, time=9.0, gflops=99.0)
    text, (line,) = sweep_table([wrong, *runs]), summary([wrong, *runs])
    assert "FAILED (1 of 4: incomplete)" in text
    cells = [cell.strip() for cell in text.splitlines()[2].split("|")]
    assert (cells[3:5], cells[9:11]) == (["4x4", "16"], ["2 [1.5 … 2.5]", "3"])
    assert (line["runs"], line["passed"], line["time"]["median"], line["gflops"]) == (4, 3, 2.0, 3.0)
    json.dumps(line, allow_nan=False)
    alone, (line,) = sweep_table([wrong]), summary([wrong])  # no figure of a run without C
    assert "| – [– … –]" in alone
    assert "99" not in alone
    assert (line["gflops"], line["time"]["median"], line["passed"]) == (None, None, 0)


# ---- overheads ---------------------------------------------------------------------------------------------------


def test_slope_is_the_exponent() -> None:
    x = [1, 2, 4, 8]
    assert slope(x, [3 * value**1.5 for value in x]) == pytest.approx(1.5)
    assert math.isnan(slope([1, 1], [1, 2]))
    assert math.isnan(slope([1, 2], [0, math.nan]))
    assert slope([1, 2, 4], [0, 2, 8]) == pytest.approx(2)  # a phase too short for the clock is left out


def test_fits_find_the_growth_of_runs_that_follow_the_formulas() -> None:
    runs = []
    for case in cases(64):
        params = dict(pair.split("=") for pair in case.point.scheme.partition(":")[2].split(","))
        m, n = map(int, params["grid"].split("x"))
        base = passed(case.point, grid=params["grid"], K=m * n, P=int(params["tasks"]), N=m * n, missing=m * n // 2,
                      tasks_sent=m * n + 2)  # fmt: skip
        runs.append(replace(base, **{phase: 1e-9 * formula(base) for phase, (_, formula) in FORMULAS.items()}))
    found = fits(cases(64), runs)
    assert len(found) == len(FORMULAS) * len(VARIABLES)
    assert all(fit.measured == pytest.approx(fit.formula, abs=1e-9) for fit in found)
    growth = {(fit.phase, fit.variable): fit.measured for fit in found}
    assert [growth["wait", name] for name in "srt"] == pytest.approx([1, 1, 1])
    assert growth["decode", "K"] == pytest.approx(1)
    assert growth["decode", "s"] == pytest.approx(0, abs=1e-9)
    assert overheads_table(found).count("\n") == 1 + len(FORMULAS)


# ---- profile and figures -----------------------------------------------------------------------------------------


def test_a_measured_profile_is_what_the_simulator_reads(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    profile = MachineProfile(1e10, 1e9, 1e-6, 1e9, "node")
    path.write_text(to_json(profile, {"host": "node", "disk": {"read": 1.0}}))
    assert MachineProfile.named(str(path)) == profile
    assert json.loads(path.read_text())["measured"]["disk"]["read"] == 1.0
    path.write_text('{"gemm": 1e10, "disk": 3}')
    with pytest.raises(DataError):
        MachineProfile.load(path)


def test_plot_draws_measured_and_simulated_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, out = tmp_path / "runs.csv", tmp_path / "figure.png"
    rows = store(path)
    for ranks in (2, 3, 5):
        rows.add(passed(replace(POINT, ranks=ranks)))
        rows.add(passed(replace(POINT, ranks=ranks, scaling="weak:32x32x32")))
    rows.add(passed(replace(POINT, ranks=5, inject="slow:1:5")))
    given = ["plot", str(path), "--figure", str(out), "--profile", "default", "--continue", "8"]
    assert main(given) == ExitCode.COMPLETE
    assert out.read_bytes().startswith(b"\x89PNG")


def test_what_plot_cannot_read_is_told_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    empty, other, failed = (tmp_path / name for name in ("empty.csv", "other.csv", "failed.csv"))
    empty.touch()
    other.write_bytes(b"\xff\xfe")
    read_store(failed).add(replace(passed(POINT), check="FAILED"))
    found = {}
    for path in (tmp_path / "none.csv", tmp_path, empty, other, failed):
        found[path.name] = main(["plot", str(path), "--figure", str(tmp_path / "figure.png")])
        assert capsys.readouterr().err.startswith("cmm.bench: FILE.csv: must ")
    assert list(found.values()) == [66, 66, 65, 65, 65]
    assert empty.read_bytes() == b""
    assert main(["plot", str(failed), "--figure", "figure.foo"]) == ExitCode.USAGE
    assert "--figure: must end in" in capsys.readouterr().err


def test_the_simulated_curve_is_the_products_when_messages_are_free() -> None:
    from cmm.bench.figures import simulated, worker_counts

    assert worker_counts(10) == [1, 2, 4, 8, 10]
    ideal = MachineProfile.named("ideal")
    times = np.array([simulated("uncoded/pull:grid=4x4", w, (512, 512, 512), ideal) for w in (1, 2, 4, 16)])
    assert times * np.array([1, 2, 4, 16]) == pytest.approx([2 * 512**3 / ideal.gemm] * 4)
    with pytest.raises(CmmError):
        simulated("nosuch/pull", 1, (8, 8, 8), ideal)


def test_ctrl_c_while_it_is_loaded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    for command in ("bench", "simulate"):
        monkeypatch.setattr(f"cmm.{command}.cli.main", interrupted)
        assert importlib.import_module(f"cmm.{command}.__main__").main() == ExitCode.STOPPED
        assert f"cmm.{command}: " in capsys.readouterr().err


def test_more_workers_are_simulated_from_a_profile_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "x.csv", "--figure", str(tmp_path / "x.png"), "--continue", "100"]) == 64
    assert "--continue: goes with --profile" in capsys.readouterr().err
