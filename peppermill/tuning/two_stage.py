"""Eq. 8 for a third of the price, the default search: a subsample shows where to look, all items decide.

1. The network passes over all items; a subsample prefers those that surprise it (`subsample.py`).
2. On the subsample: steps up and down from a seventh of the weights' root mean square, then closer ones at the best.
3. On all items: the summit of the gains that the subsample expects, corrected by what all items said so far, while it
   promises more than a hundredth of the gain's standard error.

Only values on all items are compared with sigma = 0 or with each other. With a temperature all this is done for
L(sigma) and again for its profile max_T L(sigma, T), so that joint tuning tries every sigma that PEP alone would try
and loses to neither PEP nor temperature scaling on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.interpolate import Akima1DInterpolator, KroghInterpolator
from torch import Tensor

from peppermill.calibrators.temperature import warn_at_limit
from peppermill.likelihood import temper
from peppermill.passes import Request, run_members
from peppermill.tuning.golden import START, evaluate_pass
from peppermill.tuning.result import ROUNDING, Evaluation, SigmaSearch, check_interval, warn_about
from peppermill.tuning.search import GROWTH, grow_bracket
from peppermill.tuning.subsample import Subsample, cut_subsample

MAX_PASSES, PROFILE_PASSES = 5.0, 2.0  # of all members over all items; the profile may use more
MAX_STEPS = 4  # on all items, for each of the two curves
SECOND_STEP = 0.1  # in ln sigma: the least distance of the second sigma on all items
WORTHWHILE_GAIN = 0.01  # in units of the standard error of the gain so far
SAME_SIGMA = 0.01  # in ln sigma: closer values count as one
DIFFERENCES = 2  # values on all items that correct what the regression leaves
CORRECTION_REACH = math.e  # of sigma^2, beyond these values: further out the correction stays constant
WARMING = 0.01  # of T, for a derivative
MIN_SINGULAR_VALUE = 1e-3  # of a least-squares fit, in units of the largest: sigmas that are alike count as one
GRID_POINTS = 401  # between the two neighbors of the best value, where the maximum is looked for


@dataclass(frozen=True)
class TwoStage:
    """A search in at most five passes of all members over 500 examples or more, seven with T.

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
        sampled = LikelihoodCurve(request, joint, subsample, whole) if subsample else whole
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

    def __init__(
        self,
        request: Request,
        joint: bool,
        subsample: Subsample | None = None,
        whole: LikelihoodCurve | None = None,
    ) -> None:
        self.request = replace(request, data=subsample.data) if subsample else request
        self.joint, self.subsample, self.whole = joint, subsample, whole
        self.known: dict[float, Evaluation] = {}
        self.rows: dict[float, tuple[Tensor, Tensor]] = {}  # ln L_i without and with the best T, both [N]
        self.warming: Tensor | None = None  # what each item gains at sigma = 0 from a T a little higher, [N]
        self.examples: Tensor | None = None  # the example of each item, [N]

    def __call__(self, sigma: float) -> Evaluation:
        if sigma not in self.known:
            members = run_members(self.request, sigma)
            weights = self.subsample.weights.to(members.labels.device) if self.subsample else None
            self.known[sigma] = found = evaluate_pass(members, self.joint, weights)
            self.examples, temperature = members.examples, found.temperature
            if self.whole:  # the T of all items grows from sigma = 0 on as that of the subsample does
                temperature *= self.whole(0.0).temperature / self(0.0).temperature
            read, averaged, labels = self.request.likelihood.log_likelihoods, members.averaged, members.labels
            self.rows[sigma] = members.log_likelihoods, read(temper(averaged, temperature), labels)
            if sigma == 0 and self.joint:
                self.warming = read(temper(averaged, (1 + WARMING) * temperature), labels) - self.rows[0.0][1]
        return self.known[sigma]

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data; sigma = 0 needs one (for each view), any other m."""
        share = self.subsample.share if self.subsample else 1.0
        return share * sum(self.request.members(sigma).count for sigma in self.known)

    def item_gains(self, tempered: bool) -> dict[float, Tensor]:
        """The gain over sigma = 0 of each item, [N], at every other sigma at which all are finite."""
        zero = self.rows[0.0][tempered]
        gains = {sigma: (rows[tempered] - zero).double().cpu() for sigma, rows in self.rows.items() if sigma}
        return {sigma: gain for sigma, gain in gains.items() if bool(gain.isfinite().all())}

    def standard_error(self, sigma: float, tempered: bool) -> float:
        """The standard error of the gain over sigma = 0 at the same `tempered`, from the differences of examples."""
        gains = self.rows[sigma][tempered] - self.rows[0.0][tempered]
        if self.examples is not None:
            gains = gains.new_zeros(int(self.examples[-1]) + 1).index_add_(0, self.examples, gains)
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
        start = self._inside(START * GROWTH**2 * self.scale)
        grow_bracket(self._look, start, limits=(self.lower, self.upper), patience=1, steps_down=5)
        for step in range(MAX_STEPS):
            self._look_closer()
            sigma = self._next(second=step == 1)
            if sigma is None or not self._affords(looks=0):
                return
            self.whole(sigma)

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data."""
        return self.whole.passes + (self.sampled.passes if self.sampled is not self.whole else 0.0)

    def _look(self, sigma: float) -> float:
        """The gain that is expected at this sigma, after a pass over the subsample if one is needed."""
        near = _near(sigma, self.sampled)
        if near not in self.sampled.known and not self._affords(looks=1):
            return -math.inf
        self.sampled(near)
        return self._expected().get(_near(near, self.whole), -math.inf) if near else 0.0

    def _look_closer(self) -> None:
        """On the subsample, two steps to either side of the best sigma so far."""
        for step in (GROWTH**0.5, GROWTH**0.25):
            expected = self._expected()
            center = max(expected, key=lambda sigma: (expected[sigma], -sigma), default=0.0)
            for sigma in (center * step, center / step) if expected.get(center, 0.0) > 0 else ():
                self._look(self._inside(sigma))

    def _next(self, second: bool) -> float | None:
        """The next sigma to try on all items, if one is worth a pass; a second one always is, to show the slope."""
        expected, whole = self._expected(), self._gains()
        if not expected:
            return None
        gains = {0.0: 0.0} | whole
        best = max(gains, key=lambda known: (gains[known], -known))
        sigma, promised = summit(expected)
        if second and gains[best] > 0 and not self.tempered and self.sampled is not self.whole:
            return self._beside(best, sigma)
        enough = gains[best] + WORTHWHILE_GAIN * self.whole.standard_error(best, self.tempered)
        if promised > enough and _near(sigma, self.whole) == sigma:
            return sigma
        # The subsample may overlook a gain, most of all that over T: ask all items where they have not been asked.
        above = min((sigma for sigma in whole if sigma > best), default=None)
        if not whole:
            return self._inside(START * self.scale)
        if not self.tempered or above is None:
            return None
        if best:
            return math.sqrt(best * above) if above > GROWTH**1.5 * best else None
        alone = max(self.whole.known.values(), key=lambda found: found.log_likelihood).sigma
        return self._inside(above / GROWTH) if above > alone / GROWTH**1.5 else None

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

    def _gains(self) -> dict[float, float]:
        """The gains over sigma = 0 of all items, without those that may be rounding."""
        name = "tempered_log_likelihood" if self.tempered else "log_likelihood"
        zero = getattr(self.whole(0.0), name)
        return self._beyond_rounding({s: getattr(e, name) - zero for s, e in self.whole.known.items() if s})

    def _expected(self) -> dict[float, float]:
        """The gains of all items, known or expected from the subsample by a regression estimator.

        An item gains at one sigma much as it does at another. Least squares on the subsample say how much, and so what
        all items gain at the sigmas that are known corrects what the subsample gains at the others.
        """
        gains, subsample = self._gains(), self.sampled.subsample
        if subsample is None:
            return {sigma: gain for sigma, gain in gains.items() if math.isfinite(gain)}
        seen, known = self.sampled.item_gains(self.tempered), self.whole.item_gains(self.tempered)
        known = {sigma: gain for sigma, gain in known.items() if math.isfinite(gains[sigma])}
        if not seen:
            return {}
        weights = subsample.weights.double()
        sampled = torch.stack([*seen.values()], dim=1)
        totals = weights @ sampled
        columns = [gain / gain.norm() for gain in known.values() if bool(gain.any())]
        warming = self.whole.warming if self.tempered else None
        if warming is not None and bool(warming.any()):  # the T of the subsample is not that of all items
            columns.append((warming / warming.norm()).double().cpu())
        if columns:
            whole = torch.stack(columns, dim=1)
            items, roots = whole[subsample.items], weights.sqrt()[:, None]
            slopes = np.linalg.lstsq((roots * items).numpy(), (roots * sampled).numpy(), rcond=MIN_SINGULAR_VALUE)[0]
            totals += (whole.sum(dim=0) - weights @ items) @ torch.from_numpy(slopes)
        squares, last = np.array([sigma**2 for sigma in seen]), [*known][-DIFFERENCES:]
        rates = totals.numpy() / squares
        if last:  # what is left: the difference of the rates, gain / sigma^2, as a polynomial in sigma^2
            left = [gains[sigma] / sigma**2 - rate_at(sigma, squares, rates) for sigma in last]
            ends = min(last) ** 2 / CORRECTION_REACH, max(last) ** 2 * CORRECTION_REACH
            rates = rates + KroghInterpolator(np.square(last), left)(squares.clip(*ends))
        expected = self._beyond_rounding(dict(zip(seen, (squares * rates).tolist(), strict=True)))
        expected = {sigma: gain for sigma, gain in expected.items() if _near(sigma, self.whole) == sigma}
        return expected | {sigma: gains[sigma] for sigma in known}

    def _beyond_rounding(self, gains: dict[float, float]) -> dict[float, float]:
        rounding = ROUNDING * len(self.whole.rows[0.0][0])
        return {sigma: gain if abs(gain) > rounding else 0.0 for sigma, gain in gains.items()}

    def _inside(self, sigma: float) -> float:
        return min(max(sigma, self.lower), self.upper)


def summit(gains: Mapping[float, float]) -> tuple[float, float]:
    """The sigma at which the gain over sigma = 0 is largest, and that gain, from some of its values.

    L(sigma) - L(0) begins like sigma^2, so the gain divided by sigma^2, which bends less, is interpolated over
    ln sigma.
    """
    sigmas = np.array(sorted(gains))
    known = np.array([gains[sigma] for sigma in sigmas])
    best = int(np.argmax(known))
    neighbors = sigmas[max(best - 1, 0)], sigmas[min(best + 1, len(sigmas) - 1)]
    grid = np.append(np.geomspace(*neighbors, GRID_POINTS), sigmas[best])
    found = grid**2 * rate_at(grid, sigmas**2, known / sigmas**2)
    top = int(np.argmax(found))
    return float(grid[top]), float(found[top])


def rate_at(sigma: Any, squares: np.ndarray, rates: np.ndarray) -> Any:
    """gain / sigma^2, interpolated over ln sigma from its values at some sigma^2; constant beyond these."""
    if len(squares) == 1:
        return rates[0]
    order = np.argsort(squares)
    places = np.log(squares[order])
    return Akima1DInterpolator(places, rates[order])(np.clip(2 * np.log(sigma), places[0], places[-1]))


def _near(sigma: float, curve: LikelihoodCurve) -> float:
    """A known sigma that is so close that it can replace this one, or this one."""
    alike = (known for known in curve.known if known and abs(math.log(known / sigma)) < SAME_SIGMA)
    return next(alike, sigma) if sigma else sigma
