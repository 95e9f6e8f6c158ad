"""L(sigma) on validation data, at the values of sigma that a search asks for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from peppermill.calibrators.temperature import best_temperature
from peppermill.likelihood import ensemble_log_likelihoods, temper
from peppermill.passes import Request, run_members
from peppermill.tuning.result import Evaluation

if TYPE_CHECKING:
    from peppermill.tuning.subsample import Subsample

START = 0.02  # the first sigma of a search, in units of the root mean square of the selected weights


class LikelihoodCurve:
    """Evaluations by sigma, each for one pass of all members, on all items or on a subsample.

    L(sigma) and its profile max_T L(sigma, T) are read off the same pass, so T costs no forward pass.
    """

    def __init__(self, request: Request, joint: bool, subsample: Subsample | None = None) -> None:
        self.request = replace(request, data=subsample.data) if subsample else request
        self.joint, self.subsample = joint, subsample
        self.known: dict[float, Evaluation] = {}
        self.rows: dict[float, tuple[Tensor, Tensor]] = {}  # ln L_i without and with the best T, both [N]

    def __call__(self, sigma: float) -> Evaluation:
        if sigma not in self.known:
            self.known[sigma] = self._evaluate(sigma)
        return self.known[sigma]

    @property
    def items(self) -> int:
        return len(self.rows[0.0][0])

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data; sigma = 0 needs one, any other sigma m."""
        size, share = self.request.perturbation.size, self.subsample.share if self.subsample else 1.0
        return share * sum(size if sigma else 1 for sigma in self.known)

    def standard_error(self, sigma: float, tempered: bool) -> float:
        """The standard error of the gain over sigma = 0, from the differences item by item."""
        gains = self.rows[sigma][tempered] - self.rows[0.0][tempered]
        return math.sqrt(len(gains)) * float(gains.std(correction=0))

    def _evaluate(self, sigma: float) -> Evaluation:
        members = run_members(self.request, sigma)
        rows = ensemble_log_likelihoods(members.member_log_likelihoods).double()
        weights = self.subsample.weights.to(rows.device) if self.subsample else None
        self.rows[sigma] = rows, rows
        value = float((rows if weights is None else weights * rows).sum())
        if not math.isfinite(value):
            return Evaluation(sigma, -math.inf, 1.0, -math.inf)
        if not self.joint:
            return Evaluation(sigma, value, 1.0, value)
        temperature, tempered = best_temperature(members.averaged, members.labels, weights)
        at_best = self.request.likelihood.log_likelihoods(temper(members.averaged, temperature), members.labels)
        self.rows[sigma] = rows, at_best.double()
        return Evaluation(sigma, value, temperature, max(tempered, value))
