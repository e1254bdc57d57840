"""pytest on every rank of a world: `mpirun -n N python -m tests.mpi.ranked REPORTS [pytest arguments]`.

Each rank writes REPORTS/rankR.xml; ranks other than 0 print into REPORTS/rankR.log, so that one summary is readable.
A rank whose test fails would leave the others waiting inside it: it prints why and ends the world with exit code 1.
Whoever reads the outcome must find N files and compare them: an abort leaves none.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

FORWARDING_SECONDS = 0.5  # the launcher passes on what was printed; on a busy machine MPICH's abort overtook it


class StopTheWorld:
    """Aborts all ranks at the first failure, where there is anybody else to wait for."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        from mpi4py import MPI

        if report.failed and MPI.COMM_WORLD.size > 1:
            where = f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}"
            sys.__stderr__.write(f"\n{where} FAILED {report.nodeid} ({report.when})\n{report.longreprtext}\n")  # type: ignore[union-attr]
            sys.__stderr__.flush()  # type: ignore[union-attr]
            time.sleep(FORWARDING_SECONDS)
            try:
                MPI.COMM_WORLD.Abort(1)
            finally:
                os._exit(1)  # MPICH returns from Abort and kills a moment later: no report of a run that was cut short


def main() -> int:
    reports = Path(sys.argv[1])
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
    if rank:
        log = os.open(reports / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
    arguments = ["--with-mpi", "-p", "no:cacheprovider", f"--junit-xml={reports / f'rank{rank}.xml'}"]
    return int(pytest.main([*arguments, *sys.argv[2:]], plugins=[StopTheWorld()]))


if __name__ == "__main__":
    sys.exit(main())
