"""Eq. 8 as the paper does it: sigma* = argmax L(sigma) on validation data, by golden section.

With a temperature the profile max_T L(sigma, T) is maximised. Joint tuning contains both methods: sigma = 0 is
temperature scaling, T = 1 is PEP. It first tries every sigma that PEP alone would try and then looks closer at the best
of the profile, so that it loses to neither on the validation data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from peppermill.passes import Request, run_members
from peppermill.tuning import check_interval
from peppermill.tuning.result import Evaluation, SigmaSearch, evaluate_pass
from peppermill.tuning.search import GOLDEN, GROWTH, START, golden_section, grow_bracket


@dataclass(frozen=True)
class Golden:
    """The paper's golden section on all items: with 7 `iterations`, eleven passes of all members or more.

    `lower` and `upper` say where to search; without `upper`, a walk from a fiftieth of the weights' root mean square
    finds a bracket.
    """

    iterations: int = 7  # as in the paper
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        check_interval(self.lower, self.upper)
        if self.iterations < 1:
            raise ValueError(f"`iterations={self.iterations}` must be at least 1.")

    def usual_passes(self, items: int, joint: bool) -> float:
        """Passes of all members in most cases: the walk to a bracket, and the section, which T repeats."""
        return 5.0 + (2 if joint else 1) * self.iterations

    def tune(self, request: Request, joint: bool = False) -> SigmaSearch:
        """The best sigma, or the best sigma and T; sigma = 0 always competes."""
        network = run_members(request, 0.0)
        known = {0.0: evaluate_pass(network, joint)}

        def evaluate(sigma: float) -> Evaluation:
            same = next((one for one in known if math.isclose(one, sigma)), sigma)  # a step of the walk, say
            if same not in known:
                known[same] = evaluate_pass(run_members(request, same), joint)
            return known[same]

        def plain(sigma: float) -> float:
            return evaluate(sigma).log_likelihood

        def profile(sigma: float) -> float:
            return evaluate(sigma).tempered_log_likelihood

        lowest, start = self.lower or 0.0, self.lower or START * request.perturbation.scale()
        upper = self.upper or max(grow_bracket(plain, start), GROWTH * lowest)
        left, right = golden_section(plain, lowest, upper, self.iterations)
        if joint:
            # Golden section between the neighbors of the best sigma so far, down to an interval of the same width.
            end = self.upper or max(grow_bracket(profile, start, reach=max(known)), GROWTH * lowest)
            width, sigmas = right - left, sorted(known)
            best = max(range(len(sigmas)), key=lambda k: profile(sigmas[k]))
            left = max(lowest, sigmas[max(best - 1, 0)])
            right = sigmas[best + 1] if best + 1 < len(sigmas) else end
            if right - left > width:
                needed = math.ceil(math.log(width / (right - left), GOLDEN))
                left, right = golden_section(profile, left, right, min(needed, self.iterations))
        for edge, reached in ((self.upper, right), (self.lower, left)):
            if edge and edge == reached:
                evaluate(edge)  # tells whether the maximum lies at the end of the interval or inside
        passes = float(sum(request.members(sigma).count for sigma in known))
        return SigmaSearch(tuple(known.values()), left, right, len(network.labels), joint, passes)
