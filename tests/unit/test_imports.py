"""What is loaded before MPI may start: nothing that is large, nothing that initialises MPI."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cmm

HEAVY = ("numpy", "scipy", "mpi4py", "matplotlib", "psutil", "threadpoolctl", "tqdm")


def loaded_by(code: str) -> list[str]:
    """Heavy packages that are loaded in a fresh interpreter after `code`."""
    script = f"{code}\nimport sys\nprint('LOADED', *(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    "code",
    [
        "import cmm",
        "import cmm; cmm.Grid, cmm.UsageError, cmm.JobSpec, cmm.code_class, cmm.__version__",
        "import cmm.core.errors, cmm.core.grid, cmm.core.spec, cmm.core.jobfile",
        "import cmm.run, cmm.runtime.launch",
        "import cmm.report; cmm.Record()",
        "from cmm.run import main; main(['--help'])",
        "from cmm.run import main; main(['--version'])",
        "from cmm.run import main; assert main(['--nonsense']) == 64",
        "from cmm.run import main; assert main(['nowhere.toml']) == 66",
        "from cmm.run import main; assert main(['--a', 'A', '--b', 'B', '--out', 'C', '--code', 'x']) == 64",
        "from cmm.run import main; main(['--a', 'A', '--b', 'B', '--out', 'C', '--show-config'])",
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    assert loaded_by(code) == []


def test_the_control_sees_what_is_loaded() -> None:
    assert loaded_by("import numpy, cmm.codes.base")[:1] == ["numpy"]


def test_list_codes_needs_no_mpi() -> None:
    assert "mpi4py" not in loaded_by("from cmm.run import main; main(['--list-codes'])")


def test_public_names_resolve() -> None:
    assert set(cmm.__all__) == set(dir(cmm))
    for name in cmm.__all__:
        if name != "matmul":  # loads mpi4py: tested under mpirun
            assert getattr(cmm, name) is not None
    assert sorted([*cmm._PUBLIC, "__version__"]) == sorted(cmm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cmm.nonsense  # noqa: B018
