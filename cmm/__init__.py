"""cmm: C = A^T B over MPI ranks, finished when enough of the workers have answered.

The public names load what they need when they are first used. Importing cmm loads neither NumPy nor MPI and
initialises nothing, so a supervisor can still fork.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "matmul": "cmm.runtime.api",
    "Record": "cmm.runtime.report",
    "Grid": "cmm.core.grid",
    "JobSpec": "cmm.core.spec",
    "Injection": "cmm.core.spec",
    "code_class": "cmm.codes.registry",
    "CmmError": "cmm.core.errors",
    "DataError": "cmm.core.errors",
    "ExitCode": "cmm.core.errors",
    "InaccurateError": "cmm.core.errors",
    "IncompleteError": "cmm.core.errors",
    "InputMissingError": "cmm.core.errors",
    "InternalError": "cmm.core.errors",
    "Outcome": "cmm.core.errors",
    "OutputError": "cmm.core.errors",
    "RemoteError": "cmm.core.errors",
    "UnverifiedError": "cmm.core.errors",
    "UsageError": "cmm.core.errors",
}

if TYPE_CHECKING:
    from cmm.codes.registry import code_class
    from cmm.core.errors import (
        CmmError,
        DataError,
        ExitCode,
        InaccurateError,
        IncompleteError,
        InputMissingError,
        InternalError,
        Outcome,
        OutputError,
        RemoteError,
        UnverifiedError,
        UsageError,
    )
    from cmm.core.grid import Grid
    from cmm.core.spec import Injection, JobSpec
    from cmm.runtime.api import matmul
    from cmm.runtime.report import Record

__all__ = [
    "CmmError",
    "DataError",
    "ExitCode",
    "Grid",
    "InaccurateError",
    "IncompleteError",
    "Injection",
    "InputMissingError",
    "InternalError",
    "JobSpec",
    "Outcome",
    "OutputError",
    "Record",
    "RemoteError",
    "UnverifiedError",
    "UsageError",
    "__version__",
    "code_class",
    "matmul",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cmm' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
