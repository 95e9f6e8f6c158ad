"""What a search for sigma* found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peppermill.calibrators.temperature import best_temperature
from peppermill.plumbing.display import Table, shows_table

if TYPE_CHECKING:
    from torch import Tensor

    from peppermill.passes import MemberPass

ROUNDING = 1e-6  # in nats for each item: a smaller gain may be float32 arithmetic, which differs with the batch size


@dataclass(frozen=True)
class Evaluation:
    """L(sigma) of eq. 6 for one sigma, the best T for this sigma, and L(sigma, T); without T, T is 1."""

    sigma: float
    log_likelihood: float
    temperature: float
    tempered_log_likelihood: float


@shows_table
@dataclass(frozen=True)
class SigmaSearch:
    """Every sigma that was tried on all N validation items, in order, and the interval that holds the best one.

    `passes` counts forward passes of one network over all validation data, those over a part in proportion. The first
    files of version one do not have it.
    """

    evaluations: tuple[Evaluation, ...]
    lower: float
    upper: float
    items: int
    joint: bool
    passes: float | None = None
    pool_gain: float | None = None  # in the mean log-likelihood, cross-fitted, if members were chosen from a pool

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """(sigma, L(sigma)), with the best T for each sigma if both are tuned."""
        return tuple((e.sigma, self._value(e)) for e in self.evaluations)

    @property
    def best(self) -> Evaluation:
        """The evaluation with the largest value, if it gains more over sigma = 0 than rounding; else sigma = 0."""
        best = max(self.evaluations, key=lambda e: (self._value(e), -e.sigma))
        return best if self._value(best) - self._value(self.baseline) > ROUNDING * self.items else self.baseline

    @property
    def baseline(self) -> Evaluation:
        """The network itself: sigma = 0."""
        return next(e for e in self.evaluations if e.sigma == 0)

    @property
    def gain(self) -> float:
        """The PEP effect on the validation data: the mean gain in log-likelihood over the network as it is."""
        return (self._value(self.best) - self.baseline.log_likelihood) / self.items

    def table(self) -> Table:
        """Every sigma with its mean log-likelihood, in ascending order; the best one is marked."""
        if not self.evaluations:
            return Table((), (), f"sigma = {self.lower:.4g} was given, so there was no search")
        columns = ("sigma", "L(sigma)/N", *(("best T", "L(sigma, T)/N") if self.joint else ()), "")
        best, rows = self.best, []
        for e in sorted(self.evaluations, key=lambda e: e.sigma):
            values = (e.log_likelihood, e.tempered_log_likelihood) if self.joint else (e.log_likelihood,)
            means = [f"{value / self.items:.5f}" if math.isfinite(value) else "not finite" for value in values]
            means[1:1] = [f"{e.temperature:.4g}"] if self.joint else []
            rows.append((f"{e.sigma:.4g}", *means, "<- best" if e is best else ""))
        spent = f" and {self.passes:.1f} forward passes" if self.passes else ""
        title = f"sigma* = {best.sigma:.4g}, found on {self.items:,} items with {len(rows)} values of sigma{spent}"
        nll = -self.baseline.log_likelihood / self.items
        note = f"validation NLL {nll:.4f} -> {nll - self.gain:.4f}"
        return Table(columns, rows, title, note, [(sigma, value / self.items) for sigma, value in self.points])

    def _value(self, evaluation: Evaluation) -> float:
        return evaluation.tempered_log_likelihood if self.joint else evaluation.log_likelihood


def evaluate_pass(members: MemberPass, joint: bool, weights: Tensor | None = None) -> Evaluation:
    """L(sigma) of eq. 6 and, if `joint`, the best T, both from one pass; `weights`, [N], weigh the items."""
    rows = members.log_likelihoods.double()
    value = float((rows if weights is None else weights * rows).sum())
    if not math.isfinite(value):
        return Evaluation(members.sigma, -math.inf, 1.0, -math.inf)
    if not joint:
        return Evaluation(members.sigma, value, 1.0, value)
    temperature, tempered = best_temperature(members.averaged, members.labels, weights)
    return Evaluation(members.sigma, value, temperature, max(tempered, value))
