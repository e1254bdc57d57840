"""Is the plan good enough? Plans and rehearses what has arrived, once per set of results."""

from __future__ import annotations

import numpy as np

from cmm.core.errors import FailureKind
from cmm.core.rng import generator
from cmm.linalg.decoder import Decoder
from cmm.linalg.plan import DecodingError, Plan
from cmm.linalg.rehearse import NoiseModel, rehearse

DEFAULT_TOLERANCE = {"f4": 1e-3, "c8": 1e-3, "f8": 1e-9, "c16": 1e-9}
MAX_EXTRA = 64  # results beyond the first decodable moment that are collected for the sake of the tolerance


class TolerancePlanner:
    """The coordinator's judge.

    Parameters
    ----------
    decoder : holds the accepted results
    tolerance : largest allowed estimated error of C_ij relative to |A_i| |B_j|
    noise : rounding of the workers' results
    dtype : of the job
    seed : of the rehearsal's columns
    """

    def __init__(self, decoder: Decoder, tolerance: float, noise: NoiseModel, dtype: np.dtype[np.generic],
                 seed: int) -> None:  # fmt: skip
        self.decoder, self.tolerance, self.noise, self.dtype, self.seed = decoder, tolerance, noise, dtype, seed
        self.plan: Plan | None = None
        self.estimate: float | None = None
        self.reason = ""
        self._judged = -1

    def acceptable(self) -> bool:
        """Whether the results so far decode within the tolerance (estimated)."""
        if self._judged != self.decoder.results:
            self._judge()
            self._judged = self.decoder.results
        return self.estimate is not None and self.estimate <= self.tolerance

    def _judge(self) -> None:
        try:
            self.plan = self.decoder.plan()
        except DecodingError as error:
            self.plan, self.estimate, self.reason = None, None, str(error)
            if error.kind is FailureKind.INCOMPLETE:
                self.reason = f"too few results: {error}"
            return
        rng = generator(self.seed, "rehearsal", self.decoder.results)
        self.estimate = rehearse(self.plan, noise=self.noise, dtype=self.dtype, rng=rng)
        self.reason = (
            f"the estimated error {self.estimate:.1e} of C_ij relative to |A_i||B_j| exceeds the tolerance "
            f"{self.tolerance:.1e} (condition {self.plan.condition:.1e}, {len(self.plan.missing)} blocks solved for)"
        )
