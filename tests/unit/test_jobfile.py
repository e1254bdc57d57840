"""Flags, job files and their merge: what is accepted, what is refused and in whose name."""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.core import jobfile, options
from cmm.core.errors import CmmError, ExitCode, InputMissingError, UsageError
from cmm.core.grid import Grid
from cmm.core.jobfile import ACTIONS, OPTIONS, TABLE, parse
from cmm.core.spec import INJECTIONS, RULES, Injection, JobSpec, check_ranks

FILES = ["--a", "A.npy", "--b", "B.npy", "--out", "C.npy"]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "job-files.md"


def spec_of(*argv: str) -> JobSpec:
    spec = parse([*FILES, *argv]).spec
    assert spec is not None
    return spec


def write(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


# ---- the table ---------------------------------------------------------------------------------------------------


def test_the_table_has_every_field_once_and_every_field_a_rule() -> None:
    names = [option.name for option in OPTIONS]
    assert sorted(names) == sorted(item.name for item in fields(JobSpec))
    assert set(names) <= set(RULES)


def test_every_flag_of_the_parser_is_known_to_the_suggestions() -> None:
    parser = TABLE.parser()
    assert isinstance(parser, argparse.ArgumentParser)
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", parser.format_help()))
    assert set(TABLE.flags) <= shown
    assert {option.flag for option in OPTIONS} | {f"--{name}" for name in ACTIONS} <= set(TABLE.flags)


def test_the_documentation_holds_the_table() -> None:
    assert TABLE.markdown() in DOCS.read_text()


# ---- what is accepted --------------------------------------------------------------------------------------------


def test_defaults() -> None:
    spec = spec_of()
    here = os.getcwd()
    assert (spec.a, spec.out) == (f"{here}/A.npy", f"{here}/C.npy")
    assert spec.report == f"{here}/C.npy.report.json"
    assert (spec.code, spec.op, spec.dispatch, spec.verify, spec.progress) == ("fr", "T", "pull", "all", "auto")
    assert (spec.grid, spec.tasks, spec.tolerance, spec.give_up, spec.timeline) == (None,) * 5
    assert (spec.seed, spec.threads, spec.overwrite, spec.inject, dict(spec.params)) == (0, 1, False, (), {})


def test_every_flag() -> None:
    spec = spec_of(
        "--report", "r.json", "--op", "H", "--code", "rkrp", "--grid", "2x3x4", "--tasks", "50", "--param", "x=1=2",
        "--param", "y=", "--dispatch", "oneshot", "--inject", "slow:2:3", "--inject", "freeze:all", "--seed", "7",
        "--tolerance", "1e-7", "--verify", "final", "--threads", "2", "--give-up", "0", "--overwrite",
        "--timeline", "t.PNG", "--progress", "none", "--checkpoint", "ck/", "--checkpoint-every", "0.5", "--resume",
    )  # fmt: skip
    assert spec == JobSpec(
        *(os.path.abspath(name) for name in ("A.npy", "B.npy", "C.npy", "r.json")), "H", "rkrp", Grid(3, 4, 2), 50,
        {"x": "1=2", "y": ""}, "oneshot", (Injection("slow", (2,), 3.0), Injection("freeze", None, 0.0)), 7, 1e-7,
        "final", 2, 0.0, True, os.path.abspath("t.PNG"), "none",
        os.path.abspath("ck"), 0.5, True,
    )  # fmt: skip


def test_a_job_file_may_stand_anywhere_among_the_flags(tmp_path: Path) -> None:
    job = write(tmp_path, 'a = "A.npy"\nb = "B.npy"\nout = "C.npy"\nseed = 3')
    first, last = parse([job, "--op", "H"]).spec, parse(["--op", "H", job]).spec
    assert first == last
    assert first is not None
    assert (first.seed, first.op) == (3, "H")


def test_flags_win_lists_are_replaced_and_params_merged_by_key(tmp_path: Path) -> None:
    job = write(tmp_path, 'a = "A"\nb = "B"\nout = "C"\nseed = 3\noverwrite = true\ninject = ["freeze:1", "slow:2:2"]\n'
                '[params]\ngroups = "full"\nloss = 0.5\nlive = true\n')  # fmt: skip
    spec = parse([job, "--seed", "4", "--no-overwrite", "--inject", "kill:3", "--param", "loss=0.1"]).spec
    assert spec is not None
    assert (spec.seed, spec.overwrite, spec.inject) == (4, False, (Injection("kill", (3,), 0.0),))
    assert spec.params == {"groups": "full", "loss": "0.1", "live": "true"}


def test_params_of_the_file_belong_to_its_code(tmp_path: Path) -> None:
    job = write(tmp_path, 'a = "A"\nb = "B"\nout = "C"\n[params]\ngroups = "full"\n')
    same, other = parse([job, "--code", "fr"]).spec, parse([job, "--code", "rkrp"]).spec
    assert same is not None
    assert other is not None
    assert (same.params, other.params) == ({"groups": "full"}, {})


def test_paths_are_relative_to_the_job_file_there_and_to_the_current_directory_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "work").mkdir()
    write(tmp_path / "jobs", 'a = "../data/A.npy"\nb = "/abs/B.npy"\nout = "C.npy"')
    monkeypatch.chdir(tmp_path / "work")
    spec = parse(["../jobs/job.toml", "--out", "C.npy"]).spec
    assert spec is not None
    assert (spec.a, spec.b) == (str(tmp_path / "data" / "A.npy"), "/abs/B.npy")
    assert spec.out == str(tmp_path / "work" / "C.npy")
    assert spec.report == spec.out + ".report.json"


def test_actions() -> None:
    assert parse(["--help", "--nonsense"]).action == "help"
    assert parse(["--version"]).action == "version"
    assert parse(["--list-codes"]) == jobfile.Command("list-codes")
    plan = parse(["--dry-run", "--workers", "5", "--a", "A", "--b", "B"])
    assert (plan.action, plan.workers) == ("dry-run", 5)
    assert plan.spec is not None
    assert (plan.spec.out, plan.spec.report) == ("", "")


# ---- the merged job, printed -------------------------------------------------------------------------------------

texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
paths = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/"), min_size=1, max_size=12)
ranks = st.none() | st.sets(st.integers(1, 99), min_size=1).map(lambda found: tuple(sorted(found)))


@st.composite
def injections(draw: st.DrawFn) -> Injection:
    kind = draw(st.sampled_from(sorted(INJECTIONS)))
    form = INJECTIONS[kind]
    return Injection(kind, draw(ranks), draw(st.floats(form.least, form.most)))


@given(
    data=st.data(),
    seed=st.integers(0, 10**18),
    tolerance=st.none() | st.floats(1e-300, 1e299),
    found=st.lists(injections(), max_size=3),
    params=st.dictionaries(texts, texts, max_size=3),
    grid=st.none() | st.builds(Grid, st.integers(1, 999), st.integers(1, 999), st.integers(1, 9)),
)
def test_the_printed_job_builds_the_same_job(data: st.DataObject, seed: int, tolerance: float | None,
                                             found: list[Injection], params: dict[str, str],
                                             grid: Grid | None) -> None:  # fmt: skip
    names = data.draw(st.lists(paths.filter(lambda name: name not in (".", "..")), min_size=5, max_size=5, unique=True))
    a, b, out, report, picture = (f"/data/{name}" for name in names)
    spec = JobSpec(a, b, out, report, grid=grid, params=params, inject=tuple(found), seed=seed, tolerance=tolerance,
                   timeline=picture + ".png")  # fmt: skip
    table = tomllib.loads(TABLE.to_toml(spec))
    options = TABLE.by_key
    read = {options[key].name: TABLE._from_toml(options[key], value, key, "/") for key, value in table.items()}
    assert JobSpec(**read) == spec


def test_show_config_feeds_back_through_a_file(tmp_path: Path) -> None:
    spec = spec_of("--grid", "3x4", "--inject", "exp:1-3,5:0.25", "--param", 'name="q"', "--tolerance", "1e-7")
    path = tmp_path / "merged.toml"
    path.write_text(TABLE.to_toml(spec))
    assert parse([str(path)]).spec == spec
    assert TABLE.mapping(spec)["inject"] == ["exp:1,2,3,5:0.25"]
    assert TABLE.mapping(spec)["give-up"] is None


# ---- injections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "injection"),
    [
        ("slow:2:5", Injection("slow", (2,), 5.0)),
        ("sleep:1-3:0", Injection("sleep", (1, 2, 3), 0.0)),
        ("exp:all:.2", Injection("exp", None, 0.2)),
        ("freeze:2,5", Injection("freeze", (2, 5), 0.0)),
        ("freeze:1-2,2,9@1.5", Injection("freeze", (1, 2, 9), 1.5)),
        ("kill:all@1e1", Injection("kill", None, 10.0)),
        ("corrupt:4", Injection("corrupt", (4,), 1.0)),
        ("corrupt:4:0.25", Injection("corrupt", (4,), 0.25)),
    ],
)
def test_injections(text: str, injection: Injection) -> None:
    assert Injection.parse(text) == injection
    assert Injection.parse(str(injection)) == injection


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must start with slow:"),
        ("freez:2", "must start with"),
        ("freeze", "RANKS must be like"),
        ("freeze:", "RANKS must be like"),
        ("freeze:2:3", "RANKS must be like"),
        ("freeze:2@", "SECONDS of freeze must be a number"),
        ("freeze:2@-1", "between 0 and 1e+06"),
        ("freeze:2@nan", "must be a number"),
        ("kill:2@1e999", "must be a number"),
        ("slow:2", "slow needs a FACTOR: slow:RANKS:FACTOR"),
        ("slow:2:0.5", "between 1 and"),
        ("slow:2:x", "FACTOR of slow must be a number"),
        ("slow:2@5", "slow needs a FACTOR"),
        ("sleep:1:1:1", "must be a number"),
        ("exp:1", "exp needs a MEAN"),
        ("corrupt:1:1.5", "between 0 and 1"),
        ("freeze:0", "rank 0 is the master"),
        ("freeze:0-3", "rank 0 is the master"),
        ("freeze:-2", "RANKS must be like"),
        ("freeze:3-1", "must not descend"),
        ("freeze:1,,2", "RANKS must be like"),
        ("freeze:all,2", "RANKS must be like"),
        ("freeze:1-999999999", "at most 1000000"),
        ("freeze:٣", "RANKS must be like"),
    ],
)
def test_malformed_injections_name_their_rule(text: str, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        Injection.parse(text)
    assert rule in caught.value.rule
    assert caught.value.argument == "--inject"
    assert repr(text) in str(caught.value)


def test_ranks_are_checked_against_the_world() -> None:
    mine = [Injection.parse("freeze:1-3"), Injection.parse("slow:all:2")]
    check_ranks(mine, 3)
    with pytest.raises(UsageError, match=r"ranks 1 to 2.*rank 3 in 'freeze:1,2,3@0'"):
        check_ranks(mine, 2)
    with pytest.raises(UsageError, match="no workers"):
        check_ranks(mine, 0)
    check_ranks(mine[1:], 0)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "argument", "text"),
    [
        (["--injct", "freeze:2"], "command line", "Did you mean --inject?"),
        (["--give_up=3"], "command line", "Did you mean --give-up?"),
        (["--see", "3"], "command line", "Did you mean --seed?"),  # no abbreviations
        (["--seed"], "--seed", "expected one argument"),
        (["--seed", "-1"], "--seed", "from 0"),
        (["--seed", "1.0"], "--seed", "whole number"),
        (["--seed", "1_0"], "--seed", "whole number"),
        (["--seed", "9" * 30], "--seed", "whole number"),
        (["--tasks", "0"], "--tasks", "from 1"),
        (["--threads", "0"], "--threads", "from 1"),
        (["--tolerance", "0"], "--tolerance", "above 0"),
        (["--tolerance", "nan"], "--tolerance", "finite"),
        (["--tolerance", "inf"], "--tolerance", "finite"),
        (["--tolerance", "1e999"], "--tolerance", "finite"),
        (["--give-up", "-0.1"], "--give-up", "from 0"),
        (["--op", "t"], "--op", "must be T or H"),
        (["--verify", "some"], "--verify", "none, final or all"),
        (["--dispatch", "push"], "--dispatch", "pull or oneshot"),
        (["--progress", "dots"], "--progress", "auto, bar, lines or none"),
        (["--grid", "4"], "--grid", "MxN or PxMxN"),
        (["--grid", "0x4"], "--grid", "at least 1"),
        (["--param", "x"], "--param", "KEY=VALUE"),
        (["--param", "=x"], "--param", "KEY=VALUE"),
        (["--param", "loss=0.1", "--param", "loss=0.2"], "--param loss", "given once"),
        (["--timeline", "t.jpg"], "--timeline", ".png"),
        (["--overwrite=yes"], "--overwrite", "ignored explicit argument"),
        (["--workers", "3"], "--workers", "--dry-run only"),
        (["--dry-run", "--workers", "x"], "--workers", "whole number"),
        (["--out", ""], "--out", "must name a file"),
        (["--out", "folder/"], "--out", "must name a file"),
        (["--out", "A.npy"], "--out", "must not be the file of --a"),
        (["--report", "C.npy"], "--report", "must not be the file of --out"),
        (["--timeline", "x.png", "--report", "x.png"], "--timeline", "must not be the file of --report"),
        (["--resume"], "--resume", "needs --checkpoint"),
        (["--checkpoint", ""], "--checkpoint", "must name a folder"),
        (["--checkpoint", "."], "--checkpoint", "must not be, or hold, the file of --a"),
        (["--checkpoint", "C.npy"], "--checkpoint", "must not be, or hold, the file of --out"),
        (["--checkpoint", "ck", "--report", "ck/r.json"], "--checkpoint", "the file of --report"),
        (["--checkpoint", "ck", "--checkpoint-every", "-1"], "--checkpoint-every", "from 0"),
        (["--resumed"], "command line", "--resume"),
        (["one.toml", "two.toml"], "JOB.toml", "one job file"),
    ],
)
def test_refused_flags(argv: list[str], argument: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([*FILES, *argv])
    assert caught.value.argument == argument
    assert text in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("missing", ["--a", "--b", "--out"])
def test_files_are_required(missing: str) -> None:
    at = FILES.index(missing)
    with pytest.raises(UsageError, match=f"{missing}: is required"):
        parse(FILES[:at] + FILES[at + 2 :])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sed = 3", ["must be a key", "'sed'", "Did you mean seed?"]),
        ("give_up = 3", ["Did you mean give-up?"]),
        ("[job]\nseed = 3", ["must be a key", "'job'"]),
        ("seed = '3'", ["seed in", "whole number", "'3'"]),
        ("seed = true", ["seed in", "whole number"]),
        ("tolerance = nan", ["tolerance in", "finite"]),
        ("tolerance = 1" + "0" * 400, ["tolerance in", "finite"]),
        ("overwrite = 1", ["overwrite in", "true or false"]),
        ("grid = 4", ["grid in", "in quotes"]),
        ("grid = '4y4'", ["grid in", "MxN or PxMxN"]),
        ("a = ['A.npy']", ["a in", "in quotes"]),
        ("code = 3", ["code in", "name of a code"]),
        ("inject = 'freeze:0'", ["inject in", "rank 0 is the master"]),
        ("inject = [1]", ["inject in", "list of texts"]),
        ("params = 3", ["params in", "must be a table"]),
        ("[params]\nx = [1]", ["params in", "x = [1]"]),
        ("seed = 3\nseed = 4", ["valid TOML"]),
        ("seed = \nop = 1", ["valid TOML", "line 1"]),
        ("seed = " + "1" * 5000, ["valid TOML"]),
        ("x = " + "[" * 100_000, ["valid TOML"]),
    ],
)
def test_refused_job_files(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        TABLE.read_job(write(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)


def test_refused_files(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="No such file"):
        TABLE.read_job(str(tmp_path / "nowhere.toml"))
    with pytest.raises(InputMissingError, match="directory"):
        TABLE.read_job(str(tmp_path))
    binary = tmp_path / "A.npy"
    binary.write_bytes(b"\x93NUMPY\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        TABLE.read_job(str(binary))
    binary.write_bytes(bytes(options.LARGEST_FILE + 1))
    with pytest.raises(UsageError, match="at most"):
        TABLE.read_job(str(binary))


WORDS_AND_FLAGS = [*TABLE.flags, "-x", "--", "1", "x", "", "2:3", "4x4", "freeze:2", "C.npy"]


@given(st.lists(st.sampled_from(WORDS_AND_FLAGS), max_size=6))
def test_no_command_line_ends_in_anything_but_a_refusal(argv: list[str]) -> None:
    code = ExitCode.COMPLETE
    try:
        parse(argv)
    except CmmError as error:
        code = error.exit_code
    assert code in (ExitCode.COMPLETE, ExitCode.USAGE, ExitCode.NO_INPUT)


def ending(argv: list[str]) -> ExitCode:
    """How reading a command line ends: in order, or in a refusal of one line."""
    try:
        parse(argv)
    except CmmError as error:
        text, code = str(error), error.exit_code
    else:
        return ExitCode.COMPLETE
    assert text
    assert text.isprintable()
    return code


TELLING = ["4x4", "2x2x2", "slow:1-3:2.5", "freeze:2@1", "1e-9", "-1", "nan", "1e400", "9" * 20, "A.npy", "groups=full",
           "=", "\udcff", "٣"]  # fmt: skip
WORDS = st.text(max_size=12) | st.sampled_from(TELLING)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TABLE.flags) | WORDS, max_size=8))
def test_flags_with_any_text_are_read_or_refused_in_one_line(argv: list[str]) -> None:
    assert ending(argv) in (ExitCode.COMPLETE, ExitCode.USAGE, ExitCode.NO_INPUT)


VALUES = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
          | st.sampled_from(["4x4", "fr", "slow:all:2", "T", "pull", "none"]))  # fmt: skip
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                                          max_size=2),
                      max_leaves=4)  # fmt: skip


def as_toml(value: Any) -> str:
    """A TOML value; None becomes an empty table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict) or value is None:
        return f"{{{', '.join(f'{json.dumps(key)} = {as_toml(item)}' for key, item in (value or {}).items())}}}"
    return str(value)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([option.key for option in OPTIONS]) | st.text(max_size=4), NESTED, max_size=5))
def test_job_files_with_any_values_are_read_or_refused_in_one_line(tmp_path: Path, table: dict[str, Any]) -> None:
    path = tmp_path / "job.toml"
    path.write_text("".join(f"{json.dumps(key)} = {as_toml(value)}\n" for key, value in table.items()))
    assert ending([str(path)]) in (ExitCode.COMPLETE, ExitCode.USAGE)


@settings(max_examples=150)
@given(st.sampled_from(sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*.toml"))),
       st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))  # fmt: skip
def test_damaged_job_files_are_read_or_refused_in_one_line(
    tmp_path: Path, source: Path, edits: list[tuple[float, int]]
) -> None:
    data = bytearray(source.read_bytes())
    for where, byte in edits:
        data[int(where * len(data))] = byte
    path = tmp_path / "job.toml"
    path.write_bytes(data)
    assert ending([str(path)]) in (ExitCode.COMPLETE, ExitCode.USAGE)


def test_a_spec_built_by_a_program_obeys_the_same_rules() -> None:
    with pytest.raises(UsageError, match="--threads"):
        JobSpec("A", "B", "C", "R", threads=0)
    with pytest.raises(UsageError, match="--op"):
        JobSpec("A", "B", "C", "R", op="X")
