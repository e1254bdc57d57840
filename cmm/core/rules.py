"""Rules of single values, whatever they come from: flags, job files, calls. Standard library only."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from cmm.core.errors import UsageError

LARGEST = 10**18  # of whole numbers: within the 64 bits that every TOML reader knows
LONGEST = 1e6  # seconds, and slow-down factors: beyond any job, within what sleep() takes
RANKS = 10**6  # of workers: a bound on what a typing error can allocate
LARGEST_MESSAGE = 1 << 30  # bytes: MPI counts in 32 bits
LEAST_MESSAGE = 1 << 10  # of what CMM_MESSAGE_LIMIT may say: the smallest cuts that still get somewhere


@dataclass(frozen=True)
class Rule:
    """What a value must be. `says` completes "--flag: ..."; `known`: names that a misspelt one is compared with."""

    says: str
    holds: Callable[[Any], bool]
    remedy: str
    known: tuple[str, ...] = ()

    def check(self, argument: str, value: Any) -> None:
        """Raise UsageError, in the name of `argument`, when the value breaks the rule."""
        if not self.holds(value):
            near = get_close_matches(value, self.known, n=1) if isinstance(value, str) else []
            raise UsageError(argument, self.says, repr(value), f"Did you mean {near[0]}?" if near else self.remedy)


def message_limit(environ: Mapping[str, str] = os.environ) -> int:
    """Largest message in bytes: 1 GiB, or what CMM_MESSAGE_LIMIT says (the same on all ranks), so that tests can cross
    it cheaply. Raises UsageError."""
    text = environ.get("CMM_MESSAGE_LIMIT", "")
    try:
        limit = read_int(text) if text else LARGEST_MESSAGE
    except ValueError:
        limit = 0
    if not LEAST_MESSAGE <= limit <= LARGEST_MESSAGE:
        raise UsageError("CMM_MESSAGE_LIMIT", f"must be a number of bytes from {LEAST_MESSAGE} to {LARGEST_MESSAGE}",
                         repr(text), "Correct it, or leave it unset.")  # fmt: skip
    return limit


def read_int(text: str) -> int:
    """A whole number in plain decimal digits, of at most 18 of them. Raises ValueError."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise ValueError(text)
    return int(text)


def read_float(text: str) -> float:
    """A finite decimal number. Raises ValueError (also for nan, inf and what overflows)."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text.strip(), re.ASCII):
        raise ValueError(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def whole(least: int, most: int, remedy: str) -> Rule:
    """A whole number within bounds."""
    said = f"{most:.0e}" if most >= 10**7 else str(most)
    return Rule(f"must be a whole number from {least} to {said}", lambda v: is_whole(v) and least <= v <= most, remedy)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def real(says: str, holds: Callable[[float], bool], remedy: str) -> Rule:
    """A finite number for which `holds` holds."""
    return Rule(says, lambda v: (is_whole(v) or isinstance(v, float)) and abs(v) < 1e300 and holds(v), remedy)


def seconds(remedy: str) -> Rule:
    """A time."""
    return real(f"must be a number of seconds from 0 to {LONGEST:.0e}", lambda v: 0 <= v <= LONGEST, remedy)


def choice(*names: str) -> Rule:
    """One of some words."""
    said = ", ".join(names[:-1]) + " or " + names[-1]
    return Rule(f"must be {said}", lambda v: v in names, "Choose one of them.", names)


def is_path(value: Any) -> bool:
    """Whether the text can name a file."""
    if not isinstance(value, str) or not value or "\0" in value or value.endswith("/"):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def file_ending(*suffixes: str, remedy: str) -> Rule:
    """A file of some format."""
    said = suffixes[0] if len(suffixes) == 1 else f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
    return Rule(f"must name a {said} file", lambda v: is_path(v) and v.lower().endswith(suffixes), remedy)


PATH = Rule("must name a file (UTF-8, not empty, no / at the end)", is_path, "Pass the path of a file.")
FOLDER = Rule("must name a folder (UTF-8, not empty)", lambda v: isinstance(v, str) and is_path(v.rstrip("/")),
              "Pass the path of a folder.")  # fmt: skip
SWITCH = Rule("must be true or false", lambda v: isinstance(v, bool), "Choose one of them.")
SEED = whole(0, LARGEST, "Use for example --seed 1.")
THREADS = whole(1, 4096, "Use for example --threads 1.")
WORKERS = whole(0, RANKS, "Use for example --workers 8.")
PROGRESS = choice("auto", "bar", "lines", "none")
