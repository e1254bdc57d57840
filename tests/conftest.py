"""What all tests share: bounded hypothesis runs that find the same examples everywhere, and one BLAS thread."""

from __future__ import annotations

import os

# Before NumPy loads: tests run beside each other and beside ranks.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("search", parent=settings.get_profile("repeatable"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("CMM_HYPOTHESIS", "repeatable"))
