"""What the doctor says: one finding a check. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Grade(str, Enum):
    """OK; NOTE: works, with a limit worth knowing; WRONG: jobs will fail or be much slower than they have to be."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, how it is, and what to change (empty when nothing)."""

    check: str
    grade: Grade
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Grade.OK, text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check, Grade.NOTE, text, remedy)


def wrong(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Grade.WRONG, text, remedy)


def healthy(findings: Sequence[Finding]) -> bool:
    return all(finding.grade is not Grade.WRONG for finding in findings)


def lines(findings: Sequence[Finding]) -> list[str]:
    """The findings for a person: grade, check, text; the remedy below."""
    text = []
    for finding in findings:
        mark = {Grade.OK: "ok   ", Grade.NOTE: "note ", Grade.WRONG: "WRONG"}[finding.grade]
        text.append(f"{mark} {finding.check:10} {finding.text}")
        if finding.remedy:
            text.append(f"{'':16} -> {finding.remedy}")
    bad = sum(finding.grade is Grade.WRONG for finding in findings)
    return [*text, f"{bad} to change" if bad else "nothing has to be changed"]


def as_mapping(findings: Sequence[Finding]) -> dict[str, Any]:
    """JSON-ready: `healthy` and the findings."""
    return {"healthy": healthy(findings), "findings": [asdict(finding) for finding in findings]}
