"""How scripts/test counts: nothing that an exit code or a missing file hides may pass."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/test as a module."""
    path = str(SCRIPTS / "test")
    loader = importlib.machinery.SourceFileLoader("scripts_test", path)
    spec = importlib.util.spec_from_loader("scripts_test", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripts_test"] = module  # dataclasses look their module up
    sys.path.insert(0, str(SCRIPTS))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # no scripts/testc
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(SCRIPTS))
        del sys.modules["scripts_test"]
    return module


def counts(outcome: object) -> tuple[int, int, int]:
    return outcome.passed, outcome.failed, outcome.skipped  # type: ignore[attr-defined]


def case(name: str) -> tuple[str, str]:
    return "tests.mpi.test_x", name


@pytest.mark.parametrize(("code", "ranks", "expected"), [
    (0, [{case("a"): "passed", case("b"): "skipped"}], (1, 0, 1)),
    (1, [{case("a"): "passed", case("b"): "failed"}], (1, 1, 0)),
    (0, [{}], (0, 1, 0)),  # Abort(0) before the end, or no test at all
    (0, [{case("a"): "passed"}, {}], (1, 1, 0)),  # one rank did not get to its end
    (0, [{case("a"): "passed"}, {case("a"): "failed"}], (0, 1, 0)),  # passes where it passes on every rank
    (0, [{case("a"): "passed"}, {case("a"): "passed", case("b"): "passed"}], (2, 1, 0)),
    (139, [{case("a"): "passed"}], (1, 1, 0)),  # a crash after the last test, say in Finalize
])  # fmt: skip
def test_counts(script: ModuleType, code: int, ranks: list[dict[tuple[str, str], str]],
                expected: tuple[int, int, int]) -> None:  # fmt: skip
    assert counts(script.counted("a step", code, ranks)) == expected


def test_verdicts_of_a_junit_file(script: ModuleType, tmp_path: Path) -> None:
    cases = [("good", ""), ("bad", "<failure/>"), ("left", "<skipped/>"), ("both", "<error/>"), ("both", "")]
    texts = (f'<testcase classname="t" name="{name}">{inside}</testcase>' for name, inside in cases)
    (tmp_path / "r.xml").write_text(f"<testsuites><testsuite>{''.join(texts)}</testsuite></testsuites>")
    found = {name: verdict for (_, name), verdict in script.verdicts(tmp_path / "r.xml").items()}
    assert found == {"good": "passed", "bad": "failed", "left": "skipped", "both": "failed"}
    assert script.verdicts(tmp_path / "absent.xml") == {}
    for cut in ("", "<testsuites><testsuite><testcase"):
        (tmp_path / "cut.xml").write_text(cut)
        assert script.verdicts(tmp_path / "cut.xml") == {}


def test_a_command_that_does_not_end_is_ended(script: ModuleType) -> None:
    assert script.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.5) == 124
    assert script.run([sys.executable, "-c", "raise SystemExit(3)"], timeout=60) == 3
