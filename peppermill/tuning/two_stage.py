"""Eq. 8 for a third of the price: a part of the validation items shows where to look, all of them decide.

1. The network itself passes over all items; where it is surprised, a part of them is chosen (`sample.py`).
2. On the sample: steps up and down from a seventh of the weights' root mean square, then closer steps around the best.
3. On all items: the summit that the sample shows, a second sigma beside it, the summit of the sketch bent onto both.

Only evaluations on all items are ever compared with sigma = 0 or with each other. With a temperature the same is done
for L(sigma), and then for its profile max_T L(sigma, T): every sigma that PEP alone would pay for is paid for, so that
tuning both together loses to neither on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from peppermill.old_engines.loop import MemberPass
from peppermill.tuning.gain_curve import Sketch
from peppermill.tuning.golden import START, Evaluation, Evaluations, SigmaSearch, check_interval, comment
from peppermill.tuning.search import GROWTH, walk
from peppermill.tuning.subsample import Sample

LIMIT, MORE = 5.0, 1.0  # passes of all members over all items; and so many more for the profile
STEPS = 4  # on all items, for each of the two curves
APART = 0.1  # of ln sigma, between the first two values on all items: the second one tells the slope
WORTH = 0.01  # of the standard error of PEP's gain so far: less than this is not worth a pass
SAME = 0.01  # of ln sigma: nearer than this is the same sigma

SEARCHES = ("quick", "golden")

#: What is to be maximized: L(sigma), or its profile.
Value = Callable[[Evaluation], float]


def tune_quickly(
    run: Callable[[float, Sample | None], MemberPass],
    choose: Callable[[MemberPass], Sample | None],
    *,
    scale: float,
    lower: float | None = None,
    upper: float | None = None,
    joint: bool = False,
) -> SigmaSearch:
    """Search sigma in at most five passes of all members over all items, six with T; sigma = 0 is always in the race.

    `run` passes over all items or over a sample, which `choose` makes once the network itself has passed over all.
    Where it makes none, because the data are few, every value is one on all items, and more of them are paid for.
    """
    check_interval(lower, upper)
    network = run(0.0, None)
    sample = choose(network)
    whole = Evaluations(lambda sigma: run(sigma, None) if sigma else network, joint)
    whole(0.0)
    sketched = Evaluations(lambda sigma: run(sigma, sample), joint, sample.weights, sample.share) if sample else whole
    hunt = _Hunt(whole, sketched, scale, lower or 0.0, upper or math.inf)
    hunt.climb(lambda evaluation: evaluation.log_likelihood)
    if joint:
        replace(hunt, limit=LIMIT + MORE).climb(lambda evaluation: evaluation.tempered_log_likelihood)
    search = hunt.found(joint)
    comment(search, lower or 0.0, upper)
    return search


def search_named(search: str | None, iterations: int | None) -> str:
    """The search that was asked for; iterations are those of the golden section."""
    named = search or ("quick" if iterations is None else "golden")
    if named not in SEARCHES:
        raise ValueError(f"`search={search!r}` is unknown: choose one of {', '.join(SEARCHES)}.")
    if named == "quick" and iterations is not None:
        raise ValueError(
            f'`iterations={iterations}` is for the golden section: leave it out, or use `search="golden"`.'
        )
    return named


@dataclass(frozen=True)
class _Hunt:
    """The evaluations on all items and on the sample, the same where there is no sample; and where to search."""

    whole: Evaluations
    sketched: Evaluations
    scale: float
    lower: float
    upper: float
    limit: float = LIMIT

    def climb(self, value: Value) -> None:
        """Look on the sample, then step on all items until nothing more is to be gained or the limit is reached."""
        self._look(value)
        for _ in range(STEPS):
            sigma = self._next(value)
            if sigma is None or not self.affords():
                return
            self.whole(sigma)

    def affords(self, looks: int = 0) -> bool:
        """Whether so many looks on the sample and a value on all items stay within the limit."""
        wanted = self.passes + self.whole.size * (1 + looks * self.sketched.share)
        return not self.sampled or wanted <= self.limit * self.whole.size

    @property
    def sampled(self) -> bool:
        return self.whole is not self.sketched

    @property
    def passes(self) -> float:
        """Forward passes of one network over all data."""
        return self.whole.passes + self.sketched.passes * self.sampled

    def found(self, joint: bool) -> SigmaSearch:
        """The search so far, between the neighbors of the best sigma among all that were tried."""
        search = SigmaSearch(tuple(self.whole.known.values()), 0.0, 0.0, self.whole.items, joint, self.passes)
        tried, best = {*self.whole.known, *self.sketched.known}, search.best.sigma
        below, above = (s for s in tried if s < best), (s for s in tried if s > best)
        return replace(search, lower=max(below, default=best), upper=min(above, default=best))

    def _look(self, value: Value) -> None:
        """Steps up and down on the sample, then closer ones around the best.

        A look that no step can follow is worth nothing, and is not taken.
        """

        def seen(sigma: float) -> float:
            near = _known(sigma, self.sketched)
            new = near not in self.sketched.known
            return -math.inf if new and not self.affords(looks=1) else value(self.sketched(near))

        walk(seen, self._inside(START * GROWTH**2 * self.scale), self.lower, self.upper)
        for step in (GROWTH**0.5, GROWTH**0.25):
            center = max(self.sketched.known, key=lambda sigma: (seen(sigma), -sigma))
            for sigma in (center * step, center / step) if center else ():
                seen(self._inside(sigma))

    def _next(self, value: Value) -> float | None:
        """The next sigma to pay for on all items, if one is worth it."""
        sample, whole = _gains(self.sketched, value), _gains(self.whole, value)
        if not any(map(math.isfinite, sample.values())):
            return None
        if not whole and max(sample.values()) <= 0:
            return self._inside(START * self.scale)  # the sample sees no gain: ask all items once
        sigma, expected = Sketch(sample, whole if self.sampled else {}).summit()
        best = max(whole.values(), default=0.0)
        if len(whole) == 1 and self.sampled and max(expected, best) > 0:
            return self._beside(next(iter(whole)), sigma)
        worthless = expected <= max(best, 0.0) + WORTH * self._noise()
        return None if worthless or _known(sigma, self.whole) != sigma else sigma

    def _noise(self) -> float:
        """The standard error of the gain that noise alone has brought so far."""
        best = max(self.whole.known.values(), key=lambda evaluation: evaluation.log_likelihood)
        return self.whole.noises[best.sigma]

    def _beside(self, first: float, sigma: float) -> float:
        """The second sigma, not nearer to the first than `APART`, on the side to which the summit lies."""
        if abs(math.log(sigma / first)) >= APART:
            return sigma
        up, down = self._inside(first * math.exp(APART)), self._inside(first * math.exp(-APART))
        return up if (sigma >= first and up > first) or down == first else down

    def _inside(self, sigma: float) -> float:
        return min(max(sigma, self.lower), self.upper)


def _gains(evaluations: Evaluations, value: Value) -> dict[float, float]:
    """Gains over sigma = 0, by sigma."""
    zero = value(evaluations(0.0))
    return {sigma: value(found) - zero for sigma, found in evaluations.known.items() if sigma}


def _known(sigma: float, evaluations: Evaluations) -> float:
    """A sigma so near that it may stand for this one, or this one."""
    alike = (known for known in evaluations.known if known and abs(math.log(known / sigma)) < SAME)
    return next(alike, sigma) if sigma else sigma
