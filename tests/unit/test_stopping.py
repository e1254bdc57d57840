"""Requests to stop: remembered, raised where that is safe, and never lost or repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from cmm.core.errors import StoppedError
from cmm.runtime import stopping

NUMBERS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    monkeypatch.setattr(stopping, "_requested", "")
    monkeypatch.setattr(stopping, "_raising", False)
    stopping.listen_to_all()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_request_is_remembered_and_raised_when_asked(number: signal.Signals) -> None:
    stopping.check()
    signal.raise_signal(number)
    assert stopping.requested() == number.name
    for _ in range(2):
        with pytest.raises(StoppedError, match=number.name):
            stopping.check()


def test_the_first_one_counts() -> None:
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    assert stopping.requested() == "SIGUSR1"


def interrupted(*numbers: signal.Signals) -> list[str]:
    """What happens where nothing can break, when signals come: one at first, the others while that is unwound."""
    done = []
    with stopping.interruptible():
        try:
            signal.raise_signal(numbers[0])
            done.append("went on")
        finally:
            for number in numbers[1:]:
                signal.raise_signal(number)
            UNWOUND.append(numbers)
    return done


UNWOUND: list[tuple[signal.Signals, ...]] = []


def test_where_nothing_can_break_it_is_raised_at_once() -> None:
    with pytest.raises(StoppedError):
        interrupted(signal.SIGUSR1)


def test_an_earlier_request_is_raised_at_the_door() -> None:
    signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(StoppedError), stopping.interruptible():
        pytest.fail("let in")


def test_what_is_being_unwound_is_not_disturbed_by_an_echo() -> None:
    """Launchers deliver a signal twice."""
    UNWOUND.clear()
    with pytest.raises(StoppedError):
        interrupted(signal.SIGTERM, signal.SIGTERM)
    assert len(UNWOUND) == 1


def test_outside_nothing_is_raised() -> None:
    with stopping.interruptible():
        stopping.ignore()
    signal.raise_signal(signal.SIGUSR1)


SCRIPT = """
    import signal, time
    from cmm.runtime import stopping
    stopping.AGAIN_SECONDS = 0.2
    stopping.listen_to_all()
    print("ready", flush=True)
    for number in range(200):
        time.sleep(0.05)
"""


@pytest.mark.parametrize(("number", "dies"), [(signal.SIGTERM, True), (signal.SIGINT, True), (signal.SIGUSR1, False)])
def test_a_second_request_later_on_ends_the_process_but_sigusr1(number: signal.Signals, dies: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        for wait in (0.05, 0.3, 0.3):  # the second one is an echo
            os.kill(process.pid, number)
            time.sleep(wait)
        if dies:
            assert process.wait(10) == -number
        else:
            assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_early_only_sigusr1_is_remembered() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    stopping.listen()
    assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", NUMBERS)
def test_once_the_job_has_ended_a_request_is_too_late_even_while_python_ends(number: signal.Signals) -> None:
    """Python takes handlers of its own away at its end, and then the signal would be fatal."""
    program = textwrap.dedent(f"""
        import atexit, os, signal, sys
        from cmm.runtime import stopping
        stopping.listen_to_all()
        class Last:  # gone after the handlers
            def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, {int(number)})
        sys.modules["last"] = Last()
        stopping.ignore()
        """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
