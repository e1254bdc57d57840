"""`python -m cmm.gradient` under a real mpirun: theta is right, whoever is late; what is refused; going on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from scipy.optimize import minimize, root

from cmm.core.rng import generator
from cmm.core.task import Array
from cmm.gradient.losses import make_loss
from cmm.gradient.spec import parse
from cmm.runtime.report import load, summary_lines
from tests.mpi.launch import Completed, launch, mpirun, python

RUN = ("-m", "cmm.gradient")
JOBS = Path(__file__).resolve().parents[2] / "jobs"


@dataclass(frozen=True)
class Problem:
    """Data on disk, and the place of the results."""

    X: Array
    y: Array
    folder: Path
    loss: str
    ridge: float = 1.0

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--data", self.path("X.npy"), "--labels", self.path("y.npy"), "--loss", self.loss, "--ridge",
                str(self.ridge), "--out", self.path("theta.npy"), "--tolerance", "1e-12", "--iterations", "300",
                "--overwrite")  # fmt: skip

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "theta.npy.report.json").read_text())
        return loaded

    @property
    def theta(self) -> Array:
        return np.asarray(np.load(self.path("theta.npy")))

    def best(self) -> Array:
        """The minimum by scipy in this process."""
        loss = make_loss(self.loss)
        shape = loss.shape(self.X.shape[1], self.y)

        def value(flat: Array) -> tuple[float, Array]:
            theta = flat.reshape(shape)
            found, gradient = loss(self.X, self.y, theta)
            assert found is not None
            return found + 0.5 * self.ridge * float(flat @ flat), gradient.ravel() + self.ridge * flat

        done = minimize(value, np.zeros(int(np.prod(shape))), jac=True, method="L-BFGS-B",
                        options={"maxiter": 2000, "ftol": 0.0, "gtol": 1e-11, "maxcor": 20})  # fmt: skip
        exact = root(lambda flat: value(flat)[1], done.x, tol=1e-13)  # a line search sees half of the digits only
        return np.asarray(exact.x.reshape(shape))


def make(folder: Path, loss: str = "logistic", rows: int = 300, features: int = 8, ridge: float = 1.0) -> Problem:
    rng = generator(7, "gradient", loss)
    X, truth = rng.standard_normal((rows, features)), rng.standard_normal(features)
    y = X @ truth + rng.standard_normal(rows)
    if loss == "logistic":
        y = (y > 0).astype(float)
    elif loss == "softmax":
        y = np.digitize(y, [-1, 1]).astype(float)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return Problem(X, y, folder, loss, ridge)


def run(problem: Problem, *flags: str, ranks: int = 6, code: int = 0, **more: Any) -> Completed:
    done = mpirun(ranks, *RUN, *problem.flags, *flags, timeout=120, **more)
    assert done.returncode == code, done
    assert not done.leftovers, done
    return done


# ---- right in spite of everything --------------------------------------------------------------------------------


@pytest.mark.parametrize("inject", ["freeze:2,4", "sleep:1,3:0.2", "slow:5:40", "exp:all:0.01", "freeze:1@0.05"])
def test_stragglers(tmp_path: Path, inject: str) -> None:
    problem = make(tmp_path)
    done = run(problem, "--stragglers", "2", "--inject", inject, "--optimiser", "lbfgs")
    assert done.stdout.splitlines()[-1].startswith("theta is complete"), done
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    report = problem.report
    assert (report["outcome"], report["stopped"]) in {("complete", "converged"),
                                                      ("complete", "no further decrease (rounding)")}  # fmt: skip
    frozen = {int(rank) for rank in inject[7:].split("@")[0].split(",")} if inject.startswith("freeze") else set()
    late = {entry["rank"] for entry in report["workers"] if entry["status"] == "straggler"}
    assert late >= frozen
    if inject == "freeze:2,4":
        assert all(not frozen & {rank for rank, _, _ in entry["answers"]} for entry in report["evaluations"])
        assert all(frozen <= set(entry["absent"]) for entry in report["evaluations"])


@pytest.mark.one_mpi
@pytest.mark.parametrize("loss", ["least-squares", "logistic", "softmax", "huber"])
@pytest.mark.parametrize("code", ["generalized-frc", "cyclic"])
def test_losses_and_codes(tmp_path: Path, loss: str, code: str) -> None:
    problem = make(tmp_path, loss)
    run(problem, "--code", code, "--stragglers", "2", "--inject", "freeze:3")
    assert problem.theta.shape == ((8, 3) if loss == "softmax" else (8,))
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)


@pytest.mark.one_mpi
@pytest.mark.parametrize(("code", "ranks"), [("frc", 7), ("heterogeneous-frc", 6), ("uncoded", 4), ("polynomial", 8)])
def test_the_other_codes(tmp_path: Path, code: str, ranks: int) -> None:
    problem = make(tmp_path, "least-squares")
    extra = [] if code == "uncoded" else ["--stragglers", "2", "--inject", "freeze:1,3"]
    run(problem, "--code", code, *extra, ranks=ranks)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    if code == "polynomial":  # 7 workers, q = 3: exactly 5 answers are used, each of a third of the data
        assert {entry["decoded"] for entry in problem.report["evaluations"]} == {"5 answers by interpolation"}


@pytest.mark.one_mpi
@pytest.mark.parametrize("optimiser", ["nesterov", "backtracking"])
def test_other_optimisers(tmp_path: Path, optimiser: str) -> None:
    problem = make(tmp_path, "least-squares", ridge=50.0)
    run(problem, "--optimiser", optimiser, "--step", "1e-3", "--stragglers", "1", "--inject", "freeze:2", ranks=4)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-7)


@pytest.mark.one_mpi
def test_a_single_rank_and_more_workers_than_rows(tmp_path: Path) -> None:
    problem = make(tmp_path, rows=9, features=2)
    for done in (python(*RUN, *problem.flags), mpirun(1, *RUN, *problem.flags)):
        assert done.returncode == 0, done
        np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    done = mpirun(12, *RUN, *problem.flags, "--code", "uncoded", timeout=60)  # 11 workers, 9 rows: no part for some
    assert done.returncode == 64, done
    assert "--parts" in done.stderr


@pytest.mark.one_mpi
def test_sparse_and_hdf5_data(tmp_path: Path) -> None:
    problem = make(tmp_path)
    problem.X[np.abs(problem.X) < 1] = 0
    scipy.io.mmwrite(tmp_path / "X.mtx", sp.coo_array(problem.X))
    run(problem, "--data", problem.path("X.mtx"), "--inject", "freeze:2", ranks=4)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file["X"], file["y"] = problem.X, problem.y
    run(problem, "--data", problem.path("all.h5::X"), "--labels", problem.path("all.h5::y"), ranks=4)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)


def test_the_breast_cancer_job_that_ships(tmp_path: Path) -> None:
    """3 of 11 workers are frozen: the same theta as scipy's in one process, to 1e-8, and the job ends at once."""
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_breast_cancer(return_X_y=True)
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    data = tmp_path / "data" / "breast-cancer"
    data.mkdir(parents=True)
    np.save(data / "features.npy", X)
    np.save(data / "labels.npy", y)
    shutil.copytree(JOBS, tmp_path / "jobs")
    with launch(12, *RUN, tmp_path / "jobs" / "logistic.toml", "--plot", tmp_path / "loss.png") as job:
        done = job.wait(120)
        ended = time.time()
    assert done.returncode == 0, done
    spec = parse([str(tmp_path / "jobs" / "logistic.toml")]).spec
    assert spec is not None
    problem = Problem(X, y.astype(float), data, "logistic")
    np.testing.assert_allclose(np.load(spec.out), problem.best(), rtol=0, atol=1e-8)
    assert ended - Path(spec.report).stat().st_mtime <= 1.0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    report = problem.report
    assert report["encoding"]["loads"] == [4, 4, 4, 6, 4, 4, 4, 5, 3, 3, 3]
    assert report["data"]["largest_worker_bytes"] == 6 * 52 * 32 * 8
    assert "55% of the data" in done.stderr
    assert {entry["decoded"] for entry in report["evaluations"]} <= {"class 2", "class 3"}  # 2, 5, 9 are the others'
    assert report["curve"][-1][1] <= report["curve"][0][1]
    assert summary_lines(load(spec.report))[-1] in done.stdout


@pytest.mark.one_mpi
def test_the_regression_job_that_ships(tmp_path: Path) -> None:
    data = tmp_path / "data" / "breast-cancer"
    data.mkdir(parents=True)
    problem = make(data, "least-squares", rows=120, features=6)
    (data / "X.npy").rename(data / "features.npy")
    (data / "y.npy").rename(data / "labels.npy")
    shutil.copytree(JOBS, tmp_path / "jobs")
    done = mpirun(12, *RUN, tmp_path / "jobs" / "regression.toml", "--tolerance", "1e-12", timeout=120)
    assert done.returncode == 0, done
    np.testing.assert_allclose(np.load(data / "theta-regression.npy"), problem.best(), rtol=0, atol=1e-8)


@pytest.mark.one_mpi
@pytest.mark.slow
def test_classes_of_unequal_workers_finish_together(tmp_path: Path) -> None:
    """Speeds 4,4,4,2,2,2,2,1x5 made by injection and measured at the start; k = 48. A part takes 40 ms of sleep, so
    that the two cores of a laptop do not decide."""
    problem = make(tmp_path, rows=480)
    (tmp_path / "sleepy.py").write_text(
        "import time\n"
        "def grad(X, y, theta):\n    time.sleep(0.004 * len(y))\n    return X.T @ (X @ theta - y)\n"
    )  # fmt: skip
    flags = ("--loss", "sleepy:grad", "--code", "heterogeneous-frc", "--stragglers", "2", "--parts", "48", "--wait",
             "all", "--optimiser", "fixed", "--step", "1e-4", "--iterations", "6")  # fmt: skip
    inject = ("--inject", "slow:4-7:2", "--inject", "slow:8-12:4")
    run(problem, *flags, *inject, ranks=13, env={"PYTHONPATH": f"{JOBS.parent}:{tmp_path}"})
    report = problem.report
    speeds = np.array(report["encoding"]["speeds"])
    np.testing.assert_allclose(speeds / speeds[:3].mean(), [1] * 3 + [0.5] * 4 + [0.25] * 5, rtol=0.2)
    ratios = []
    for entry in report["evaluations"][1:]:
        at = {rank: seconds for rank, seconds, _ in entry["answers"]}
        ends = [max(at[rank] for rank in members) for members in report["encoding"]["classes"]]
        ratios.append(max(ends) / min(ends))
    assert np.median(ratios) <= 1.2


# ---- deaths, freezes, patience -----------------------------------------------------------------------------------


def test_a_killed_worker_does_not_stop_the_descent(tmp_path: Path) -> None:
    problem = make(tmp_path)
    run(problem, "--stragglers", "1", "--inject", "kill:2@0.2", "--inject", "sleep:all:0.02", ranks=5)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    status = {entry["rank"]: entry["status"] for entry in problem.report["workers"]}
    assert status[2] == "lost"


def test_deaths_beyond_what_any_class_bears_end_the_job_with_its_checkpoint(tmp_path: Path) -> None:
    problem = make(tmp_path)
    flags = ("--stragglers", "1", "--inject", "kill:1@1.5", "--inject", "kill:2@1.5", "--inject", "sleep:all:0.05",
             "--optimiser", "backtracking", "--step", "1e-3", "--checkpoint", problem.path("c.npz"))  # fmt: skip
    done = run(problem, *flags, "--tolerance", "0", "--iterations", "100000", ranks=5, code=4)
    assert "workers are lost" in done.stderr
    assert not Path(problem.path("theta.npy")).exists()
    assert Path(problem.path("c.npz")).exists()
    assert problem.report["outcome"] == "incomplete"


@pytest.mark.one_mpi
def test_uncoded_waits_and_gives_up(tmp_path: Path) -> None:
    problem = make(tmp_path)
    done = run(problem, "--code", "uncoded", "--inject", "freeze:2", "--give-up", "1", ranks=4, code=4)
    assert "ranks 2 are silent" in done.stderr
    assert problem.report["outcome"] == "incomplete"


def test_a_complete_class_is_enough_beyond_the_promise(tmp_path: Path) -> None:
    problem = make(tmp_path)
    done = run(problem, "--stragglers", "1", "--inject", "freeze:1,3,5", ranks=7)  # class {2, 4, 6} is whole
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    assert "before the 5 that the code promises" in done.stdout
    assert problem.report["beyond_promise"] == len(problem.report["evaluations"])


# ---- wrong answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "loss"), [("generalized-frc", "logistic"), ("polynomial", "least-squares")])
def test_a_worker_that_lies_is_named_and_left_out(tmp_path: Path, code: str, loss: str) -> None:
    problem = make(tmp_path, loss)
    done = run(problem, "--code", code, "--stragglers", "2", "--inject", "corrupt:3:1", "--iterations", "2000", ranks=7)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-8)
    report = problem.report
    assert {entry["rank"] for entry in report["workers"] if entry["status"] == "rejected"} == {3}
    assert "ranks 3 answered wrongly" in done.stderr
    assert (report["verification"]["passed"], report["verification"]["rejected_results"]) == (True, 1)


@pytest.mark.one_mpi
def test_liars_beyond_the_redundancy_end_the_job_without_theta(tmp_path: Path) -> None:
    problem = make(tmp_path)
    done = run(problem, "--code", "uncoded", "--inject", "corrupt:2:1", ranks=4, code=4)
    assert "answered wrongly" in done.stderr
    assert not Path(problem.path("theta.npy")).exists()


@pytest.mark.one_mpi
def test_a_callable_that_is_no_sum_over_its_rows_is_not_verified(tmp_path: Path) -> None:
    problem = make(tmp_path, "least-squares")
    (tmp_path / "mean.py").write_text(
        "def grad(X, y, theta):\n    r = X @ theta - y\n    return 0.5 * r @ r / len(y), X.T @ r / len(y)\n"
    )
    more: dict[str, Any] = {"ranks": 4, "env": {"PYTHONPATH": f"{JOBS.parent}:{tmp_path}"}}
    done = run(problem, "--loss", "mean:grad", "--checkpoint", problem.path("c.npz"), code=3, **more)
    assert "must return the sum over its rows" in done.stderr
    assert not Path(problem.path("theta.npy")).exists()
    run(problem, "--loss", "mean:grad", "--verify", "none", **more)  # whoever wants it


# ---- going on ----------------------------------------------------------------------------------------------------


@pytest.mark.one_mpi
def test_the_same_class_gives_the_same_bits_in_every_run(tmp_path: Path) -> None:
    problem = make(tmp_path)
    found = []
    for inject in ("freeze:2", "exp:1,3:0.01"):
        flags = ("--stragglers", "1", "--inject", inject, "--inject", "freeze:4")  # class {1, 3} decides
        run(problem, *flags, ranks=5)
        found.append(problem.theta.tobytes())
    assert found[0] == found[1]


@pytest.mark.one_mpi
def test_interrupted_and_resumed_is_the_same_to_the_bit(tmp_path: Path) -> None:
    problem = make(tmp_path)
    flags = (*RUN, *problem.flags, "--code", "uncoded", "--optimiser", "nesterov", "--step", "1e-2", "--tolerance", "0",
             "--iterations", "40", "--checkpoint", problem.path("c.npz"))  # fmt: skip
    assert mpirun(4, *flags, timeout=60).returncode == 0
    whole = problem.theta
    os.remove(problem.path("theta.npy"))
    os.remove(problem.path("c.npz"))
    with launch(4, *flags, "--inject", "sleep:1:0.1", "--checkpoint-every", "0") as job:
        ranks = job.ranks()
        until = time.monotonic() + 40
        while not Path(problem.path("c.npz")).exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(ranks[0], signal.SIGUSR1)
        done = job.wait(60)
    assert done.returncode == 75, done
    assert "--resume" in done.stderr
    assert not Path(problem.path("theta.npy")).exists()
    reached = problem.report["iterations"]
    assert 0 < reached < 40
    done = mpirun(4, *flags, "--resume", timeout=60)
    assert done.returncode == 0, done
    assert problem.report["resumed_at"] == reached
    assert [at for at, *_ in problem.report["curve"]] == list(range(1, 41))
    np.testing.assert_array_equal(problem.theta, whole)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.one_mpi
@pytest.mark.parametrize(("kind", "code", "words"), [
    ("missing", 66, "--data"), ("labels", 65, "--labels"), ("classes", 65, "--labels"),
    ("stragglers", 64, "--stragglers"),
    ("existing", 73, "--out"), ("callable", 64, "--loss"), ("flag", 64, "--optimiser"), ("rank", 64, "--inject"),
])  # fmt: skip
def test_refusals_are_one_message_and_one_code(tmp_path: Path, kind: str, code: int, words: str) -> None:
    problem, flags = make(tmp_path), {
        "stragglers": ["--stragglers", "3"], "callable": ["--loss", "nowhere:f"], "flag": ["--optimiser", "adam"],
        "existing": ["--no-overwrite"], "rank": ["--inject", "freeze:9"]}.get(kind, [])  # fmt: skip
    if kind == "missing":
        os.remove(problem.path("X.npy"))
    elif kind == "labels":
        np.save(problem.path("y.npy"), problem.y[:-1])
    elif kind == "classes":
        np.save(problem.path("y.npy"), problem.y + np.arange(300) % 3)
    elif kind == "existing":
        Path(problem.path("theta.npy")).write_bytes(b"precious")
    done = run(problem, *flags, ranks=4, code=code)
    messages = [line for line in done.stderr.splitlines() if line.startswith("cmm: ")]
    assert len(messages) == 1, done
    assert words in messages[0]
    assert "Traceback" not in done.stderr
    if kind == "existing":
        assert Path(problem.path("theta.npy")).read_bytes() == b"precious"


@pytest.mark.one_mpi
@pytest.mark.parametrize(("body", "code", "words"), [
    ("    if abs(theta).max() > 0.05:\n        return float('nan'), theta * 0\n", 65, "the loss is NaN"),
    ("    if abs(theta).max() > 0.05:\n        raise RuntimeError('planted')\n", 65, "RuntimeError"),
    ("    if abs(theta).max() > 0.05:\n        return r @ r, theta[:-1]\n", 65, "shape"),
])  # fmt: skip
def test_a_callable_that_goes_wrong_leaves_a_checkpoint(tmp_path: Path, body: str, code: int, words: str) -> None:
    problem = make(tmp_path, "least-squares")
    (tmp_path / "faulty.py").write_text(
        f"def grad(X, y, theta):\n    r = X @ theta - y\n{body}    return 0.5 * r @ r, X.T @ r\n"
    )
    flags = ("--loss", "faulty:grad", "--optimiser", "fixed", "--step", "1e-5", "--checkpoint", problem.path("c.npz"))
    done = run(problem, *flags, ranks=4, code=code, env={"PYTHONPATH": f"{JOBS.parent}:{tmp_path}"})
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(problem.path("theta.npy")).exists()
    with np.load(problem.path("c.npz"), allow_pickle=False) as kept:
        assert int(kept["iteration"]) > 0
        assert np.all(np.isfinite(kept["theta"]))
    assert problem.report["exit_code"] == code


@pytest.mark.one_mpi
def test_gradients_without_a_loss_need_a_method_that_needs_none(tmp_path: Path) -> None:
    problem = make(tmp_path, "least-squares")
    (tmp_path / "plain.py").write_text("def grad(X, y, theta):\n    return X.T @ (X @ theta - y)\n")
    more: dict[str, Any] = {"ranks": 4, "env": {"PYTHONPATH": f"{JOBS.parent}:{tmp_path}"}}
    done = run(problem, "--loss", "plain:grad", code=64, **more)
    assert "lbfgs needs them" in done.stderr
    run(problem, "--loss", "plain:grad", "--optimiser", "nesterov", "--step", "1e-3", **more)
    np.testing.assert_allclose(problem.theta, problem.best(), rtol=0, atol=1e-7)
