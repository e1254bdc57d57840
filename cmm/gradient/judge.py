"""Between the optimiser and the workers: finds out who answers wrongly, does without them, and judges the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cmm.core.errors import DataError, UnverifiedError
from cmm.core.task import Array
from cmm.engine.messages import listed
from cmm.gradient.checking import LIMIT, ROUGH, Check
from cmm.gradient.descent import FLAT, again, largest
from cmm.gradient.losses import Answer
from cmm.gradient.master import CodedGradient, LocalGradient
from cmm.gradient.objective import Objective

SUSPICIOUS, RETRIES = 1e-6, 3  # gradient relative to the first one at a stop for want of progress; fresh starts then

if TYPE_CHECKING:
    from cmm.gradient.leader import GradientLeader, Prepared


class Judge:
    """Evaluates what is minimised, and checks it.

    Parameters
    ----------
    prepared : the job; its method is replaced where wrong answers have misled it
    coded : the sum over the data
    leader : told of everything
    """

    def __init__(self, prepared: Prepared, coded: CodedGradient | LocalGradient, leader: GradientLeader) -> None:
        self.prepared, self.coded, self.leader = prepared, coded, leader
        self.objective = Objective(coded, leader.job.ridge, prepared.regulariser)
        self.wanted = leader.job.verify == "full" and isinstance(coded, CodedGradient)
        self.retries = 0
        self.check = Check(prepared.data, prepared.loss, leader.check_stop)

    def evaluate(self, theta: Array) -> Answer:
        """As Objective. Where the result is not finite because of wrong answers, once more without their workers."""
        while True:
            try:
                return self.objective(theta)
            except DataError:
                if not self._rejected(theta):
                    raise

    def passes(self, theta: Array) -> bool:
        """Whether loss and gradient at theta are those that the master computes itself; False when they are not and
        the workers to blame have been excluded. Raises UnverifiedError when nobody is to blame."""
        coded, used = self.coded, self.leader.record.verification
        if not self.wanted or not isinstance(coded, CodedGradient):
            return True
        loss, gradient = coded.survey(theta)
        with self.leader.clock.phase("verify", self.leader.record):
            total = self.check.total(theta)
            found = total.difference(np.concatenate([total.value[:1] if loss is None else [loss], gradient.ravel()]))
            used.mode, used.residual, used.limit, used.passed = "full", found, LIMIT, found <= LIMIT
            used.checked_results += len(coded.answers)
            assert coded.encoding is not None
            others = self.check.suspicious(coded.encoding, coded.answers, total)
            if (not used.passed or others > LIMIT) and self._rejected(theta, total.sizes):
                return False
        if not used.passed:
            self._nobody(found)
        return True

    def _nobody(self, found: float) -> None:
        """All answers are what the workers' parts give, and yet their combination is not the sum."""
        said = f"loss or gradient from the workers is off by {found:.2g} of the sizes of its terms"
        if found > ROUGH:
            raise UnverifiedError(
                f"{said}, although every answer is right for its parts. The callable must return the sum over its rows "
                "(a mean is not) and the same for the same rows and theta; one that draws random numbers needs "
                "--verify none. theta was not written."
            )
        used = self.leader.record.verification
        used.limit, used.passed = ROUGH, True
        self.leader.warn(f"{said}: rounding of the callable or of the code; theta is no more accurate than that")

    def _rejected(self, theta: Array, sizes: tuple[float, float] | None = None) -> list[int]:
        """Find the workers whose answers to the last evaluation are wrong, and do without them from now on."""
        coded = self.coded
        if not self.wanted or not isinstance(coded, CodedGradient) or coded.encoding is None or not coded.answers:
            return []
        if sizes is None:
            sizes = self.check.total(theta).sizes
        wrong = self.check.liars(coded.encoding, coded.last, coded.answers, theta, sizes)
        ranks = [worker + 1 for worker in wrong]
        if ranks:
            coded.exclude(ranks, f"a wrong answer in evaluation {coded.number}")
            self.leader.record.verification.rejected_results += len(ranks)
            self.leader.warn(f"ranks {listed(ranks)} answered wrongly in evaluation {coded.number}: going on without")
        return ranks

    def misled(self, stopped: str) -> bool:
        """Whether a descent that got no further should be tried again: what stopped it may have been a wrong answer
        that was not repeated, or a loss and a gradient that do not belong together."""
        limits, norm = self.prepared.limits, self.leader.record.gradient_norm or 0.0
        if stopped != FLAT or norm <= SUSPICIOUS * limits.scale or not self.wanted:
            return False
        self.retries += 1
        if self.retries > RETRIES:
            self.leader.warn(f"no further decrease, although the gradient is still {norm / limits.scale:.2g} of its "
                             "first value: do loss and gradient belong together?")  # fmt: skip
        return self.retries <= RETRIES

    def start_again(self) -> None:
        """A fresh method from the place reached (if it is one), with the scale of the tolerance from the master."""
        prepared, job = self.prepared, self.leader.job
        reached = prepared.method.theta
        prepared.method = again(prepared.method, job.step, reached if np.isfinite(reached).all() else prepared.theta)
        own = Objective(self._own, job.ridge, prepared.regulariser)
        prepared.limits.scale = largest(own(prepared.theta)[1]) or 1.0

    def _own(self, theta: Array) -> Answer:
        total = self.check.total(theta).value
        return (float(total[0]), total[1:].reshape(theta.shape))
