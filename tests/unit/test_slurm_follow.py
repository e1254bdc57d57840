"""Following a job: Slurm's words, and what becomes the exit code. The queue is a list of answers here; tests/slurm has
the real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cmm.core.errors import InternalError
from cmm.slurm.commands import NoAnswer
from cmm.slurm.follow import State, follow, parse_accounting, parse_record

# As Slurm 22.05 prints it, shortened.
RECORD = ("JobId=7 JobName=job UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=0 "
          "Restarts=1 ExitCode=4:0 RunTime=00:00:02 NodeList=n[1-2] Command=(null) StdErr=/home/a b/x=y.out "
          "StdIn=/dev/null StdOut=/home/a b/x=y.out Power=")  # fmt: skip


def state(name: str, code: int = 0, reason: str = "", job: str = "7") -> State:
    return State(job, name, reason, code, "n1", "")


def answers(*rows: list[State]) -> Callable[[str], list[State]]:
    """One row a look, and the last one for ever."""
    left = list(rows)
    return lambda job: left.pop(0) if len(left) > 1 else left[0]


def no_pause(seconds: float) -> None:
    assert seconds > 0


def test_a_record_with_spaces_in_its_values() -> None:
    assert parse_record(RECORD) == State("7", "FAILED", "", 4, "n[1-2]", "/home/a b/x=y.out")


@pytest.mark.parametrize(("old", "new", "job", "code"), [
    ("ExitCode=4:0", "ExitCode=0:9", "7", 137),
    ("JobId=7", "JobId=9 ArrayJobId=7 ArrayTaskId=2", "7_2", 4),
    ("JobId=7", "JobId=8 HetJobId=7 HetJobOffset=1", "7+1", 4),
])  # fmt: skip
def test_records_of_other_kinds(old: str, new: str, job: str, code: int) -> None:
    found = parse_record(RECORD.replace(old, new))
    assert (found.job, found.code) == (job, code)


def test_accounting() -> None:
    assert parse_accounting("7|CANCELLED by 1000|0:15|n1") == State("7", "CANCELLED", "", 143, "n1", "")


@pytest.mark.parametrize(("name", "code", "expected"), [
    ("COMPLETED", 0, 0), ("FAILED", 5, 5), ("CANCELLED", 143, 143), ("TIMEOUT", 0, 1), ("NODE_FAIL", 0, 1),
])  # fmt: skip
def test_exit_codes(name: str, code: int, expected: int) -> None:
    assert follow("7", answers([state(name, code)]), no_pause) == expected


def test_a_job_that_is_queued_again_is_followed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """For a moment it looks ended; so the end must be seen twice."""
    rows = [[state("PENDING", reason="Resources")], [state("RUNNING")], [state("NODE_FAIL")],
            [state("PENDING", reason="BeginTime")], [state("RUNNING")], [state("COMPLETED")]]  # fmt: skip
    assert follow("7", answers(*rows), no_pause) == 0
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "cmm: job 7: PENDING (Resources)"
    assert said[-1] == "cmm: job 7: COMPLETED with exit code 0 on n1"
    assert len(said) == len(rows)


def test_the_first_element_that_failed_gives_the_code() -> None:
    row = [state("COMPLETED", job="7_0"), state("FAILED", 4, job="7_1"), state("FAILED", 5, job="7_2")]
    assert follow("7", answers(row), no_pause) == 4


def test_a_controller_that_restarts_is_waited_for() -> None:
    assert follow("7", answers([], [], [state("RUNNING")], [], [state("COMPLETED")]), no_pause) == 0


def test_a_job_that_nobody_knows() -> None:
    with pytest.raises(InternalError, match="does not know job 7"):
        follow("7", answers([]), no_pause)


def test_interrupting(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    assert follow("7", answers([state("RUNNING")]), interrupted) == 130
    assert "job 7 goes on" in capfd.readouterr().err


def test_the_output_of_a_job_in_parts_and_of_an_array(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text("C is complete\n")
    parts = [State(f"7+{at}", "COMPLETED", "", 0, "n1", str(log)) for at in (1, 0)]
    assert follow("7", answers(parts), no_pause) == 0
    assert capfd.readouterr().out == "C is complete\n"
    row = [State("7_0", "COMPLETED", "", 0, "n1", "log0"), State("7_1", "FAILED", "", 4, "n1", "log1")]
    assert follow("7", answers(row), no_pause) == 4
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[2:] == ["cmm: the output of job 7_1 is in log1"]


def test_a_job_that_waits_is_told_every_minute_and_what_will_not_come(capfd: pytest.CaptureFixture[str]) -> None:
    waiting = [state("PENDING", reason="PartitionNodeLimit")]
    assert follow("7", answers(*[waiting] * 25, [state("COMPLETED")]), no_pause) == 0  # 20 looks of 10 s, some shorter
    said = capfd.readouterr().err.splitlines()
    hint = "the partition never gives so many nodes to one job: scancel it, and ask for fewer --nodes"
    assert said[0] == f"cmm: job 7: PENDING (PartitionNodeLimit): {hint}"
    assert said[1] == f"cmm: job 7: still PENDING (PartitionNodeLimit) after 1 min: {hint}"
    assert len(said) == 5
    many = [state("PENDING", reason="Resources", job=f"7_{at}") for at in range(3)]
    assert follow("7", answers(*[many] * 16, [state("COMPLETED")]), no_pause) == 0
    assert "cmm: job 7_0 and 2 more: still PENDING (Resources) after 1 min\n" in capfd.readouterr().err


@pytest.mark.parametrize(("reason", "hint"), [
    ("Resources", ""), ("Priority", ""), ("ReqNodeNotAvail,_UnavailableNodes:n1", "sinfo -R"),
    ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "sinfo -R"),
    ("QOSMaxCpuPerUserLimit", "a limit of the account or QOS"), ("JobHeldUser", "scontrol release"),
])  # fmt: skip
def test_hints(reason: str, hint: str) -> None:
    found = state("PENDING", reason=reason).hint
    assert hint in found
    assert bool(hint) == bool(found)


def test_a_silent_controller_is_told_and_not_waited_for_without_end(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [[state("RUNNING")], None, None, [state("COMPLETED")]]

    def look(job: str) -> list[State]:
        row = rows.pop(0) if len(rows) > 1 else rows[0]
        if row is None:
            raise NoAnswer("connect failure")
        return row

    assert follow("7", look, no_pause) == 0
    assert capfd.readouterr().err.count("cmm: job 7: no answer from Slurm (connect failure); asking on\n") == 1
    rows[:] = [None]
    with pytest.raises(InternalError, match=r"not answered for 30 min \(connect failure\); job 7 may go on"):
        follow("7", look, no_pause)
    assert 25 < capfd.readouterr().err.count("no answer from Slurm") < 35  # once a minute


def test_the_log_of_the_job_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(b"x" * 70000 + b"\nC is complete\n")
    ended = State("7", "COMPLETED", "", 0, "n1", str(tmp_path / "log"))
    assert follow("7", answers([ended]), no_pause) == 0
    out = capfd.readouterr().out
    assert out.endswith("C is complete\n")
    assert len(out) == 1 << 16
