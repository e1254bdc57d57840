"""The folder of a checkpoint: who may use it, what is kept, full disks, a damaged plan; and what the same job is."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from cmm.core.errors import DataError, OutputError, UsageError
from cmm.core.grid import Grid
from cmm.core.spec import JobSpec
from cmm.core.task import Array, Assignment, Combination
from cmm.matrices.files import as_source, open_matrix
from cmm.runtime import checkpoint, resume
from cmm.runtime.checkpoint import Checkpoint, identity_digest
from cmm.runtime.records import Form, Saved

IDENTITY = {"a": {"shape": [3, 4]}, "code": {"name": "fr", "grid": "2x2", "P": 4}}
FORM = Form(identity_digest(IDENTITY), (64, 32), np.dtype(np.float64), (2, 2))


def result(task: int) -> tuple[Saved, list[Array]]:
    unit = Assignment.pair(task, Combination.unit(task % 2), Combination.unit(0), 2)
    return Saved(unit, "systematic", True), [np.full(FORM.block, float(task))]


class Kept:
    """A checkpoint with what it said."""

    def __init__(self, folder: Path, *, resume: bool = True, every: float = 0.0, begin: bool = True) -> None:
        self.said: list[str] = []
        self.checkpoint = Checkpoint(str(folder), resume=resume, every=every, warn=self.said.append)
        if begin:
            self.checkpoint.begin(IDENTITY, FORM, out="C.npy")
            self.found = [(saved.assignment.task, blocks[0][0, 0]) for saved, blocks in self.checkpoint.saved()]
            self.checkpoint.restored = len(self.found)
            self.checkpoint.start()

    def save(self, *tasks: int) -> None:
        for task in tasks:
            self.checkpoint.save(*result(task))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ck"


def run(folder: Path, *tasks: int, **options: Any) -> Kept:
    """One run of a job that saves these and ends."""
    kept = Kept(folder, **options)
    kept.save(*tasks)
    kept.checkpoint.close()
    return kept


# ---- runs --------------------------------------------------------------------------------------------------------


def test_what_was_saved_is_there_in_the_next_run(folder: Path) -> None:
    first = run(folder, 0, 3, 2, resume=False)
    assert first.found == []
    assert first.checkpoint.written == 3
    second = run(folder, 1)
    assert second.found == [(0, 0.0), (3, 3.0), (2, 2.0)]
    assert (second.checkpoint.restored, second.checkpoint.written, second.checkpoint.kept) == (3, 1, 4)
    assert [task for task, _ in run(folder).found] == [0, 3, 2, 1]
    assert first.said == second.said == []


def test_nobody_else_may_look_into_it(folder: Path) -> None:
    run(folder, 0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) & 0o077 for entry in folder.iterdir()} <= {0, 0o044}
    assert stat.S_IMODE((folder / "results").stat().st_mode) == 0o600


def test_the_plan_can_be_read(folder: Path) -> None:
    run(folder, 0)
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["identity"] == IDENTITY
    assert plan["out"] == "C.npy"


def test_everything_is_removed_at_the_end_but_what_is_not_ours(folder: Path) -> None:
    kept = Kept(folder)
    kept.save(0)
    kept.checkpoint.deliver("C.npy")
    (folder / ".cmm-0123.tmp").write_text("the plan of a run that was killed")
    kept.checkpoint.remove()
    assert not folder.exists()
    kept = Kept(folder)
    (folder / "notes").write_text("mine")
    kept.checkpoint.remove()
    assert os.listdir(folder) == ["notes"]


def test_what_was_being_delivered_is_known(folder: Path) -> None:
    kept = Kept(folder)
    assert kept.checkpoint.delivering() is None
    kept.checkpoint.deliver("/x/C.npy")
    kept.checkpoint.close()
    assert Kept(folder).checkpoint.delivering() == "/x/C.npy"


# ---- refusals ----------------------------------------------------------------------------------------------------


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(OutputError) as caught:
        Checkpoint(str(folder), **{"resume": False, **options})
    assert caught.value.exit_code == 73
    return str(caught.value)


def test_one_with_results_needs_resume(folder: Path) -> None:
    run(folder, 0)
    assert "--resume" in refused(folder)
    assert Kept(folder).found == [(0, 0.0)]  # and nothing was touched


def test_an_empty_folder_does(folder: Path) -> None:
    folder.mkdir()
    Kept(folder, resume=False)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else(folder: Path, resume: bool) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused(folder, resume=resume)
    assert os.listdir(folder) == ["thesis.tex"]


def test_what_lies_beside_a_checkpoint_does_no_harm(folder: Path) -> None:
    run(folder, 0, 1)
    (folder / "notes.txt").write_text("x")
    kept = run(folder, 2)
    assert [task for task, _ in kept.found] == [0, 1]
    Kept(folder).checkpoint.remove()
    assert os.listdir(folder) == ["notes.txt"]


def test_a_file_or_no_parent(folder: Path, tmp_path: Path) -> None:
    folder.write_text("x")
    assert "must name a folder" in refused(folder)
    assert f"Create {tmp_path / 'no'}" in refused(tmp_path / "no" / "ck")


@pytest.mark.parametrize("name", sorted(checkpoint.OURS))
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_what_is_no_file_of_its_own_is_refused(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    """A link would lead out of the folder, and a named pipe keep its reader waiting for ever."""
    folder.mkdir()
    place, precious = folder / name, tmp_path / "precious"
    precious.write_text("x")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(precious if kind == "link" else tmp_path / "nowhere")
    text = refused(folder, resume=True)
    assert str(place) in text
    assert "no regular file" in text
    assert os.path.lexists(place)
    assert precious.read_text() == "x"
    assert not (tmp_path / "nowhere").exists()


def test_one_job_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LOCK_SECONDS", 0.2)
    held = Kept(folder)
    assert "in use" in refused(folder, resume=True)
    held.checkpoint.close()
    Kept(folder)


def test_the_lock_of_a_dying_job_is_waited_for(folder: Path) -> None:
    held = Kept(folder)
    held.save(0)
    timer = threading.Timer(0.5, held.checkpoint.close)
    timer.start()
    assert Kept(folder).found == [(0, 0.0)]
    timer.join()


def test_the_lock_of_a_folder_that_is_removed_meanwhile(folder: Path) -> None:
    held = Kept(folder)
    timer = threading.Timer(0.3, held.checkpoint.remove)
    timer.start()
    second = Kept(folder)  # the first job is done: this one begins
    timer.join()
    assert second.found == []
    second.save(0)
    second.checkpoint.close()
    assert Kept(folder).found == [(0, 0.0)]


def test_the_lock_dies_with_its_process(folder: Path) -> None:
    script = f"""
        import os, signal
        from tests.unit.test_checkpoint import Kept, Path
        kept = Kept(Path({str(folder)!r}), every=60.0)
        kept.save(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == -9
    assert Kept(folder).found == [(0, 0.0), (1, 1.0)]


def test_killed_at_random_moments_the_folder_is_right(folder: Path) -> None:
    """Each run begins with what its predecessors saved, and no result is ever lost or changed."""
    before = 0
    for number in range(3):
        process = multiprocessing.get_context("spawn").Process(target=save_for_ever, args=(folder, before))
        process.start()
        target = before + 3 + number
        while not (folder / "results").exists() or (folder / "results").stat().st_size < target * 16384:
            time.sleep(0.002)
        process.kill()
        process.join()
        kept = Kept(folder)
        assert kept.found == [(task, float(task)) for task in range(len(kept.found))]
        assert len(kept.found) >= target - 1
        before = len(kept.found)
        kept.checkpoint.close()


def save_for_ever(folder: Path, first: int) -> None:
    kept = Kept(folder)
    for task in range(first, 100_000):
        kept.save(task)


# ---- damage ------------------------------------------------------------------------------------------------------


def test_a_torn_end_is_told_cut_off_and_written_over(folder: Path) -> None:
    run(folder, 0, 1, 2)
    size = (folder / "results").stat().st_size
    os.truncate(folder / "results", size - 100)
    kept = Kept(folder)
    assert [task for task, _ in kept.found] == [0, 1]
    assert "torn end" in kept.said[0]
    kept.save(5)
    kept.checkpoint.close()
    assert [task for task, _ in Kept(folder).found] == [0, 1, 5]


BAD_PLANS = [None, b"", b"{", b"\xff\xfe", b"[]", b'{"identity": {}, "id": "00", "begun": 1}', b"[" * 99999]


@pytest.mark.parametrize("plan", BAD_PLANS, ids=range(len(BAD_PLANS)))
def test_without_a_plan_results_of_this_very_job_are_used(folder: Path, plan: bytes | None) -> None:
    run(folder, 0, 1)
    (folder / "plan.json").unlink() if plan is None else (folder / "plan.json").write_bytes(plan)
    kept = run(folder)
    assert [task for task, _ in kept.found] == [0, 1]
    assert "plan.json is missing or damaged" in kept.said[0]
    assert run(folder).said == []  # it was written again


def test_a_plan_that_was_changed_by_hand_is_damaged(folder: Path) -> None:
    run(folder, 0)
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text.replace('"2x2"', '"3x2"'))
    assert Kept(folder, begin=False).checkpoint.plan is None


# ---- a full disk -------------------------------------------------------------------------------------------------


@pytest.fixture
def file_limit() -> Iterator[Any]:
    """Files of this process are limited; beyond, writing fails as on a full disk (EFBIG; Python ignores SIGXFSZ)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_when_no_more_fits_saving_ends_and_what_is_there_stays(folder: Path, file_limit: Any) -> None:
    kept = Kept(folder)
    file_limit(2 * 17_000 + 500)
    kept.save(0, 1, 2, 3)
    assert kept.checkpoint.written == 2
    assert len(kept.said) == 1
    assert "no further results are saved" in kept.said[0]
    kept.checkpoint.close()
    assert (folder / "results").stat().st_size == kept.checkpoint.bytes  # the part of the third is cut off
    again = Kept(folder)
    assert [task for task, _ in again.found] == [0, 1]
    assert again.said == []


def test_room_is_asked_for_before_the_work(folder: Path) -> None:
    kept = Kept(folder)
    kept.checkpoint.check_room(1000)
    with pytest.raises(OutputError, match="on its file system"):
        kept.checkpoint.check_room(1 << 60)


def test_a_sync_that_fails_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    kept = Kept(folder, every=0.01)
    monkeypatch.setattr(os, "fdatasync", fail)
    kept.save(0)
    deadline = time.monotonic() + 10
    while not kept.said and time.monotonic() < deadline:
        time.sleep(0.02)
        kept.save(1)
    assert "Input/output error" in kept.said[0]
    assert not kept.checkpoint.saving


def test_results_are_synced_now_and_then_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    original = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), original(fd))[1])
    kept = Kept(folder, every=60.0)
    kept.save(*range(20))
    assert synced == []
    kept.checkpoint.finish()
    assert len(synced) == 1


# ---- identities --------------------------------------------------------------------------------------------------


def test_the_content_is_hashed_whatever_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((2100, 301))
    np.save(tmp_path / "A.npy", A)
    before = resume.content_hash(open_matrix(tmp_path / "A.npy"))
    assert before == resume.content_hash(open_matrix(tmp_path / "A.npy")) == resume.content_hash(as_source(A, "A"))
    for row, column in ((0, 0), (2099, 300), (1000, 17)):
        other = A.copy()
        other[row, column] = np.nextafter(other[row, column], 9)
        assert resume.content_hash(as_source(other, "A")) != before
    swapped = A.copy()
    swapped[[5, 6]] = swapped[[6, 5]]
    assert resume.content_hash(as_source(swapped, "A")) != before


@pytest.mark.parametrize("matrix", [
    np.zeros((0, 5)), np.zeros((5, 0)), np.ones((7, 3), order="F"), np.arange(12, dtype=">i4").reshape(3, 4),
    np.eye(4, dtype=bool), sp.random_array((300, 200), density=0.05, rng=np.random.default_rng(0)),
    np.array([[np.nan, np.inf], [-0.0, 0.0]]),
], ids=["no rows", "no columns", "Fortran", "big endian", "bool", "sparse", "special"])  # fmt: skip
def test_any_matrix_has_a_hash(matrix: Any) -> None:
    assert resume.content_hash(as_source(matrix, "A")) == resume.content_hash(as_source(matrix.copy(), "A"))


def identity(**changes: Any) -> dict[str, Any]:
    base = {"format": 1, "cmm": "1.0", "a": {"shape": [3, 4], "dtype": "<f8", "content": "aa"},
            "b": {"shape": [3, 5], "dtype": "<f8", "content": "bb"}, "op": "T", "computed_in": "<f8",
            "code": {"name": "fr", "grid": "2x2", "K": 4, "P": 4, "seed": 0, "dispatch": "pull",
                     "params": {"groups": "full"}}}  # fmt: skip
    for path, value in changes.items():
        *folders, key = path.split("__")
        place: Any = base
        for name in folders:
            place = place[name]
        place[key] = value
    return base


@pytest.mark.parametrize(("path", "value", "kind", "argument"), [
    ("a__content", "ab", DataError, "--a"), ("b__shape", [3, 6], DataError, "--b"),
    ("b__dtype", "<f4", DataError, "--b"),
    ("op", "H", UsageError, "--op"), ("code__name", "rkrp", UsageError, "--code"),
    ("code__grid", "4x1", UsageError, "--grid"), ("code__P", 8, UsageError, "--tasks"),
    ("code__seed", 1, UsageError, "--seed"), ("code__dispatch", "oneshot", UsageError, "--dispatch"),
    ("code__params__groups", "sparse", UsageError, "--param groups"), ("cmm", "1.1", UsageError, "--resume"),
    ("computed_in", ">f8", UsageError, "--resume"), ("new", 1, UsageError, "--resume"),
])  # fmt: skip
def test_what_has_changed_is_named(path: str, value: Any, kind: type[Exception], argument: str) -> None:
    resume.refuse_differences(identity(), identity())
    for kept, now in ((identity(), identity(**{path: value})), (identity(**{path: value}), identity())):
        with pytest.raises(kind) as caught:
            resume.refuse_differences(kept, now)
        assert str(caught.value).startswith(f"{argument}: ")


def test_before_the_contents_are_known_they_are_not_compared() -> None:
    now = identity()
    for name in "ab":
        del now[name]["content"]
    resume.refuse_differences(identity(), now)


def test_grid_and_tasks_of_the_checkpoint_stand_in_for_what_was_not_given(tmp_path: Path) -> None:
    spec = JobSpec(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c"), str(tmp_path / "d"))
    assert resume.planned(identity(), spec) == (Grid(2, 2), 4)
    assert resume.planned(identity(code__name="rkrp"), spec) is None
    assert resume.planned(identity(code__grid="x"), spec) is None
    assert resume.planned(None, spec) is None
