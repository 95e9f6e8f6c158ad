"""Eq. 8 as the paper does it: sigma* = argmax L(sigma) on validation data, by golden section.

With a temperature the profile max_T L(sigma, T) is maximised. Joint tuning contains both methods: sigma = 0 is
temperature scaling, T = 1 is PEP. It first tries every sigma that PEP alone would try and then looks closer at the best
of the profile, so that it loses to neither on the validation data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from peppermill.calibrators.temperature import warn_at_limit
from peppermill.passes import Request
from peppermill.tuning.likelihood_curve import START, LikelihoodCurve
from peppermill.tuning.result import SigmaSearch, check_interval, warn_about
from peppermill.tuning.search import GOLDEN, GROWTH, Paid, Search, golden_section, grow_bracket


@dataclass(frozen=True)
class Golden:
    """The paper's golden section on all items, about thirteen passes of all members.

    `lower` and `upper` say where to search; without `upper`, a walk from a fiftieth of the weights' root mean square
    finds a bracket.
    """

    iterations: int = 7  # as in the paper
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        check_interval(self.lower, self.upper)

    def tune(self, request: Request, joint: bool = False) -> SigmaSearch:
        """The best sigma, or the best sigma and T; sigma = 0 always competes."""
        curve = LikelihoodCurve(request, joint)
        plain = Paid(lambda sigma: curve(sigma).log_likelihood)
        profile = Paid(lambda sigma: curve(sigma).tempered_log_likelihood)
        plain(0.0)
        lowest = self.lower or 0.0
        start = self.lower or START * request.perturbation.scale()
        upper = self.upper or max(grow_bracket(plain, start).upper, GROWTH * lowest)
        found = golden_section(plain, lowest, upper, self.iterations)
        if joint:
            reach = max(curve.known)
            end = self.upper or max(grow_bracket(profile, start, reach=reach).upper, GROWTH * lowest)
            found = self._look_closer(profile, sorted(curve.known), end, found.upper - found.lower)
        for edge, reached in ((self.upper, found.upper), (self.lower, found.lower)):
            if edge and edge == reached:
                curve(edge)  # tells whether the maximum lies at the end of the interval or inside
        evaluations = tuple(curve.known.values())
        search = SigmaSearch(evaluations, found.lower, found.upper, curve.items, joint, curve.passes)
        warn_about(search, self.lower, self.upper)
        if joint:
            warn_at_limit(search.best.temperature)
        return search

    def _look_closer(self, profile: Paid, sigmas: list[float], end: float, width: float) -> Search:
        """Golden section between the neighbors of the best sigma so far, down to an interval of this width."""
        best = max(range(len(sigmas)), key=lambda k: profile(sigmas[k]))
        left = max(self.lower or 0.0, sigmas[max(best - 1, 0)])
        right = sigmas[best + 1] if best + 1 < len(sigmas) else end
        if right - left <= width:
            return Search(tuple(profile.points), left, right)
        needed = math.ceil(math.log(width / (right - left), GOLDEN))
        return golden_section(profile, left, right, min(needed, self.iterations))
