"""Eq. 8 for a third of the price, the default search: a subsample shows where to look, all items decide.

1. The network passes over all items; a subsample prefers those that surprise it (`subsample.py`).
2. On the subsample: steps up and down from a seventh of the weights' root mean square, then closer ones at the best.
3. On all items: the summit of the subsample's gain curve, a second sigma beside it, then the summit of the corrected
   curve (`GainCurve`) while it promises more than a hundredth of the gain's standard error.

Only values on all items are compared with sigma = 0 or with each other. With a temperature all this is done for
L(sigma) and again for its profile max_T L(sigma, T), so that joint tuning tries every sigma that PEP alone would try
and loses to neither PEP nor temperature scaling on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import Akima1DInterpolator, KroghInterpolator
from torch import Tensor

from peppermill.calibrators.temperature import warn_at_limit
from peppermill.likelihood import temper
from peppermill.passes import Request, run_members
from peppermill.tuning.golden import START, evaluate_pass
from peppermill.tuning.result import ROUNDING, Evaluation, SigmaSearch, check_interval, warn_about
from peppermill.tuning.search import GROWTH, grow_bracket
from peppermill.tuning.subsample import Subsample, cut_subsample

MAX_PASSES, PROFILE_PASSES = 5.0, 1.0  # of all members over all items; the profile may use more
MAX_STEPS = 4  # on all items, for each of the two curves
SECOND_STEP = 0.1  # in ln sigma: the least distance of the second sigma on all items, which shows the slope
WORTHWHILE_GAIN = 0.01  # in units of the standard error of the gain so far
SAME_SIGMA = 0.01  # in ln sigma: closer values count as one
CORRECTION_REACH = 0.5  # in ln sigma: beyond the known values by more than this, the correction stays constant
GRID_POINTS = 401  # between the two neighbors of the best value, where the maximum is looked for


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
        self.examples: Tensor | None = None  # the example of each item, [N]

    def __call__(self, sigma: float) -> Evaluation:
        if sigma not in self.known:
            members = run_members(self.request, sigma)
            weights = self.subsample.weights.to(members.labels.device) if self.subsample else None
            self.known[sigma] = found = evaluate_pass(members, self.joint, weights)
            self.examples = members.examples
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
        """The standard error of the gain over sigma = 0 at the same `tempered`, from the differences of examples."""
        gains = self.rows[sigma][tempered] - self.rows[0.0][tempered]
        if self.examples is not None:
            gains = gains.new_zeros(int(self.examples[-1]) + 1).index_add_(0, self.examples, gains)
        return math.sqrt(len(gains)) * float(gains.std(correction=0))


@dataclass(frozen=True)
class GainCurve:
    """Gains over sigma = 0 by sigma, on the subsample and on all items: where is the maximum for all items?

    L(sigma) - L(0) begins like sigma^2, so the gain divided by sigma^2, which bends less, is interpolated over
    ln sigma. The subsample's curve is corrected by the few values that are known for all items; the two differ by
    something smooth.
    """

    sampled: Mapping[float, float]
    whole: Mapping[float, float]

    def summit(self) -> tuple[float, float]:
        """The sigma at which all items are expected to gain most, and that gain."""
        places = np.log(_finite_rates(self.sampled)[0])
        best = int(np.argmax(self.gains(places)))
        neighbors = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
        grid = np.append(np.linspace(*neighbors, GRID_POINTS), places[best])
        gains = self.gains(grid)
        top = int(np.argmax(gains))
        return float(np.exp(grid[top])), float(gains[top])

    def gains(self, places: np.ndarray) -> np.ndarray:
        """The expected gains of all items at these values of ln sigma."""
        rates = self._sampled_rates(places)
        sigmas, known = _finite_rates(dict(list(self.whole.items())[-3:]))
        if len(sigmas):
            # The rates of all items less those of the subsample, as a polynomial in sigma^2 through the last values.
            ends = np.log(sigmas[[0, -1]]) + np.array([-CORRECTION_REACH, CORRECTION_REACH])
            differences = known - self._sampled_rates(np.log(sigmas))
            squares = (sigmas / sigmas[-1]) ** 2  # scaled, so that the polynomial is well conditioned
            correction = KroghInterpolator(squares, differences)
            rates = rates + correction(np.exp(2 * np.clip(places, *ends)) / sigmas[-1] ** 2)
        gains: np.ndarray = np.exp(2 * places) * rates
        return gains

    def _sampled_rates(self, places: np.ndarray) -> np.ndarray:
        """Gain divided by sigma^2 on the subsample; constant beyond its first and last sigma."""
        sigmas, rates = _finite_rates(self.sampled)
        if len(sigmas) == 1:
            return np.full_like(places, rates[0])
        known = np.log(sigmas)
        between: np.ndarray = Akima1DInterpolator(known, rates)(np.clip(places, known[0], known[-1]))
        return between


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
            self.sampled(near)
            return self._gains(self.sampled).get(near, 0.0)

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
        """The gains over sigma = 0, without those that may be rounding."""
        name = "tempered_log_likelihood" if self.tempered else "log_likelihood"
        zero, rounding = getattr(curve(0.0), name), ROUNDING * len(self.whole.rows[0.0][0])
        gains = {sigma: getattr(found, name) - zero for sigma, found in curve.known.items() if sigma}
        return {sigma: gain if abs(gain) > rounding else 0.0 for sigma, gain in gains.items()}

    def _inside(self, sigma: float) -> float:
        return min(max(sigma, self.lower), self.upper)


def _near(sigma: float, curve: LikelihoodCurve) -> float:
    """A known sigma that is so close that it can replace this one, or this one."""
    alike = (known for known in curve.known if known and abs(math.log(known / sigma)) < SAME_SIGMA)
    return next(alike, sigma) if sigma else sigma


def _finite_rates(gains: Mapping[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """The values of sigma at which the curve is finite, ascending, and gain / sigma^2 there."""
    sigmas = np.array(sorted(sigma for sigma, gain in gains.items() if np.isfinite(gain)))
    return sigmas, np.array([gains[sigma] for sigma in sigmas]) / sigmas**2
