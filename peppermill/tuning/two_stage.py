"""Eq. 8 for a third of the price, the default search: a subsample shows where to look, all items decide.

1. The network passes over all items; a subsample prefers those that surprise it (`subsample.py`).
2. On the subsample: steps up and down from a seventh of the weights' root mean square, then closer ones at the best.
3. On all items: the summit of the subsample's gain curve, a second sigma beside it, then the summit of the corrected
   curve (`gain_curve.py`) while it promises more than a hundredth of the gain's standard error.

Only values on all items are compared with sigma = 0 or with each other. With a temperature all this is done for
L(sigma) and again for its profile max_T L(sigma, T), so that joint tuning tries every sigma that PEP alone would try
and loses to neither PEP nor temperature scaling on the validation data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from peppermill.calibrators.temperature import warn_at_limit
from peppermill.likelihood import temper
from peppermill.passes import Request, run_members
from peppermill.tuning.gain_curve import GainCurve
from peppermill.tuning.golden import START, evaluate_pass
from peppermill.tuning.result import Evaluation, SigmaSearch, check_interval, warn_about
from peppermill.tuning.search import GROWTH, grow_bracket
from peppermill.tuning.subsample import Subsample, cut_subsample

MAX_PASSES, PROFILE_PASSES = 5.0, 1.0  # of all members over all items; the profile may use more
MAX_STEPS = 4  # on all items, for each of the two curves
SECOND_STEP = 0.1  # in ln sigma: the least distance of the second sigma on all items, which shows the slope
WORTHWHILE_GAIN = 0.01  # in units of the standard error of the gain so far
SAME_SIGMA = 0.01  # in ln sigma: closer values count as one


@dataclass(frozen=True)
class TwoStage:
    """A search in at most five passes of all members over all items, six with T.

    `lower` and `upper` say where to search. With fewer than 500 examples there is no subsample: every value is one on
    all items, and more of them are tried.
    """

    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        check_interval(self.lower, self.upper)

    def tune(self, request: Request, joint: bool = False) -> SigmaSearch:
        """The best sigma, or the best sigma and T; sigma = 0 always competes."""
        whole = LikelihoodCurve(request, joint)
        whole(0.0)
        subsample = cut_subsample(request, whole.rows[0.0][0])
        sampled = LikelihoodCurve(request, joint, subsample) if subsample else whole
        climb = _Climb(whole, sampled, request.perturbation.scale(), self.lower or 0.0, self.upper or math.inf)
        climb.run()
        if joint:
            replace(climb, tempered=True, limit=MAX_PASSES + PROFILE_PASSES).run()
        evaluations = tuple(whole.known.values())
        search = SigmaSearch(evaluations, 0.0, 0.0, len(whole.rows[0.0][0]), joint, climb.passes)
        tried, best = {*whole.known, *sampled.known}, search.best.sigma
        below, above = [s for s in tried if s < best], [s for s in tried if s > best]
        search = replace(search, lower=max(below, default=best), upper=min(above, default=best))
        warn_about(search, self.lower, self.upper)
        if joint:
            warn_at_limit(search.best.temperature)
        return search


class LikelihoodCurve:
    """Evaluations by sigma, each for one pass of all members, on all items or on a subsample."""

    def __init__(self, request: Request, joint: bool, subsample: Subsample | None = None) -> None:
        self.request = replace(request, data=subsample.data) if subsample else request
        self.joint, self.subsample = joint, subsample
        self.known: dict[float, Evaluation] = {}
        self.rows: dict[float, tuple[Tensor, Tensor]] = {}  # ln L_i without and with the best T, both [N]

    def __call__(self, sigma: float) -> Evaluation:
        if sigma not in self.known:
            members = run_members(self.request, sigma)
            weights = self.subsample.weights.to(members.labels.device) if self.subsample else None
            self.known[sigma] = found = evaluate_pass(members, self.joint, weights)
            tempered = temper(members.averaged, found.temperature)
            self.rows[sigma] = (
                members.log_likelihoods,
                self.request.likelihood.log_likelihoods(tempered, members.labels),
            )
        return self.known[sigma]

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data; sigma = 0 needs one (for each view), any other m."""
        share = self.subsample.share if self.subsample else 1.0
        return share * sum(self.request.members(sigma).count for sigma in self.known)

    def standard_error(self, sigma: float, tempered: bool) -> float:
        """The standard error of the gain over sigma = 0, from the differences item by item."""
        gains = self.rows[sigma][tempered] - self.rows[0.0][tempered]
        return math.sqrt(len(gains)) * float(gains.std(correction=0))


@dataclass(frozen=True)
class _Climb:
    """The climb of one curve, L(sigma) or its profile: on the subsample first, then on all items.

    Without a subsample, `whole` and `sampled` are the same object.
    """

    whole: LikelihoodCurve
    sampled: LikelihoodCurve
    scale: float
    lower: float
    upper: float
    tempered: bool = False
    limit: float = MAX_PASSES

    def run(self) -> None:
        """Look on the subsample, then step on all items until nothing more is expected or the limit is reached."""
        self._look()
        for _ in range(MAX_STEPS):
            sigma = self._next()
            if sigma is None or not self._affords(looks=0):
                return
            self.whole(sigma)

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data."""
        return self.whole.passes + (self.sampled.passes if self.sampled is not self.whole else 0.0)

    def _look(self) -> None:
        """Steps up and down on the subsample, then closer ones around the best."""

        def seen(sigma: float) -> float:
            near = _near(sigma, self.sampled)
            if near not in self.sampled.known and not self._affords(looks=1):
                return -math.inf
            return self._value(self.sampled(near))

        start = self._inside(START * GROWTH**2 * self.scale)
        grow_bracket(seen, start, limits=(self.lower, self.upper), patience=1, steps_down=5)
        for step in (GROWTH**0.5, GROWTH**0.25):
            center = max(self.sampled.known, key=lambda sigma: (seen(sigma), -sigma))
            for sigma in (center * step, center / step) if center else ():
                seen(self._inside(sigma))

    def _next(self) -> float | None:
        """The next sigma to try on all items, if one is worth a pass."""
        sampled, whole = self._gains(self.sampled), self._gains(self.whole)
        if not any(map(math.isfinite, sampled.values())):
            return None
        if not whole and max(sampled.values()) <= 0:
            return self._inside(START * self.scale)  # the subsample sees no gain: ask all items once
        corrected = self.sampled is not self.whole
        sigma, expected = GainCurve(sampled, whole if corrected else {}).summit()
        best = max(whole, key=lambda known: whole[known], default=0.0)
        gain = max(whole.get(best, 0.0), 0.0)
        if len(whole) == 1 and corrected and max(expected, gain) > 0:
            return self._beside(best, sigma)
        error = self.whole.standard_error(best if gain > 0 else 0.0, self.tempered)
        worthless = expected <= gain + WORTHWHILE_GAIN * error
        return None if worthless or _near(sigma, self.whole) != sigma else sigma

    def _beside(self, first: float, sigma: float) -> float:
        """The second sigma on all items: not too close to the first, on the side of the expected summit."""
        if abs(math.log(sigma / first)) >= SECOND_STEP:
            return sigma
        up, down = self._inside(first * math.exp(SECOND_STEP)), self._inside(first * math.exp(-SECOND_STEP))
        return up if (sigma >= first and up > first) or down == first else down

    def _affords(self, looks: int) -> bool:
        """Whether this many looks at the subsample and one value on all items stay within the limit."""
        subsample, size = self.sampled.subsample, self.whole.request.perturbation.size
        return subsample is None or self.passes + size * (1 + looks * subsample.share) <= self.limit * size

    def _gains(self, curve: LikelihoodCurve) -> dict[float, float]:
        zero = self._value(curve(0.0))
        return {sigma: self._value(found) - zero for sigma, found in curve.known.items() if sigma}

    def _value(self, evaluation: Evaluation) -> float:
        return evaluation.tempered_log_likelihood if self.tempered else evaluation.log_likelihood

    def _inside(self, sigma: float) -> float:
        return min(max(sigma, self.lower), self.upper)


def _near(sigma: float, curve: LikelihoodCurve) -> float:
    """A known sigma that is so close that it can replace this one, or this one."""
    alike = (known for known in curve.known if known and abs(math.log(known / sigma)) < SAME_SIGMA)
    return next(alike, sigma) if sigma else sigma
