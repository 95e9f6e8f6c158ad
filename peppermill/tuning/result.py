"""What a search for sigma* found, and what its user should know about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peppermill.calibrators.temperature import best_temperature, warn_at_limit
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.warnings import warn_user

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


def check_interval(lower: float | None, upper: float | None) -> None:
    """Refuse what is not an interval of sigma."""
    if lower is not None and not 0 <= lower < math.inf:
        raise ValueError(f"`lower={lower}` must be a size of noise, zero or positive.")
    if upper is not None and not (lower or 0.0) < upper < math.inf:
        raise ValueError(f"`lower={lower or 0.0}` must be below `upper={upper}`: exchange them or widen the interval.")


def warn_about(search: SigmaSearch, lower: float | None, upper: float | None) -> None:
    """Warn if noise does not help, if sigma or T sits at an end of its interval, and if L(sigma) has two peaks."""
    sigma, gain = search.best.sigma, search.gain * search.items
    edges = [
        f"`{name}={end:g}`" for name, end in (("upper", upper), ("lower", lower)) if end and math.isclose(sigma, end)
    ]
    if sigma == 0:
        warn_user(
            "noise does not help here: no sigma that was tried beats sigma = 0 on the validation data, so the "
            f"ensemble is the network without noise{', with a temperature' if search.joint else ''}."
        )
    elif edges:
        warn_user(
            f"the best sigma, {sigma:.3g}, sits at {edges[0]}: widen the interval, or leave it out and `fit` finds one."
        )
    if gain > 0 and count_peaks(search.points, depth=0.05 * gain) > 1:
        warn_user(
            "L(sigma) has more than one peak on the validation data, and the search may have found the lower one: look "
            "at `pm.sweep_sigma`, and use more members (`size`) or more validation items."
        )
    if search.joint:
        warn_at_limit(search.best.temperature)


def count_peaks(points: tuple[tuple[float, float], ...], depth: float) -> int:
    """The number of maxima among the points; a valley shallower than `depth` does not separate two."""
    values = [value for _, value in sorted(points)]
    peaks, climbing, extreme = 0, True, values[0]
    for value in values:
        if climbing and value < extreme - depth:
            peaks, climbing, extreme = peaks + 1, False, value
        elif not climbing and value > extreme + depth:
            climbing, extreme = True, value
        extreme = max(extreme, value) if climbing else min(extreme, value)
    return peaks + climbing
