"""Every registered code under a real mpirun with one frozen worker, and tasks of every shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cmm.codes.registry import CODES
from tests.mpi.conftest import Inputs
from tests.mpi.launch import mpirun
from tests.mpi.test_command import RUN, Make

LIMIT = 1e-9  # the default tolerance: structured codes on real nodes use some of it

FREE = {  # codes whose own redundancy makes up for one frozen worker of five: the master computes nothing
    name for name in CODES if name != "uncoded"
}


def run(inputs: Inputs, *flags: str) -> dict[str, Any]:
    done = mpirun(6, *RUN, *inputs.flags, *flags, "--inject", "freeze:2", timeout=60)
    assert done.returncode == 0, done
    assert not done.leftovers, done
    report: dict[str, Any] = json.loads(Path(inputs.report).read_text())
    return report


@pytest.mark.one_mpi
@pytest.mark.parametrize("name", sorted(CODES))
def test_every_code_with_a_frozen_worker(make_inputs: Make, name: str) -> None:
    inputs = make_inputs(300, 210, 190)
    report = run(inputs, "--code", name)
    assert report["outcome"] == "complete"
    assert inputs.error() <= LIMIT
    assert report["counts"]["results_rejected"] == 0
    if name in FREE:
        assert report["counts"]["master_computed"] == 0


@pytest.mark.one_mpi
@pytest.mark.parametrize(("flags", "dtype"), [
    (("--code", "polynomial", "--param", "nodes=circle"), "f8"),  # complex results, real C
    (("--code", "polynomial", "--param", "nodes=circle"), "c16"),
    (("--code", "polynomial", "--param", "nodes=circle", "--dispatch", "oneshot"), "f4"),
    (("--code", "matdot", "--param", "nodes=circle"), "f8"),
    (("--code", "rotation", "--dispatch", "oneshot"), "f8"),  # four results a task
    (("--code", "sparse", "--grid", "4x4", "--tasks", "40", "--dispatch", "oneshot"), "f8"),  # one sum of products
    (("--code", "fractional-repetition", "--grid", "11x1x1", "--tasks", "10"), "f8"),  # CMM-1: sums of many pairs
    (("--code", "fractional-repetition", "--grid", "7x6", "--tasks", "5"), "c16"),  # CMM-2: many results
    (("--code", "product", "--grid", "4x6", "--param", "axes=3:2x3:2x8:6"), "f8"),
    (("--code", "mds", "--grid", "4x3", "--dispatch", "oneshot"), "f8"),
])  # fmt: skip
def test_tasks_of_every_shape(make_inputs: Make, flags: tuple[str, ...], dtype: npt.DTypeLike) -> None:
    inputs = make_inputs(201, 83, 77, dtype)
    report = run(inputs, *flags)
    assert np.load(inputs.out).dtype == np.dtype(dtype)
    assert inputs.error() <= (1e-3 if np.dtype(dtype) == np.float32 else LIMIT)
    assert report["counts"]["results_rejected"] == 0


@pytest.mark.one_mpi
@pytest.mark.parametrize("flags", [
    ("--code", "fractional-repetition", "--grid", "5x1x1"), ("--code", "uncoded", "--grid", "2x3x3"),
    ("--code", "replication", "--grid", "3x2x2"), ("--code", "sparse"), ("--code", "lt"), ("--code", "mds"),
])  # fmt: skip
def test_integers_are_exact(make_inputs: Make, flags: tuple[str, ...]) -> None:
    inputs = make_inputs(120, 60, 50)
    A, B = (np.rint(50 * M).astype(np.int64) for M in (inputs.A, inputs.B))
    np.save(inputs.a, A)
    np.save(inputs.b, B)
    run(inputs, *flags)
    assert np.array_equal(np.load(inputs.out), A.T @ B)


@pytest.mark.one_mpi
def test_a_hopeless_plan_is_flagged_and_never_written(make_inputs: Make) -> None:
    """36 blocks on equispaced nodes, fixed tasks only: more results are collected, and with them digits."""
    inputs = make_inputs(120, 60, 60)
    done = mpirun(6, *RUN, *inputs.flags, "--code", "polynomial", "--grid", "6x6", "--param", "nodes=equispaced",
                  "--dispatch", "oneshot", "--give-up", "2", timeout=60)  # fmt: skip
    report = json.loads(Path(inputs.report).read_text())
    if done.returncode == 0:
        assert report["decoding"]["error_estimate"] <= 1e-9
        assert inputs.error() <= report["decoding"]["error_estimate"]
    else:
        assert done.returncode in (4, 5), done
        assert not Path(inputs.out).exists()
