"""The codes by name. One line registers a scheme; its module is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cmm.core.errors import UsageError
from cmm.core.grid import Grid

if TYPE_CHECKING:
    from cmm.codes.base import Code

CODES: dict[str, str] = {
    "entangled": "cmm.codes.entangled:Entangled",
    "flt": "cmm.codes.flt:FactoredLT",
    "fr": "cmm.codes.fr:FactoredRaptor",
    "fractional-repetition": "cmm.codes.fractional:FractionalRepetition",
    "lt": "cmm.codes.lt:LubyTransform",
    "matdot": "cmm.codes.matdot:MatDot",
    "mds": "cmm.codes.mds:OneDimensionalMDS",
    "orthomatdot": "cmm.codes.orthomatdot:OrthoMatDot",
    "orthopoly": "cmm.codes.orthopoly:OrthoPoly",
    "polynomial": "cmm.codes.polynomial:Polynomial",
    "product": "cmm.codes.product:ProductCode",
    "replication": "cmm.codes.replication:Replication",
    "rkrp": "cmm.codes.rkrp:RandomKhatriRao",
    "rotation": "cmm.codes.rotation:Rotation",
    "sparse": "cmm.codes.sparse:SparseCode",
    "uncoded": "cmm.codes.uncoded:Uncoded",
}


def check_name(name: str) -> str:
    """Return `name` if it is registered. Raises UsageError naming the nearest and all valid names. Loads nothing."""
    if name not in CODES:
        near = get_close_matches(name, CODES, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError("--code", "must be a registered code", repr(name), f"{hint}Codes: {', '.join(sorted(CODES))}.")
    return name


def code_class(name: str) -> type[Code]:
    """The class of a registered code."""
    module, _, attribute = CODES[check_name(name)].partition(":")
    cls: type[Code] = getattr(import_module(module), attribute)
    return cls


@dataclass(frozen=True)
class CodeInfo:
    """What --list-codes says about a code. `parameters`: name -> meaning."""

    name: str
    paper: str
    recovery: str
    good_for: str
    parameters: Mapping[str, str]


def list_codes() -> list[CodeInfo]:
    """Every registered code, by name."""
    classes = [code_class(name) for name in sorted(CODES)]
    return [CodeInfo(cls.name, cls.paper, cls.recovery, cls.good_for,
                     {name: parameter.meaning for name, parameter in cls.parameters.items()})
            for cls in classes]  # fmt: skip


def build(description: Mapping[str, Any]) -> Code:
    """The code that `Code.describe()` describes, for example read back from a report."""
    grid = Grid.parse(description["grid"])
    return code_class(description["name"])(grid, description["P"], description["seed"], description["dispatch"],
                                           description["params"])  # fmt: skip
