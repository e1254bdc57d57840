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

from cmm.core.errors import InputMissingError, OutputError, UsageError
from cmm.runtime.dryrun import prepare
from cmm.slurm.__main__ import main
from cmm.slurm.commands import NoAnswer, ask, partitions, refuse_too_many_cores, refuse_too_much
from cmm.slurm.judging import VENDORS, check_folders
from cmm.slurm.memory import MARGIN, RANK, with_memory
from cmm.slurm.options import Request, make_parser, output_names, read, request
from cmm.slurm.rules import LAUNCHERS, RULES, time_limit
from cmm.slurm.script import render
from scripts.environment import ROOT, find_launcher

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
    with pytest.raises(UsageError, match=r"'--mpi'\. Use --launcher srun-pmi2 \(MPICH\) or srun-pmix \(Open MPI\)\."):
        read(["job.toml", *SIZE, "--mpi=pmi2"])
    with pytest.raises(UsageError, match=r"'--ntasks'\. Use --nodes and --tasks-per-node\."):
        read(["job.toml", "--ntasks", "4"])
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
    ([*SIZE, "--nodes", "70000"], "--nodes: must be a whole number from 1 to 65533; got '70000'"),
    ([*SIZE, "--tasks-per-node", "5000"], "--tasks-per-node: must be a whole number from 1 to 4096"),
    ([*SIZE, "--cpus-per-task", "99999"], "--cpus-per-task: must be a whole number from 1 to 4096"),
    (["--nodes", "60000", "--tasks-per-node", "4000"], "must make at most 1000000 ranks"),
    ([*SIZE, "--checkpoint", "ck", "--requeue", "--warn", "65536"], "--warn: .* of seconds from 1 to 65535"),
    ([*SIZE, "--checkpoint", "ck", "--requeue", "--time", "2"], "--time: must be longer than --warn, 120 s"),
    ([*SIZE, "--time", "0"], "--time: must be more than nothing"),
    ([*SIZE, "--time", "0-0:00:00"], "--time: must be more than nothing"),
    ([*SIZE, "--sbatch=--nodes=4"], "--sbatch: must be an option that cmm.slurm does not write itself.*Use --nodes"),
    ([*SIZE, "--sbatch", "--wait"], "--sbatch: .*Use --wait"),
    ([*SIZE, "--sbatch=--no-requeue"], "--sbatch: .*Leave it out: without --requeue nothing is queued again"),
    ([*SIZE, "--sbatch"], "--sbatch: expected one argument"),
    ([*SIZE, "--array", "seed=1,2", "--", "--seed", "5"], "must not set again what --array sets; got '--seed'"),
    ([*SIZE, "--array", "give-up=1,2", "--", "--give-up=5"], "must not set again what --array sets; got '--give-up=5'"),
    ([*SIZE, "--array", "seed=1,2", "--", "--report", "r.json"], "not set again what --array sets; got '--report'"),
    ([*SIZE, "--checkpoint", "ck", "--", "--checkpoint", "k"], "what --checkpoint sets"),
    ([*SIZE, "--cpus-per-task", "2", "--", "--threads=1"], "what --cpus-per-task sets; got '--threads=1'"),
])  # fmt: skip
def test_refusals(job: Path, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made("job.toml", *words)


def test_the_command_explains_and_exits_with_64(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["job.toml", "--nodes", "x", "--tasks-per-node", "2"]) == 64
    assert main(["missing.toml", *SIZE]) == 66
    assert main(["job.toml", *SIZE, "-o", "no/such/folder"]) == 73
    assert [line[:5] for line in capfd.readouterr().err.splitlines()] == ["cmm: "] * 3


@pytest.mark.parametrize("mem", [[], ["--mem", "1G"]])
@pytest.mark.parametrize(("flags", "code", "said"), [
    (["--inject", "slow:6:2"], 64, "--inject: must name workers only; the workers are ranks 1 to 5"),
    (["--code", "nosuch"], 64, "--code: must be a registered code"),
    (["--param", "x=2"], 64, "--param x: must be a parameter of fr"),
    (["--grid", "4x4", "--tasks", "3"], 64, "--tasks: must be at least 16"),
    (["--out", "no/C.npy"], 73, "must lie in an existing directory"),
])  # fmt: skip
def test_what_the_job_would_refuse_is_refused_with_and_without_its_memory(
    job: Path, mem: list[str], flags: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["job.toml", *SIZE, *mem, "--", *flags]) == code
    out, err = capfd.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)


def test_an_option_of_sbatch_can_be_a_word_of_its_own(job: Path) -> None:
    assert "--exclusive" in directives(script("--sbatch", "--exclusive"))
    assert directives(script("--sbatch", "--gres=gpu:1", "--time", "5")) == directives(
        script("--sbatch=--gres=gpu:1", "--time=5"))  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), [
    ("90", 5400), ("1:30", 90), ("1:00:00", 3600), ("1-2", 93600), ("1-2:30", 95400), ("0-0:0:7", 7),
])  # fmt: skip
def test_time_limits_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert time_limit(text) == seconds


# ---- folders, and files that are there -----------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--log", "no/x.out"], 73, "--log: must lie in an existing directory"),
    (["--log", "made"], 73, "--log: must be a file"),
    (["--checkpoint", "no/kept"], 73, "--checkpoint: must lie in an existing directory"),
    (["--venv", "no"], 66, "--venv: must be a virtual environment"),
    (["--venv", "made"], 66, "--venv: must be a virtual environment"),
    (["--", "--report", "no/r.json"], 73, "--report: must lie in an existing directory"),
])  # fmt: skip
def test_what_is_missing_where_the_job_runs_is_refused(job: Path, words: list[str], code: int, said: str,
                                                       capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    Path("made").mkdir()
    assert main(["job.toml", *SIZE, "--mem", "1G", *words]) == code
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("words", [["--log", "/no/x.out"], ["--venv", "/no"], ["--checkpoint", "/no/kept"]])
def test_what_is_missing_elsewhere_is_told(job: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """The cluster may have it; where the job is submitted it has to be there."""
    assert main(["job.toml", *SIZE, "--mem", "1G", *words]) == 0
    out, err = capfd.readouterr()
    assert "#SBATCH" in out
    assert err.startswith(f"cmm: warning: {words[0]}: must ")
    with pytest.raises((OutputError, InputMissingError), match=words[0]):
        check_folders(made("job.toml", *SIZE, *words), here=True)


def test_a_launcher_of_another_mpi_is_told(job: Path, capfd: pytest.CaptureFixture[str],
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    own = find_launcher(sys.prefix)[1]
    for launcher, vendor in VENDORS.items():
        assert main(["job.toml", *SIZE, "--mem", "1G", "--launcher", launcher]) == 0
        assert ("cmm: warning: --launcher: must belong to" in capfd.readouterr().err) == (vendor != own)
        assert main(["job.toml", *SIZE, "--mem", "1G", "--launcher", launcher, "--module", "mpi"]) == 0
        assert capfd.readouterr().err == ""


def test_a_log_of_another_name_each_time_is_not_judged(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["job.toml", *SIZE, "--mem", "1G", "--log", "%u/%x-%j.out"]) == 0
    assert capfd.readouterr().err == ""


def test_only_a_script_of_ours_is_replaced(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["job.toml", *SIZE, "--mem", "1G"]
    before = Path("A.npy").read_bytes()
    assert main([*words, "-o", "A.npy"]) == 73
    assert main([*words, "-o", "job.toml", "--submit"]) == 73  # before anything is submitted
    assert Path("A.npy").read_bytes() == before
    assert "-o: must not exist yet, or be a script that cmm.slurm wrote" in capfd.readouterr().err
    for name in ("s.sh", "s.sh"):  # the second time it says the same
        assert main([*words, "-o", name]) == 0
    assert not Path("s.sh~").exists()
    changed = Path("s.sh").read_text() + "# changed by hand\n"
    Path("s.sh").write_text(changed)
    assert main([*words, "-o", "s.sh"]) == 0
    assert Path("s.sh~").read_text() == changed
    assert "changed" not in Path("s.sh").read_text()
    assert "the earlier s.sh is kept as s.sh~" in capfd.readouterr().err
    assert main([*words, "-o", "/dev/null"]) == 0


# ---- what a cluster gives ------------------------------------------------------------------------------------------

PARTITIONS = """\
PartitionName=main Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=n[1-4] State=UP TotalCPUs=8 TotalNodes=4
PartitionName=short Default=NO MaxNodes=2 MaxTime=1-00:00:00 Nodes=n[1-9] State=UP TotalCPUs=18 TotalNodes=9
"""


@pytest.mark.parametrize(("words", "said"), [
    (["--nodes", "4"], ""), (["--nodes", "5"], "--nodes: must be at most 4 in partition main"),
    (["--nodes", "3", "--partition", "short"], "--nodes: must be at most 2 in partition short"),
    (["--nodes", "9", "--partition", "short", "--qos", "large"], ""),  # a QOS can lift limits, but makes no nodes
    (["--nodes", "10", "--partition", "short", "--qos", "large"], "--nodes: must be at most 9"),
    (["--nodes", "4", "--partition", "short,main"], ""),
    (["--nodes", "2", "--partition", "short", "--time", "1-0:01"], "--time: must be at most 1-00:00:00"),
    (["--nodes", "2", "--partition", "short", "--time", "24:00:00"], ""),
    (["--nodes", "99", "--partition", "nosuch"], ""),  # sbatch says that
])  # fmt: skip
def test_a_job_that_would_wait_for_ever_is_refused(job: Path, words: list[str], said: str) -> None:
    wanted, known = made("job.toml", "--tasks-per-node", "1", *words), partitions(PARTITIONS)
    assert set(known) == {"main", "short"}
    if said:
        with pytest.raises(UsageError, match=said):
            refuse_too_much(wanted, known)
    else:
        refuse_too_much(wanted, known)


@pytest.mark.parametrize(("words", "said"), [
    (["--tasks-per-node", "8"], ""), (["--tasks-per-node", "4", "--cpus-per-task", "2"], ""),
    (["--tasks-per-node", "20"], "--tasks-per-node: must make at most 8 cores a node"),
    (["--tasks-per-node", "1", "--cpus-per-task", "99"], "--cpus-per-task: must make at most 8 cores"),
])  # fmt: skip
def test_more_cores_than_any_node_has_are_refused(job: Path, words: list[str], said: str) -> None:
    wanted = made("job.toml", "--nodes", "2", *words)
    refuse_too_many_cores(wanted, [])  # Slurm does not tell
    if said:
        with pytest.raises(UsageError, match=said):
            refuse_too_many_cores(wanted, [2, 8])
    else:
        refuse_too_many_cores(wanted, [2, 8])


@pytest.mark.parametrize("text", ["1:99:00", "10:99", "1-24", "1-0:60"])
def test_times_that_are_slips_are_refused(job: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--time: must have minutes and seconds below 60"):
        made("job.toml", *SIZE, "--time", text)


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_cluster_that_is_not_there_or_does_not_answer(job: Path, monkeypatch: pytest.MonkeyPatch,
                                                        capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """sbatch must not be asked, and scontrol says what Slurm's says. tests/slurm has the real ones."""
    words = ["job.toml", *SIZE, "--mem", "1G", "--submit"]
    monkeypatch.setenv("PATH", str(job))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert main(words) == 64
    assert "--submit: needs sbatch on PATH" in capfd.readouterr().err
    command(job, "sbatch", "echo submitting >&2; exit 1")
    monkeypatch.setenv("SLURM_CONF", "/no/slurm.conf")
    assert main(words) == 64
    assert "SLURM_CONF: must name the configuration of a cluster; got '/no/slurm.conf'" in capfd.readouterr().err
    monkeypatch.setenv("SLURM_CONF", str(job / "job.toml"))
    command(job, "scontrol", "echo 'Slurmctld(primary) at c1 is DOWN'; exit 1")
    assert main(words) == 70
    said = capfd.readouterr().err
    assert "cmm: Slurm does not answer (Slurmctld(primary) at c1 is DOWN); nothing was submitted" in said
    assert "submitting" not in said


def test_a_command_that_is_silent_is_told_and_ended(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoAnswer, match=r"sleep 600 did not end within 0 s"):
        ask(["sleep", "600"], limit=0.2, patience=0.1)
    assert "cmm: sleep has not answered for 0 s; waiting for 0 s at most" in capfd.readouterr().err
    assert ask(["cat"], "text").out == "text"
    with pytest.raises(NoAnswer, match="nosuchcommand: No such file"):
        ask(["nosuchcommand"])


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
