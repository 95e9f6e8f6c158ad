"""Eq. 8 for a third of the price, the default search: a subsample shows where to look, all items decide.

1. The network passes over all items; a subsample prefers those that surprise it (`subsample.py`).
2. On the subsample: steps up and down from a seventh of the weights' root mean square, then closer ones at the best.
3. On all items: the summit of the gains that the subsample expects, corrected by what all items said so far, while it
   promises more than a hundredth of the gain's standard error.
4. With a temperature, on all items alone: steps down, or up, while the profile max_T L(sigma, T) rises there, then its
   summit. The best T of a subsample is another one.

Only values on all items are compared with sigma = 0 or with each other. Joint tuning tries every sigma that PEP alone
would try, so it loses to neither PEP nor temperature scaling on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.interpolate import Akima1DInterpolator, KroghInterpolator
from torch import Tensor

from peppermill.likelihood import temper
from peppermill.passes import Request, run_members
from peppermill.tuning import check_interval
from peppermill.tuning.result import ROUNDING, Evaluation, SigmaSearch, evaluate_pass
from peppermill.tuning.search import GROWTH, START, grow_bracket
from peppermill.tuning.subsample import MIN_DATA_EXAMPLES, Subsample, cut_subsample

MAX_PASSES, JOINT_PASSES = 5.0, 8.0  # of all members over all items, without and with a temperature
MAX_STEPS, PROFILE_STEPS = 4, 8  # on all items
SECOND_STEP = 0.1  # in ln sigma: the least distance of the second sigma on all items
WORTHWHILE_GAIN = 0.01  # in units of the standard error of the gain so far
SAME_SIGMA = 0.01  # in ln sigma: closer values count as one
DIFFERENCES = 2  # values on all items that correct what the regression leaves
CORRECTION_REACH = math.e  # of sigma^2, beyond these values: further out the correction stays constant
MIN_SINGULAR_VALUE = 1e-3  # of a least-squares fit, in units of the largest: sigmas that are alike count as one
GRID_POINTS = 401  # between the two neighbors of the best value, where the maximum is looked for


@dataclass(frozen=True)
class TwoStage:
    """A search in at most five passes of all members (eight with T) if there are 500 examples or more.

    `lower` and `upper` say where to search. With fewer than 500 examples there is no subsample: every sigma is tried
    on all items, and more of them are tried.
    """

    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        check_interval(self.lower, self.upper)

    def usual_passes(self, items: int, joint: bool) -> float:
        """Passes of all members over all items, at most or, if there are few items, in most cases."""
        return (JOINT_PASSES if joint else MAX_PASSES) if items >= MIN_DATA_EXAMPLES else 14.0

    def tune(self, request: Request, joint: bool = False) -> SigmaSearch:
        """The best sigma, or the best sigma and T; sigma = 0 always competes."""
        whole = LikelihoodCurve(request, joint)
        whole(0.0)
        subsample = cut_subsample(request, whole.rows[0.0][0])
        sampled = LikelihoodCurve(request, False, subsample) if subsample else whole
        climb = _Climb(whole, sampled, request.perturbation.scale(), self.lower or 0.0, self.upper or math.inf)
        climb.run(joint)
        search = SigmaSearch(tuple(whole.known.values()), 0.0, 0.0, whole.items, joint, climb.passes)
        tried, best = {*whole.known, *sampled.known}, search.best.sigma
        below, above = [s for s in tried if s < best], [s for s in tried if s > best]
        return replace(search, lower=max(below, default=best), upper=min(above, default=best))


class LikelihoodCurve:
    """Evaluations by sigma, each for one pass of all members, on all items or on a subsample."""

    def __init__(self, request: Request, joint: bool, subsample: Subsample | None = None) -> None:
        self.request = replace(request, data=subsample.data) if subsample else request
        self.joint, self.subsample = joint, subsample
        self.known: dict[float, Evaluation] = {}
        self.rows: dict[float, tuple[Tensor, Tensor]] = {}  # ln L_i without and with the best T, both [N]
        self.examples = torch.zeros(0, dtype=torch.long)  # the example of each item, [N]

    def __call__(self, sigma: float) -> Evaluation:
        if sigma not in self.known:
            members = run_members(self.request, sigma)
            weights = self.subsample.weights.to(members.labels.device) if self.subsample else None
            self.known[sigma] = found = evaluate_pass(members, self.joint, weights)
            rows = tempered = members.log_likelihoods
            if self.joint:
                averaged = temper(members.averaged, found.temperature)
                tempered = self.request.likelihood.log_likelihoods(averaged, members.labels)
            self.rows[sigma], self.examples = (rows, tempered), members.examples.cpu()
        return self.known[sigma]

    @property
    def items(self) -> int:
        return len(self.rows[0.0][0])

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data; sigma = 0 needs one (for each view), any other m."""
        share = self.subsample.share if self.subsample else 1.0
        return share * sum(self.request.members(sigma).count for sigma in self.known)

    def gains(self, tempered: bool = False) -> dict[float, float]:
        """The finite gains over sigma = 0, at the best T for each sigma if `tempered`; 0 if it may be rounding."""
        name = "tempered_log_likelihood" if tempered else "log_likelihood"
        gains = {s: getattr(e, name) - getattr(self.known[0.0], name) for s, e in self.known.items() if s}
        return _beyond_rounding({s: gain for s, gain in gains.items() if math.isfinite(gain)}, self.items)

    def item_gains(self, sigma: float, tempered: bool = False) -> Tensor:
        """The gain over sigma = 0 of each item, [N]."""
        return (self.rows[sigma][tempered] - self.rows[0.0][tempered]).double().cpu()

    def standard_error(self, sigma: float, tempered: bool) -> float:
        """The standard error of the gain over sigma = 0 at the same `tempered`, from the differences of examples."""
        gains = self.item_gains(sigma, tempered)
        gains = gains.new_zeros(int(self.examples[-1]) + 1).index_add_(0, self.examples, gains)
        return math.sqrt(len(gains)) * float(gains.std(correction=0))


@dataclass(frozen=True)
class _Climb:
    """The climb of L(sigma), on the subsample and then on all items; and after it that of the profile.

    Without a subsample, `whole` and `sampled` are the same object.
    """

    whole: LikelihoodCurve
    sampled: LikelihoodCurve
    scale: float
    lower: float
    upper: float

    def run(self, joint: bool) -> None:
        """Look on the subsample, then step on all items until nothing more is expected or the limit is reached."""
        start = self._inside(START * GROWTH**2 * self.scale)
        grow_bracket(self._look, start, limits=(self.lower, self.upper), patience=1, steps_down=5)
        for factor in (GROWTH**0.5,) if self.sampled.subsample else (GROWTH**0.5, GROWTH**0.25):
            center = highest(self._expected())
            for sigma in (center * factor, center / factor) if center else ():
                self._look(self._inside(sigma))
        self._step(self._next, MAX_STEPS, MAX_PASSES)
        if joint:
            self._step(self._next_of_profile, PROFILE_STEPS, JOINT_PASSES)

    def _step(self, choose: Callable[[], float | None], steps: int, limit: float) -> None:
        for _ in range(steps):
            sigma = choose()
            if sigma is None or not self._affords(limit):
                return
            self.whole(sigma)

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data."""
        return sum(curve.passes for curve in {self.whole, self.sampled})

    def _look(self, sigma: float) -> float:
        """The gain that is expected at this sigma, after a pass over the subsample if one is needed."""
        near = _near(sigma, self.sampled)
        if near not in self.sampled.known and not self._affords(looks=1):
            return -math.inf
        self.sampled(near)
        return self._expected().get(_near(near, self.whole), -math.inf) if near else 0.0

    def _next(self) -> float | None:
        """The next sigma to try on all items, if one is worth a pass; a second one always is, to show the slope."""
        expected = self._expected()
        if not expected:
            return None
        best = highest(self.whole.gains())
        if self.sampled.subsample and len(self.whole.known) == 2 and best:
            sigma, _ = summit(expected)
            if abs(math.log(sigma / best)) >= SECOND_STEP:
                return sigma
            up, down = self._inside(best * math.exp(SECOND_STEP)), self._inside(best * math.exp(-SECOND_STEP))
            return up if (sigma >= best and up > best) or down == best else down
        spare = None
        if len(self.whole.known) == 1:
            spare = self._inside(START * self.scale)
        elif not best and highest(self.sampled.gains()):  # the subsample was wrong: try a usual sigma, too
            usual = self._inside(START * GROWTH**2 * self.scale)
            spare = usual if _near(usual, self.whole) == usual else None
        return self._worthwhile_summit(expected, tempered=False) or spare

    def _next_of_profile(self) -> float | None:
        """A step beyond the known values if the profile is highest at their end, its summit if it is inside.

        Where the next larger value is far away, their middle: an interpolation may overlook a gain over T.
        """
        known = self.whole.gains(tempered=True)
        if not known:
            return None
        best, least, most = highest(known), min(known), max(known)
        beyond = self._inside(most * GROWTH if best == most else least / GROWTH)
        if (best == most or best <= least) and _near(beyond, self.whole) == beyond:
            return beyond
        above = min((one for one in known if one > best), default=0.0)
        middle = math.sqrt(best * above) if best and above > GROWTH**0.75 * best else None
        return self._worthwhile_summit(known, tempered=True) or middle

    def _worthwhile_summit(self, gains: Mapping[float, float], tempered: bool) -> float | None:
        """The summit of these gains, if it is new and promises enough more than the best of all items so far."""
        known = {0.0: 0.0} | self.whole.gains(tempered)
        best, (sigma, promised) = highest(known), summit(gains)
        enough = known[best] + WORTHWHILE_GAIN * self.whole.standard_error(best, tempered)
        return sigma if promised > enough and _near(sigma, self.whole) == sigma else None

    def _affords(self, limit: float = MAX_PASSES, looks: int = 0) -> bool:
        """Whether this many looks at the subsample and one value on all items stay within the limit."""
        subsample, size = self.sampled.subsample, self.whole.request.perturbation.size
        return subsample is None or self.passes + size * (1 + looks * subsample.share) <= limit * size

    def _expected(self) -> dict[float, float]:
        """The gains of all items, known or expected from the subsample by a regression estimator.

        An item gains at one sigma much as it does at another. Least squares on the subsample say how much, and so what
        all items gain at the sigmas that are known corrects what the subsample gains at the others.
        """
        gains, subsample = self.whole.gains(), self.sampled.subsample
        seen = [*self.sampled.gains()]
        if subsample is None or not seen:
            return gains if subsample is None else {}
        weights = subsample.weights.double()
        sampled = torch.stack([self.sampled.item_gains(sigma) for sigma in seen], dim=1)
        totals = weights @ sampled
        columns = [gain / gain.norm() for gain in map(self.whole.item_gains, gains) if bool(gain.any())]
        if columns:
            whole = torch.stack(columns, dim=1)
            items, roots = whole[subsample.items], weights.sqrt()[:, None]
            slopes = np.linalg.lstsq((roots * items).numpy(), (roots * sampled).numpy(), rcond=MIN_SINGULAR_VALUE)[0]
            totals += (whole.sum(dim=0) - weights @ items) @ torch.from_numpy(slopes)
        squares, last = np.square(seen), [*gains][-DIFFERENCES:]
        rates = totals.numpy() / squares
        if last:  # what is left: the difference of the rates, gain / sigma^2, as a polynomial in sigma^2
            left = [gains[sigma] / sigma**2 - rate_at(sigma, squares, rates) for sigma in last]
            ends = min(last) ** 2 / CORRECTION_REACH, max(last) ** 2 * CORRECTION_REACH
            rates = rates + KroghInterpolator(np.square(last), left)(squares.clip(*ends))
        expected = _beyond_rounding(dict(zip(seen, (squares * rates).tolist(), strict=True)), self.whole.items)
        return {sigma: gain for sigma, gain in expected.items() if _near(sigma, self.whole) == sigma} | gains

    def _inside(self, sigma: float) -> float:
        return min(max(sigma, self.lower), self.upper)


def highest(gains: Mapping[float, float]) -> float:
    """The sigma of the largest gain over sigma = 0, which has none; of equals, the smallest."""
    return max((0.0, *gains), key=lambda sigma: (gains.get(sigma, 0.0), -sigma))


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


def _beyond_rounding(gains: dict[float, float], items: int) -> dict[float, float]:
    return {sigma: gain if abs(gain) > ROUNDING * items else 0.0 for sigma, gain in gains.items()}
