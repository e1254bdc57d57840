"""The layers of the package: who may import whom, read from the sources, and how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cmm"

# A module imports only from layers before its own, and from siblings in its own.
LAYERS = ("core", "linalg", "codes", "verify", "matrices", "engine", "runtime", "simulate", "gradient", "commands")
# Command lines that are too long for one module: folders of that layer.
COMMAND_FOLDERS = {"bench", "doctor", "slurm"}
# Modules directly in cmm/ are command lines or the lazy package; these alone may reach everywhere.
PUBLIC = "cmm"
# Read before NumPy and MPI are loaded: flags are judged there, and a supervisor may have to fork there. Only these, and
# command lines, may import inside functions.
STDLIB_ONLY = ("cmm", "cmm.core", "cmm.core.errors", "cmm.core.grid", "cmm.core.spec", "cmm.core.jobfile")
THIN = (*STDLIB_ONLY, "cmm.codes.registry", "cmm.runtime.launch", "cmm.runtime.report", "cmm.run",
        "cmm.gradient.__main__", "cmm.gradient.spec")  # fmt: skip
# What a layer needs from outside the standard library. Optional packages are imported where they are used.
OUTSIDE = {
    "core": {"numpy"},
    "linalg": {"numpy", "scipy"},
    "codes": {"numpy", "scipy"},
    "verify": {"numpy", "scipy"},
    "matrices": {"numpy", "scipy", "h5py"},
    "engine": {"numpy"},  # index sets
    "runtime": {"numpy", "scipy", "mpi4py", "threadpoolctl", "psutil", "tqdm", "matplotlib"},
    "simulate": {"numpy", "scipy", "tqdm", "matplotlib"},
    "gradient": {"numpy", "scipy", "matplotlib"},
    "commands": {"numpy", "threadpoolctl"},
}
# What may be missing, or has to wait until MPI may start or BLAS is there.
LATE_PACKAGES = {"h5py", "matplotlib", "tqdm", "mpi4py", "threadpoolctl"}
MODULE_LINES, SCHEME_LINES = 400, 250
NO_SCHEME = {"__init__", "base", "registry", "defaults"}


@dataclass(frozen=True)
class Import:
    """An import statement: of `target`, in `module`, and whether it waits for a call or is for type checkers only."""

    module: str
    target: str
    line: int
    late: bool
    typing: bool

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {self.target}"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer_of(module: str) -> str:
    parts = module.split(".")
    folder = len(parts) > 2 or (PACKAGE / parts[-1]).is_dir()
    if module == PUBLIC:
        return "public"
    return parts[1] if folder and parts[1] not in COMMAND_FOLDERS else "commands"


class _Reader(ast.NodeVisitor):
    def __init__(self, module: str) -> None:
        self.module, self.depth, self.typing = module, 0, False
        self.found: list[Import] = []

    def add(self, node: ast.stmt | ast.expr, target: str) -> None:
        self.found.append(Import(self.module, target, node.lineno, self.depth > 0, self.typing))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name != PUBLIC:  # what is used of it counts: visit_Attribute
                self.add(node, alias.name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == PUBLIC and node.attr != "__version__":
            self.add(node, f"{PUBLIC}.{node.attr}" if f"{PUBLIC}.{node.attr}" in MODULES else PUBLIC)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            package = self.module if MODULES[self.module].name == "__init__.py" else self.module.rpartition(".")[0]
            outer = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*outer, *filter(None, [node.module])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if inner != f"{PUBLIC}.__version__":
                self.add(node, inner if inner in MODULES else base)

    def visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_function  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        self.typing = True
        for child in node.body:
            self.visit(child)
        self.typing = False
        for child in node.orelse:
            self.visit(child)


def imports_in(module: str, source: str) -> list[Import]:
    reader = _Reader(module)
    reader.visit(ast.parse(source))
    return reader.found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module, path in MODULES.items() for found in imports_in(module, path.read_text("utf-8")))


def outward(found: Import) -> bool:
    """Whether an import goes to a later layer."""
    here, there = layer_of(found.module), layer_of(found.target)
    if here == "public":
        return False
    return there == "public" or LAYERS.index(there) > LAYERS.index(here)


def internal() -> Iterator[Import]:
    return (found for found in imports() if found.target.split(".")[0] == PUBLIC)


def external() -> Iterator[tuple[Import, str]]:
    for found in imports():
        top = found.target.split(".")[0]
        if top != PUBLIC and top not in sys.stdlib_module_names:
            yield found, top


def messages(found: Iterator[Import]) -> list[str]:
    return [str(item) for item in found]


def test_every_folder_is_a_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(LAYERS) - {"commands"} | COMMAND_FOLDERS
    assert all((PACKAGE / folder / "__init__.py").exists() for folder in folders)


def test_modules_import_from_earlier_layers_only() -> None:
    # For type checkers too: a type from a later layer is a dependency on it.
    lazy = {"cmm.codes.registry"}
    assert messages(found for found in internal() if outward(found) and found.module not in lazy) == []


def test_the_engine_has_no_clock_and_no_wires() -> None:
    clocks = {"time", "datetime", "sched", "asyncio", "threading", "selectors", "socket"}
    tops = {(found.module, found.target.split(".")[0]) for found in imports() if layer_of(found.module) == "engine"}
    assert sorted(pair for pair in tops if pair[1] in clocks) == []


def test_layers_use_only_their_outside_packages() -> None:
    # A name for type checkers only costs nothing at run time and decides nothing.
    def foreign(found: Import, top: str) -> bool:
        return not found.typing and top not in OUTSIDE.get(layer_of(found.module), set())

    assert messages(found for found, top in external() if foreign(found, top)) == []


def test_only_the_runtime_imports_mpi4py() -> None:
    assert messages(found for found, top in external() if top == "mpi4py" and layer_of(found.module) != "runtime") == []
    assert any(top == "mpi4py" for _, top in external())


@pytest.mark.parametrize("module", [name for name in THIN if name in MODULES])
def test_loaded_before_numpy(module: str) -> None:
    """Checked by loading it: neither it nor anything that it loads brings NumPy, SciPy or MPI."""
    code = f"import sys, {module}; print(sorted({{'numpy', 'scipy', 'mpi4py'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_imports_inside_functions_are_for_what_must_load_late() -> None:
    def allowed(found: Import) -> bool:
        late = layer_of(found.module) == "commands" or found.module in (*THIN, "cmm.simulate.__main__")
        # what only the master needs, and workers with sparse operands: a worker starts without SciPy
        master_only = found.target.removeprefix("cmm.runtime.").split(".")[0] in {"leader", "session", "sparse_kernel"}
        master_only |= found.target == "cmm.gradient.leader"
        return late or master_only or found.target.split(".")[0] in LATE_PACKAGES

    assert messages(found for found in imports() if found.late and not allowed(found)) == []


def test_optional_packages_are_imported_late() -> None:
    optional = {"h5py", "matplotlib"}
    assert messages(found for found, top in external() if top in optional and not (found.late or found.typing)) == []


def test_sizes() -> None:
    def limit(module: str) -> int:
        scheme = module.startswith("cmm.codes.") and module.rpartition(".")[2] not in NO_SCHEME
        return SCHEME_LINES if scheme else MODULE_LINES

    lengths = {module: len(path.read_text("utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: lines for module, lines in lengths.items() if lines > limit(module)} == {}


@pytest.mark.parametrize(("module", "line", "is_outward"), [
    ("cmm.linalg.rows", "from cmm.codes.base import Code", True),
    ("cmm.linalg.rows", "from ..codes import base", True),
    ("cmm.codes.base", "from cmm.linalg import rows", False),
    ("cmm.linalg.rows", "from cmm import matmul", True),
    ("cmm.linalg.rows", "cmm.matmul(A, B)", True),
    ("cmm.simulate.clock", "from cmm.engine import coordinator", False),
])  # fmt: skip
def test_the_reader_sees_what_an_import_names(module: str, line: str, is_outward: bool) -> None:
    assert [outward(found) for found in imports_in(module, line)] == [is_outward]


def test_the_reader_tells_late_and_typing_imports() -> None:
    source = "if TYPE_CHECKING:\n    import numpy\ndef f():\n    import scipy\nimport h5py\n"
    found = {item.target: (item.late, item.typing) for item in imports_in("cmm.core.grid", source)}
    assert found == {"numpy": (False, True), "scipy": (True, False), "h5py": (False, False)}
