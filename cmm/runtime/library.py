"""`python -m cmm.runtime.library`: which MPI library mpi4py loads, as JSON, for the doctor. MPI is not initialised."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import mpi4py

from cmm.runtime.surroundings import version_line


def library() -> dict[str, Any]:
    """The MPI library that mpi4py loads, without initialising it.

    Returns
    -------
    version : the library's own text, one line
    vendor : openmpi, mpich, or empty for another one
    path : the file it was loaded from; empty when the system does not tell
    standard : of MPI, like 4.1
    """
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
    from mpi4py import MPI

    text = version_line(MPI.Get_library_version())
    name = re.match(r"Open MPI v?[\w.]+|MPICH Version: [\w.]+|Intel\S* MPI Library \S+", text)
    vendor = "openmpi" if text.startswith("Open MPI") else "mpich" if re.match("MPICH|Intel", text) else ""
    version = name[0].replace(" Version:", "") if name else text[:120]
    return {"version": version, "vendor": vendor, "path": _loaded(), "standard": "{}.{}".format(*MPI.Get_version())}


def _loaded() -> str:
    try:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return ""
    return next((path for path in sorted(mapped) if os.path.basename(path).startswith("libmpi.")), "")


if __name__ == "__main__":
    print(json.dumps(library()), flush=True)
