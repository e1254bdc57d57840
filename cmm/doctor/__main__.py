"""`python -m cmm.doctor`, and `mpirun -n 4 python -m cmm.doctor`: the command line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence

from cmm.core.errors import ExitCode, UsageError
from cmm.core.options import Parser
from cmm.doctor import launching, site
from cmm.doctor.findings import Finding, as_mapping, healthy, lines
from cmm.runtime.launch import SILENT_WAIT, Launch, detect, open_streams, say

EPILOG = """\
Exit codes: 0 nothing has to be changed, 1 something has to, 64 usage, 130 interrupted. Alone it starts two ranks with
the mpirun that it finds; under a launcher (mpirun -n 4 python -m cmm.doctor) it looks at the world that this makes."""
INTERRUPTED = 130  # as shells say it: nothing can be taken up again


def main(argv: Sequence[str] | None = None) -> int:
    """Examine and say what is found; returns the exit code."""
    open_streams()
    parser = Parser(prog="python -m cmm.doctor", description="Check MPI, launcher, BLAS, memory and scratch of this "
                    "site.", epilog=EPILOG)  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    launch = detect()
    try:
        given = parser.parse_args(argv)
    except SystemExit:  # --help
        return int(ExitCode.COMPLETE)
    except UsageError as error:
        if launch.first:
            say(f"cmm.doctor: {error}")
        return int(error.exit_code)
    ranked = launch.size is not None and launch.size > 1
    try:
        findings = _under_launcher(launch) if ranked else _alone()
    except KeyboardInterrupt:
        say("cmm.doctor: interrupted")
        return INTERRUPTED
    if findings is None:
        return 0
    print(json.dumps(as_mapping(findings), indent=2) if given.json else "\n".join(lines(findings)), flush=True)
    return 0 if healthy(findings) else 1


def _alone() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    library, vendor = launching.library()
    launcher, mpirun, kind = launching.launcher(vendor)
    findings = [site.versions(), library, launcher]
    if mpirun and vendor:
        findings += launching.two_ranks(mpirun, kind, cores)
    plugins = launching.srun_plugins() if shutil.which("srun") else None
    return [*findings, *site.slurm(vendor, plugins), *site.root(vendor), site.blas(cores), site.shared_memory(cores),
            site.scratch(), *site.sessions()]  # fmt: skip


def _under_launcher(launch: Launch) -> list[Finding] | None:
    from cmm.doctor import world

    if foreign := launching.foreign(launch.launcher):
        return [foreign] if launch.first else None
    try:
        return world.examine(launch)
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError when it finds no MPI library
        if not launch.first:
            time.sleep(SILENT_WAIT)
            return None
        return world.broken(error)


if __name__ == "__main__":
    sys.exit(main())
