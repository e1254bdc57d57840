"""`python -m cmm.run` under a real mpirun, with stragglers of every kind, and its refusals."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mpi.conftest import Inputs
from tests.mpi.launch import launch, mpirun, python

Make = Callable[..., Inputs]
RUN = ("-m", "cmm.run")
GRID = ("--grid", "4x4", "--tasks", "24")
LIMIT = 1e-12  # relative to |A_i||B_j|; a dot product of length 1000 with well-conditioned repairs stays below 1e-14


def report_of(inputs: Inputs) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(inputs.report).read_text())
    return loaded


def run_and_check(inputs: Inputs, *flags: str, ranks: int = 6, timeout: float = 60) -> dict[str, Any]:
    done = mpirun(ranks, *RUN, *inputs.flags, *flags, timeout=timeout)
    assert done.returncode == 0, done
    assert not done.leftovers, done
    assert "C is complete" in done.stdout, done
    report = report_of(inputs)
    assert report["outcome"] == "complete"
    assert report["verification"]["passed"] is True
    assert inputs.error() <= LIMIT
    return report


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
@pytest.mark.parametrize(
    "inject",
    ["freeze:2", "corrupt:3", "sleep:1:20", "freeze:1,4", "slow:2:5", "exp:all:0.2", "freeze:all@0.5"],
)
def test_stragglers(make_inputs: Make, dispatch: str, inject: str) -> None:
    inputs = make_inputs(701, 499, 301)
    report = run_and_check(inputs, *GRID, "--dispatch", dispatch, "--inject", inject)
    status = {worker["rank"]: worker["status"] for worker in report["workers"]}
    assert sorted(status) == [1, 2, 3, 4, 5]
    if inject == "corrupt:3":
        assert report["verification"]["rejected_results"] >= 1
        assert status[3] == "rejected" or report["verification"]["rejected_results"] == 1
    if inject.startswith("freeze:") and "all" not in inject:
        frozen = {int(rank) for rank in inject[7:].split(",")}
        assert {rank for rank, what in status.items() if what == "straggler"} >= frozen
        assert report["leaving"] == "abort"


def test_the_command_returns_soon_after_the_report(make_inputs: Make) -> None:
    inputs = make_inputs(900, 600, 500)
    with launch(6, *RUN, *inputs.flags, *GRID, "--inject", "freeze:2") as job:
        done = job.wait(60)
        ended = time.time()
    assert done.returncode == 0, done
    assert ended - Path(inputs.report).stat().st_mtime <= 1.0
    assert Path(inputs.out).stat().st_mtime <= Path(inputs.report).stat().st_mtime
    assert inputs.error() <= LIMIT


def test_without_stragglers_nothing_is_repaired(make_inputs: Make) -> None:
    report = run_and_check(make_inputs(400, 300, 200), *GRID)
    assert report["counts"]["repairs"] == report["counts"]["copies"] == 0
    assert report["decoding"]["results_used"] == report["code"]["K"] == 16
    assert report["leaving"] == "finalize"
    assert sum(worker["tasks_done"] for worker in report["workers"]) == 16


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
def test_a_single_rank(make_inputs: Make, dispatch: str) -> None:
    inputs = make_inputs(300, 200, 100)
    for done in (mpirun(1, *RUN, *inputs.flags, *GRID, "--dispatch", dispatch),
                 python(*RUN, *inputs.flags, *GRID, "--dispatch", dispatch, "--overwrite")):  # fmt: skip
        assert done.returncode == 0, done
        assert inputs.error() <= LIMIT
        assert report_of(inputs)["counts"]["master_computed"] == 16


def test_more_ranks_than_tasks(make_inputs: Make) -> None:
    run_and_check(make_inputs(300, 200, 100), *GRID, ranks=26, timeout=120)


@pytest.mark.parametrize("dtype", ["f4", "c8", "c16", ">f8", "i2"])
def test_dtypes(make_inputs: Make, dtype: str) -> None:
    inputs = make_inputs(200, 90, 70, "f8" if dtype == "i2" else dtype)
    if dtype == "i2":
        small = Inputs((inputs.A * 100).astype("i2"), (inputs.B * 100).astype("i2"), inputs.folder)
        np.save(small.a, small.A)
        np.save(small.b, small.B)
        inputs = small
    done = mpirun(4, *RUN, *inputs.flags, "--grid", "3x3", "--inject", "freeze:1", timeout=60)
    assert done.returncode == 0, done
    report = report_of(inputs)
    assert inputs.error() <= max(report["decoding"]["error_estimate"], 1e-6 if dtype in ("f4", "c8") else 1e-13)
    assert np.load(inputs.out).dtype == {"f4": "f4", "c8": "c8", "c16": "c16", "i2": "i8"}.get(dtype, "f8")


def save(inputs: Inputs, A: Any, B: Any) -> Inputs:
    changed = Inputs(A, B, inputs.folder)
    np.save(changed.a, A)
    np.save(changed.b, B)
    return changed


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_columns_of_any_size_with_a_frozen_worker(make_inputs: Make, dtype: str) -> None:
    """Columns times 10^±250 (±15 in single precision), and zero. Elements of C beyond the range are left out of the
    promise; on the lines of zero columns it is exactly zero."""
    inputs, rng = make_inputs(300, 120, 90, dtype), np.random.default_rng(3)
    reach = 250 if dtype == "f8" else 15
    pa, pb = (10.0 ** rng.uniform(-reach, reach, size) for size in (120, 90))
    pa[[7, 119]], pb[[0, 50]] = 0, 0
    inputs = save(inputs, (inputs.A * pa).astype(dtype), (inputs.B * pb).astype(dtype))
    done = mpirun(4, *RUN, *inputs.flags, "--grid", "4x4", "--inject", "freeze:1", timeout=60)
    assert done.returncode == 0, done
    assert report_of(inputs)["decoding"]["missing_blocks"] > 0
    A, B, C = inputs.A.astype(np.longdouble), inputs.B.astype(np.longdouble), np.load(inputs.out)
    assert not C[[7, 119]].any()
    assert not C[:, [0, 50]].any()
    norms = np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
    info = np.finfo(dtype)
    inside = (norms < float(info.max) / 4) & (norms > float(info.smallest_normal) * 1e16)
    assert inside.mean() > 0.3
    error = np.abs(C.astype(np.longdouble) - A.T @ B)[inside] / norms[inside]
    assert float(error.max()) <= (1e-11 if dtype == "f8" else report_of(inputs)["decoding"]["tolerance"])


def test_int16_is_exact_with_a_frozen_worker(make_inputs: Make) -> None:
    inputs, rng = make_inputs(10, 10, 10), np.random.default_rng(4)
    A = rng.integers(-(2**15), 2**15, (500, 90)).astype("i2")
    inputs = save(inputs, A, A)
    done = mpirun(4, *RUN, *inputs.flags, "--grid", "4x4", "--inject", "freeze:1", timeout=60)
    assert done.returncode == 0, done
    C, report = np.load(inputs.out), report_of(inputs)
    assert C.dtype == np.int64
    np.testing.assert_array_equal(C, A.astype(np.int64).T @ A.astype(np.int64))
    assert report["decoding"]["missing_blocks"] > 0
    assert report["code"]["params"]["coefficients"] == "integers"


@pytest.mark.parametrize("dispatch", ["pull", "oneshot"])
def test_the_papers_construction(make_inputs: Make, dispatch: str) -> None:
    inputs = make_inputs(400, 300, 200)
    flags = ("--grid", "10x10", "--tasks", "160", "--param", "construction=paper", "--param", "outer=12x12")
    done = mpirun(6, *RUN, *inputs.flags, *flags, "--dispatch", dispatch, "--inject", "freeze:2,4", timeout=60)
    assert done.returncode == 0, done
    assert inputs.error() <= 1e-11
    assert report_of(inputs)["decoding"]["method"] == "inactivation"


def test_give_up_is_exit_code_4_and_leaves_no_output(make_inputs: Make) -> None:
    inputs = make_inputs(300, 200, 100)
    done = mpirun(3, *RUN, *inputs.flags, "--grid", "4x4", "--give-up", "1", "--inject", "freeze:all", timeout=60)
    report = report_of(inputs)
    assert done.returncode == 4, done
    assert report["outcome"] == "incomplete"
    assert report["exit_code"] == 4
    assert not Path(inputs.out).exists()
    assert "missing" in report["message"]


def test_tolerance_out_of_reach_is_exit_code_5(make_inputs: Make) -> None:
    inputs = make_inputs(300, 200, 100)
    done = mpirun(3, *RUN, *inputs.flags, "--grid", "4x4", "--tolerance", "1e-18", timeout=60)
    assert done.returncode == 5, done
    assert report_of(inputs)["outcome"] == "inaccurate"
    assert not Path(inputs.out).exists()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_exception_on_any_rank_ends_the_job(make_inputs: Make, rank: int) -> None:
    """A fault in our own code, planted by a small wrapper: the job ends within seconds with that rank's traceback."""
    inputs = make_inputs(300, 200, 100)
    wrapper = inputs.folder / "faulty.py"
    wrapper.write_text(
        "import os, sys\n"
        "import cmm.run\n"
        "rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK', '0')))\n"
        "run = cmm.run._run\n"
        "def planted(*args):\n"
        "    import cmm.runtime.kernel as kernel, cmm.runtime.worker as worker, cmm.runtime.master as master\n"
        "    def broken(*args):\n"
        "        raise ZeroDivisionError('planted')\n"
        "    worker.products = master.products = broken\n"
        "    master._encode_slice = broken\n"
        "    return run(*args)\n"
        f"if rank == {rank}:\n"
        "    cmm.run._run = planted\n"
        "sys.exit(cmm.run.main())\n"
    )
    done = mpirun(3, wrapper, *inputs.flags, "--grid", "4x4", timeout=30)
    assert done.returncode == 70, done
    assert done.seconds < 15
    assert "ZeroDivisionError: planted" in done.stderr
    assert f"rank {rank}" in done.stderr
    assert not Path(inputs.out).exists()
    assert report_of(inputs)["outcome"] == "error"


def damaged(kind: str, inputs: Inputs) -> tuple[list[str], int]:
    """Make the input wrong in one way; returns further flags and the exit code that must follow."""
    a = Path(inputs.a)
    if kind == "missing":
        a.unlink()
        return [], 66
    if kind == "directory":
        a.unlink()
        a.mkdir()
        return [], 66
    if kind == "truncated":
        a.write_bytes(a.read_bytes()[:-100])
        return [], 65
    if kind == "objects":
        np.save(a, np.array([[{}], [1]], dtype=object), allow_pickle=True)
        return [], 65
    if kind == "mismatched":
        np.save(a, np.ones((31, 4)))
        return [], 65
    if kind == "large integers":
        np.save(a, np.full((30, 20), 2**60))
        return [], 65
    if kind == "existing output":
        Path(inputs.out).write_bytes(b"precious")
        return [], 73
    return {
        "bad flag": (["--gird", "4x4"], 64),
        "unknown code": (["--code", "raptor"], 64),
        "bad parameter": (["--param", "colour=red"], 64),
        "few tasks": (["--grid", "4x4", "--tasks", "15"], 64),
        "large grid": (["--grid", "999x1"], 64),
        "wrong rank": (["--inject", "freeze:7"], 64),
        "no directory": (["--out", str(inputs.folder / "none" / "C.npy")], 73),
    }[kind]


KINDS = ["missing", "directory", "truncated", "objects", "mismatched", "large integers", "existing output", "bad flag",
         "unknown code", "bad parameter", "few tasks", "large grid", "wrong rank", "no directory"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_are_one_message_and_one_code(make_inputs: Make, kind: str) -> None:
    inputs = make_inputs(30, 20, 10)
    flags, code = damaged(kind, inputs)
    done = mpirun(3, *RUN, *inputs.flags, *flags, timeout=30)
    assert done.returncode == code, done
    messages = [line for line in done.stderr.splitlines() if line.startswith("cmm: ")]
    assert len(messages) == 1, done
    assert "Traceback" not in done.stderr
    if kind == "existing output":
        assert Path(inputs.out).read_bytes() == b"precious"
    else:
        assert not Path(inputs.out).exists()


def test_singletons_are_refused(make_inputs: Make) -> None:
    """A launcher of another MPI starts N worlds of one rank each."""
    inputs = make_inputs(30, 20, 10)
    name = "PMI_SIZE" if "mpich" in _mpi() else "OMPI_COMM_WORLD_SIZE"
    code = (
        f"import os, sys; os.environ['{name}']='3'; os.environ['{name.replace('SIZE', 'RANK')}']='0'\n"
        "import cmm.runtime.launch as launch\nfrom cmm.core.errors import UsageError\n"
        "try:\n    launch.check_world(1)\nexcept UsageError as error:\n    sys.exit(launch.refuse(error))"
    )
    done = python("-c", code)
    assert done.returncode == 64, done
    assert "another MPI" in done.stderr
    assert not os.path.exists(inputs.out)


def _mpi() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().lower()
