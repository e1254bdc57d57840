"""Benchmarks: lists of the command line, rows and resuming, fits, tables, figures. Real jobs are in tests/mpi."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cmm.bench.cli import array_path, main, read_ranks
from cmm.bench.machine import to_json
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


@pytest.mark.parametrize("flags", [
    ["--ranks", "0"], ["--ranks", "2,x"], ["--size", "4x4"], ["--size", "-4"], ["--code", "nosuch"],
    ["--inject", "sleepy:1"], ["--scaling", "sideways"], ["--redundancy", "0.5"], ["--grid", "4"], ["--repeat", "0"],
    ["--plot", "figure.txt"], ["--array", "3/3"], ["--nosuch"],
])  # fmt: skip
def test_what_breaks_a_rule_is_refused_before_anything_runs(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.csv"
    given = ["sweep", "--ranks", "2", "--size", "8", "--out", str(out), *flags]
    assert main(given) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("cmm.bench: ")
    assert not out.exists()


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
    with pytest.raises(DataError, match="CSV"):
        store(path)
    assert path.read_text() == before


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
    assert not run_of(POINT, 0, Record(outcome=Outcome.INCOMPLETE), 1.0).passed
    record.verification.passed = None
    assert run_of(POINT, 0, record, 1.0).check == "not checked"


def test_tables_have_medians_and_name_what_failed() -> None:
    runs = [passed(POINT, k, time=time) for k, time in enumerate((3.0, 1.0, 2.0))]
    assert Spread.of(run.time for run in runs) == Spread(2.0, 1.5, 2.5)
    assert "| 2 [1.5 … 2.5]" in sweep_table(runs)
    runs.append(replace(runs[0], repeat=3, check="FAILED", outcome="incomplete", time=math.nan))
    assert "FAILED (1 of 4: incomplete)" in sweep_table(runs)
    (line,) = summary(runs)
    assert (line["runs"], line["passed"], line["time"]["median"]) == (4, 3, 2.0)
    json.dumps(line, allow_nan=False)


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
    assert main(["plot", str(tmp_path / "none.csv"), "--figure", str(out)]) == ExitCode.USAGE


def test_the_simulated_curve_is_the_products_when_messages_are_free() -> None:
    from cmm.bench.figures import simulated, worker_counts

    assert worker_counts(10) == [1, 2, 4, 8, 10]
    ideal = MachineProfile.named("ideal")
    times = np.array([simulated("uncoded/pull:grid=4x4", w, (512, 512, 512), ideal) for w in (1, 2, 4, 16)])
    assert times * np.array([1, 2, 4, 16]) == pytest.approx([2 * 512**3 / ideal.gemm] * 4)
    with pytest.raises(CmmError):
        simulated("nosuch/pull", 1, (8, 8, 8), ideal)
