"""Eq. 8: sigma* = argmax L(sigma) on validation data; and sigma with a temperature T, tuned together.

L(sigma) and the profile max_T L(sigma, T) are both read off one pass of the members, so T itself costs no forward pass.
Joint tuning contains both methods: sigma = 0 is temperature scaling, T = 1 is PEP. It pays for every sigma that PEP
alone would try and then looks closer where the profile is best, and so can lose to neither on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from peppermill.calibrators.temperature import best_temperature, mention_limit
from peppermill.likelihood import ensemble_log_likelihoods
from peppermill.old_engines.loop import MemberPass
from peppermill.plumbing.warnings import warn_user
from peppermill.processes.messages import every
from peppermill.processes.results import totals
from peppermill.tuning.search import GOLDEN, GROWTH, Paid, Search, count_peaks, golden_section, grow_bracket

START = 0.02  # the first sigma tried, in units of the root mean square of the selected weights


@dataclass(frozen=True)
class Evaluation:
    """One sigma that was paid for: L(sigma) of eq. 6 at T = 1, the best T, and L(sigma, T)."""

    sigma: float
    log_likelihood: float
    temperature: float
    tempered_log_likelihood: float


@dataclass(frozen=True)
class SigmaSearch:
    """Every sigma that was paid for on all N validation items, in order, and the interval that holds the best.

    `passes` counts forward passes of one network over all validation data, those over a part in proportion; files of
    older versions do not know it.
    """

    evaluations: tuple[Evaluation, ...]
    lower: float
    upper: float
    items: int
    joint: bool
    passes: float | None = None

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """(sigma, L(sigma)), with T at its best for each sigma when both are tuned."""
        return tuple((e.sigma, self._value(e)) for e in self.evaluations)

    @property
    def best(self) -> Evaluation:
        """The evaluation with the largest value; of equals, the smallest sigma."""
        return max(self.evaluations, key=lambda e: (self._value(e), -e.sigma))

    @property
    def baseline(self) -> Evaluation:
        """The network itself: sigma = 0."""
        return next(e for e in self.evaluations if e.sigma == 0)

    @property
    def gain(self) -> float:
        """The PEP effect on the validation data: the mean gain in log-likelihood over the network as it is."""
        return (self._value(self.best) - self.baseline.log_likelihood) / self.items

    def _value(self, evaluation: Evaluation) -> float:
        return evaluation.tempered_log_likelihood if self.joint else evaluation.log_likelihood


class Evaluations:
    """Evaluations by sigma, each paid for once: of all items, or of a part of them with weights, [n]."""

    def __init__(
        self, run: Callable[[float], MemberPass], joint: bool, weights: Tensor | None = None, share: float = 1.0
    ) -> None:
        self.run, self.joint, self.weights, self.share = run, joint, weights, share
        self.known: dict[float, Evaluation] = {}
        self.noises: dict[float, float] = {}  # standard errors of the gains over sigma = 0, from item to item
        self.items, self.size, self.passes = 0, 0, 0.0
        self._network: Tensor | None = None  # ln L_i at sigma = 0, [N]

    def __call__(self, sigma: float) -> Evaluation:
        if sigma not in self.known:
            members = self.run(sigma)
            self.items = self.items or _count_items(members)
            self.known[sigma] = self._evaluation(members)
            self.size = len(members.member_log_likelihoods)
            self.passes += self.share * (self.size if sigma else 1)
        return self.known[sigma]

    def _evaluation(self, members: MemberPass) -> Evaluation:
        rows = ensemble_log_likelihoods(members.member_log_likelihoods)
        weighted = 1 if self.weights is None else self.weights
        self._network = self._network if members.sigma else rows
        gains = rows - rows if self._network is None else rows - self._network
        value, gain, squares = totals(torch.stack([weighted * rows, gains, gains.square()]))
        self.noises[members.sigma] = math.sqrt(max(squares - gain * gain / self.items, 0.0))
        if not math.isfinite(value):
            return Evaluation(members.sigma, -math.inf, 1.0, -math.inf)
        if not self.joint:
            return Evaluation(members.sigma, value, 1.0, value)
        temperature, tempered = best_temperature(members.averaged, members.labels, lambda rows: totals(weighted * rows))
        return Evaluation(members.sigma, value, temperature, max(tempered, value))


def tune_sigma(
    run: Callable[[float], MemberPass],
    *,
    scale: float,
    lower: float | None = None,
    upper: float | None = None,
    iterations: int = 7,
    joint: bool = False,
) -> SigmaSearch:
    """Search sigma by golden section; sigma = 0 is always in the race.

    Of several processes each runs over its own items, and only sums over them travel, in few messages for each sigma.
    Without `upper`, a bracket is found by steps that start at a fiftieth of the weights' root mean square, `scale`.
    """
    check_interval(lower, upper)
    evaluate = Evaluations(run, joint)
    evaluations = evaluate.known
    plain = Paid(lambda sigma: evaluate(sigma).log_likelihood)
    profile = Paid(lambda sigma: evaluate(sigma).tempered_log_likelihood)
    plain(0.0)
    start, lowest = lower or START * scale, lower or 0.0
    found = golden_section(plain, lowest, upper or _end_of_walk(plain, start, lowest), iterations)
    if joint:
        end = upper or _end_of_walk(profile, start, lowest, reach=max(evaluations))
        found = _look_closer(profile, sorted(evaluations), lowest, end, found.upper - found.lower, iterations)
    for end in _touched(found, lowest, upper):
        evaluate(end)  # or one could not say on which side of it the maximum lies
    search = SigmaSearch(tuple(evaluations.values()), found.lower, found.upper, evaluate.items, joint, evaluate.passes)
    comment(search, lowest, upper)
    return search


def _touched(found: Search, lower: float, upper: float | None) -> list[float]:
    """The ends of the user's own interval that the search could not leave behind."""
    return [edge for edge, reached in ((upper, found.upper), (lower or None, found.lower)) if edge == reached]


def _end_of_walk(paid: Paid, start: float, lowest: float, reach: float = 0.0) -> float:
    """Where the search may end; beyond `lowest` also where that was the first step, and no step beat sigma = 0."""
    return max(grow_bracket(paid, start, reach=reach).upper, GROWTH * lowest)


def _count_items(members: MemberPass) -> int:
    items: int = sum(every("the number of items", len(members.labels)))
    if not items:
        raise ValueError("`validation` has no item that counts: every label is the ignored one.")
    return items


def _look_closer(
    profile: Paid, sigmas: list[float], lowest: float, end: float, width: float, iterations: int
) -> Search:
    """Golden section between the neighbors of the best sigma so far, until the interval is as narrow as `width`."""
    best = max(range(len(sigmas)), key=lambda k: profile(sigmas[k]))
    left, right = max(lowest, sigmas[max(best - 1, 0)]), sigmas[best + 1] if best + 1 < len(sigmas) else end
    if right - left <= width:
        return Search(tuple(profile.points), left, right)
    needed = math.ceil(math.log(width / (right - left), GOLDEN))
    return golden_section(profile, left, right, min(needed, iterations))


def _edge(sigma: float, lower: float, upper: float | None) -> str | None:
    """The end of the interval that was given, if sigma is there."""
    if upper and math.isclose(sigma, upper):
        return f"`upper={upper:g}`"
    return f"`lower={lower:g}`" if lower and math.isclose(sigma, lower) else None


def check_interval(lower: float | None, upper: float | None) -> None:
    """Refuse what is no interval of sigma."""
    if lower is not None and not 0 <= lower < math.inf:
        raise ValueError(f"`lower={lower}` must be a size of noise, zero or positive.")
    if upper is not None and not (lower or 0.0) < upper < math.inf:
        raise ValueError(f"`lower={lower or 0.0}` must be below `upper={upper}`: exchange them or widen the interval.")


def comment(search: SigmaSearch, lower: float, upper: float | None) -> None:
    """Say what a careful user would want to know of the curve and of the interval that was given."""
    best, gain = search.best, search.gain * search.items
    if best.sigma == 0:
        warn_user(
            "noise does not help here: no sigma that was tried beats sigma = 0 on the validation data, so the "
            f"ensemble is the network itself{' with a temperature' if search.joint else ''}."
        )
    elif edge := _edge(best.sigma, lower, upper):
        warn_user(
            f"the best sigma, {best.sigma:.3g}, sits at {edge}: widen the interval, or leave it out to have one found."
        )
    if search.joint:
        mention_limit(best.temperature)
    if gain > 0 and count_peaks(search.points, depth=0.05 * gain) > 1:
        warn_user(
            "L(sigma) has more than one peak on the validation data, and a golden-section search may have found the "
            "lower one: look at `pm.sweep_sigma`, and use more members (`size`) or more validation items."
        )
