"""cmm.slurm without Slurm: options, memory, the script's text, and that nothing typed can become a command."""

from __future__ import annotations

import math
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cmm.core.errors import UsageError
from cmm.runtime.dryrun import prepare
from cmm.slurm.__main__ import main
from cmm.slurm.memory import MARGIN, RANK, with_memory
from cmm.slurm.options import LAUNCHERS, RULES, Request, make_parser, output_names, read, request
from cmm.slurm.script import render

SIZE = ("--nodes", "3", "--tasks-per-node", "2")
NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a b",
    "*",
    "-rf",
    "\\",
    "!!",
    "é&|",
]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, which is the current one."""
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.ones((300, 200)))
    np.save("B.npy", np.ones((300, 100)))
    Path("job.toml").write_text('a = "A.npy"\nb = "B.npy"\nout = "C.npy"\n')
    return tmp_path


def made(*words: str, venv: str = "", root: bool = False) -> Request:
    command = read(words)
    assert command is not None
    return request(command, folder=os.getcwd(), venv=venv, root=root)


def script(*words: str) -> str:
    return render(made("job.toml", *SIZE, "--mem", "1G", *words))


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


# ---- what is typed -----------------------------------------------------------------------------------------------


def test_a_mistyped_option_lists_the_valid_ones(job: Path) -> None:
    with pytest.raises(UsageError, match=r"--node'\. Did you mean --nodes\? Valid: --nodes, .*--wait"):
        read(["job.toml", "--node", "3"])
    with pytest.raises(UsageError, match=r"'--xyzzy'\. Valid: --nodes"):
        read(["job.toml", *SIZE, "--xyzzy"])
    with pytest.raises(UsageError, match=r"a flag of cmm\.run: write it after a --"):
        read(["job.toml", *SIZE, "--seed", "3"])


@pytest.mark.parametrize(("words", "said"), [
    (["--tasks-per-node", "2"], "--nodes: is required"),
    (["--nodes", "2"], "--tasks-per-node: is required"),
    (["--nodes", "0", "--tasks-per-node", "2"], "--nodes: must be a whole number"),
    ([*SIZE, "--time", "1h"], "--time: must be a time limit"),
    ([*SIZE, "--mem", "lots"], "--mem: must be an amount"),
    ([*SIZE, "--mem", "2G,1G"], "--mem: must be one amount"),
    ([*SIZE, "--launcher", "aprun"], "--launcher: must be one of mpirun, mpiexec"),
    ([*SIZE, "--wait"], "--wait: goes with --submit"),
    ([*SIZE, "--requeue"], "--requeue: needs --checkpoint"),
    ([*SIZE, "--warn", "60"], "--warn: goes with --requeue"),
    ([*SIZE, "--master-apart"], "--master-apart: needs --launcher srun-pmi2"),
    (["--nodes", "1", "--tasks-per-node", "2", "--master-apart", "--launcher", "srun-pmi2"], "two nodes"),
    ([*SIZE, "--master-apart", "--launcher", "srun-pmi2", "--array", "seed=1,2"], "does not go with --array"),
    ([*SIZE, "--array", "sed=1,2"], r"--array: .*Did you mean seed\?"),
    ([*SIZE, "--array", "seed=1,1"], "different values"),
    ([*SIZE, "--array", "seed=1,x"], "--seed: must be"),
    ([*SIZE, "--", "--dry-run"], "--: must be followed by flags of a job"),
    ([*SIZE, "--", "--grid", "0x3"], "--grid"),
    (["second.toml", *SIZE], "JOB.toml: must be one job file"),
])  # fmt: skip
def test_refusals(job: Path, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made("job.toml", *words)


def test_the_command_explains_and_exits_with_64(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["job.toml", "--nodes", "x", "--tasks-per-node", "2"]) == 64
    assert main(["missing.toml", *SIZE]) == 66
    assert main(["job.toml", *SIZE, "-o", "no/such/folder"]) == 73
    assert [line[:5] for line in capfd.readouterr().err.splitlines()] == ["cmm: "] * 3


def test_help_names_every_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capfd.readouterr().out
    assert all(name in text for action in make_parser()._actions for name in action.option_strings)
    assert all(name in text for name in LAUNCHERS)


# ---- what cannot be typed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(RULES) - {"venv", "checkpoint", "o"}))
@pytest.mark.parametrize(
    "text", ["x\n#SBATCH --uid=0", "a b", "$(id)", "`id`", "a;b", "a'b", 'a"b', "", "é", "a\\b", "a\r"]
)
def test_values_for_slurm_have_no_special_characters(job: Path, name: str, text: str) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=flag):
        read(["job.toml", *SIZE, f"{flag}={text}"])


@pytest.mark.parametrize("flag", ["--venv", "--checkpoint", "-o"])
@pytest.mark.parametrize("text", ["x\ny", "x\0", "x\x1b[0m"])
def test_paths_have_no_control_characters(job: Path, flag: str, text: str) -> None:
    with pytest.raises(UsageError, match=flag):
        read(["job.toml", *SIZE, flag, text])


@pytest.mark.parametrize("text", NASTY)
def test_quoted_values_arrive_unchanged(job: Path, text: str) -> None:
    """The script runs, with stand-ins for module, mpirun and python that record their arguments."""
    folder = job / text
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text("echo activated\n")
    stubs = job / "stubs"
    stubs.mkdir()
    for name in ("mpirun", "python"):
        stub = stubs / name
        stub.write_text(f'#!/bin/bash\nprintf "%s\\0" {name} "$@" >> "{job}/said"\ntouch -- "{job}/{{}}.json"\n')
        stub.chmod(0o755)
    words = ["job.toml", *SIZE, "--mem", "1G", "--venv", str(folder), f"--checkpoint={text}",
             "--", f"--out={folder}/C.npy", f"--param=x={text}"]  # fmt: skip
    env = {"PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_NTASKS": "6", "HOME": str(job)}
    done = subprocess.run(["bash"], input=render(made(*words)), capture_output=True, text=True, check=False, env=env,
                          cwd=job)  # fmt: skip
    assert "activated" in done.stdout, done.stderr
    said = (job / "said").read_text().split("\0")
    assert f"--param=x={text}" in said
    assert f"--out={folder}/C.npy" in said
    assert f"--report={folder}/C.npy.report.json" in said
    assert f"--checkpoint={job}/{os.path.normpath(text)}" in said
    assert not (job / "pwned").exists()


@pytest.mark.parametrize("words", [["--", "--param", "x=1\n#SBATCH --uid=0"], ["--array", "seed=1\n,2"]])
def test_nothing_makes_a_line_of_its_own(job: Path, words: list[str]) -> None:
    with pytest.raises(UsageError, match="control characters"):
        script(*words)


def test_the_head_repeats_the_command(job: Path) -> None:
    head = [line for line in script("--", "--param", "x=$(id)").splitlines() if line.startswith("# Written by")]
    assert head == ["# Written by: python -m cmm.slurm job.toml --nodes 3 --tasks-per-node 2 --mem 1G -- --param "
                    "'x=$(id)'"]  # fmt: skip


# ---- the script --------------------------------------------------------------------------------------------------


def test_what_slurm_is_told(job: Path) -> None:
    text = script("--time", "1:00:00", "--partition", "main", "--account", "X", "--qos", "low", "--constraint", "a|b",
                  "--sbatch=--exclusive", "--sbatch=--reservation=r1", "--cpus-per-task", "4")  # fmt: skip
    assert directives(text) == [
        "--job-name=job", "--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=4", "--mem=1G", "--time=1:00:00",
        "--partition=main", "--account=X", "--qos=low", "--constraint=a|b", "--exclusive", "--reservation=r1",
        "--output=%x-%j.out", "--no-requeue", "--no-kill",
    ]  # fmt: skip
    assert "export OMP_NUM_THREADS=4" in text


@pytest.mark.parametrize(("launcher", "line"), [
    ("mpirun", 'mpirun --bind-to none -n "$SLURM_NTASKS" \\'),
    ("mpiexec", 'mpiexec -n "$SLURM_NTASKS" \\'),
    ("srun-pmi2", "srun --mpi=pmi2 --cpus-per-task=1 \\"),
    ("srun-pmix", "srun --mpi=pmix --cpus-per-task=1 \\"),
])  # fmt: skip
def test_launchers(job: Path, launcher: str, line: str) -> None:
    lines = script("--launcher", launcher).splitlines()
    assert line in lines
    assert ("    --kill-on-bad-exit=1 --wait=0 --no-kill \\" in lines) == launcher.startswith("srun")


def test_order_of_the_site_s_lines(job: Path) -> None:
    text = render(made("job.toml", *SIZE, "--mem", "1G", "--module", "gcc", "--module", "openmpi/5", "--venv", "~/v x"))
    site = text[text.index("module load gcc") :].splitlines()[:4]
    assert site == ["module load gcc || exit", "module load openmpi/5 || exit", "source ~/'v x/bin/activate' || exit",
                    f"cd {job} || exit"]  # fmt: skip


def test_root_is_allowed_for_open_mpi_only(job: Path) -> None:
    texts = [render(made("job.toml", *SIZE, "--mem", "1G", "--launcher", name, root=True)) for name in LAUNCHERS]
    assert ["ALLOW_RUN_AS_ROOT" in text for text in texts] == [True, False, False, False]


def test_an_array_has_its_own_outputs(job: Path) -> None:
    wanted = made("job.toml", *SIZE, "--mem", "1G", "--array", "seed=1,2", "--checkpoint", "kept")
    assert [spec.seed for spec in wanted.specs] == [1, 2]
    assert [spec.out for spec in wanted.specs] == [f"{job}/C.seed-1.npy", f"{job}/C.seed-2.npy"]
    text = render(wanted)
    assert "--array=0-1" in directives(text)
    assert f'CHECKPOINT={job}/kept/"$SLURM_ARRAY_TASK_ID"' in text
    assert made("job.toml", *SIZE, "--mem", "1G", "--array", "inject=kill:1;freeze:1,2").specs[1].inject[0].ranks == (
        1,
        2,
    )


def test_output_names() -> None:
    assert output_names("d/C.h5::/x", "code", ["a/b", "c"]) == ("d/C.code-a-b.h5::/x", "d/C.code-c.h5::/x")
    assert output_names("C.npy", "inject", ["a:1", "a,1"]) == ("C.inject-a-1-0.npy", "C.inject-a-1-1.npy")


def test_rank_0_apart(job: Path) -> None:
    wanted = made("job.toml", *SIZE, "--master-apart", "--launcher", "srun-pmi2", "--mem", "8G,2G")
    first, second = render(wanted).split("#SBATCH hetjob\n")
    assert wanted.ranks == 5
    assert ["--nodes=1" in directives(first), "--ntasks=1" in directives(first), "--mem=8G" in directives(first)] == [
        True
    ] * 3
    assert directives(second) == ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--mem=2G"]
    assert "--het-group=0,1" in second


def test_memory_is_what_the_plan_says(job: Path) -> None:
    wanted = with_memory(made("job.toml", *SIZE))
    plan = prepare(wanted.specs[0], 5).memory
    first = MARGIN * (2 * RANK + plan.master(2) + plan.worker)
    other = MARGIN * 2 * (RANK + plan.worker)
    assert wanted.memory == (math.ceil(first / 2**20), math.ceil(other / 2**20))
    assert f"--mem={max(wanted.memory)}M" in directives(render(wanted))
    alone = with_memory(made("job.toml", *SIZE, "--master-apart", "--launcher", "srun-pmi2"))
    assert alone.memory[0] < wanted.memory[0]


def test_the_script_is_written_executable(job: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-m", "cmm.slurm", "job.toml", *SIZE, "-o", "s.sh"], capture_output=True,
                          check=False, env=env)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"")
    assert os.stat("s.sh").st_mode & stat.S_IXUSR
    assert subprocess.run(["bash", "-n", "s.sh"], check=False).returncode == 0


def end_of(text: str) -> str:
    return text[text.index("# The report is the proof") :]


@pytest.mark.parametrize(
    ("code", "report", "expected"), [("0", "", 70), ("137", "", 137), ("137", "0", 0), ("0", "4", 4)]
)
def test_the_report_makes_the_exit_code(job: Path, code: str, report: str, expected: int) -> None:
    """The last lines of the script, run by bash: a launcher's code counts only when there is no report."""
    (job / "python").write_text(f"#!/bin/bash\nexit {report or 66}\n")
    (job / "python").chmod(0o755)
    if report:
        (job / "report").touch()
    words = ["bash", "-c", f"REPORT=report code={code}\n{end_of(script())}"]
    done = subprocess.run(words, env={"PATH": f"{job}:{os.environ['PATH']}"}, capture_output=True, check=False)
    assert done.returncode == expected
