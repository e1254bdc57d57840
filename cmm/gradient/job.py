"""`python -m cmm.gradient` from MPI_Init on: rank 0 leads, the others work."""

from __future__ import annotations

from cmm.gradient.spec import GradientSpec
from cmm.gradient.worker import GradientWorker
from cmm.runtime.endpoint import Endpoint
from cmm.runtime.failures import Failures
from cmm.runtime.job import run_ranks
from cmm.runtime.supervisor import Tie


def run_job(spec: GradientSpec, tie: Tie | None = None) -> int:
    """Run the job on all ranks of the world; returns the exit code (see cmm.runtime.job.run_job)."""

    def lead(end: Endpoint, failures: Failures) -> int:
        from cmm.gradient.leader import GradientLeader  # loads what only rank 0 needs

        return GradientLeader(spec, end, failures).run()

    def work(end: Endpoint) -> int:
        return GradientWorker(end, spec).run()[0].value

    return run_ranks(spec.inject, spec.threads, lead, work, tie)
