"""The maximum of a function of one number: a walk that brackets it, and golden section.

Nothing here knows about networks. The functions remember their values, which may cost minutes and are asked for again;
where they break down, they give minus infinity and not NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

GOLDEN = (math.sqrt(5) - 1) / 2
GROWTH = 1 / GOLDEN**2  # of three points that grow by this, the middle one is the lower golden section of [0, last]
START = 0.02  # the first sigma of a search, in units of the root mean square of the selected weights


def golden_section(
    function: Callable[[float], float], lower: float, upper: float, iterations: int
) -> tuple[float, float]:
    """Shrink [lower, upper] around the maximum of a unimodal function, by 0.618 for each value after the first."""
    left, right = upper - GOLDEN * (upper - lower), lower + GOLDEN * (upper - lower)
    for _ in range(iterations):
        if function(left) >= function(right):
            upper, right = right, left
            left = upper - GOLDEN * (upper - lower)
        else:
            lower, left = left, right
            right = lower + GOLDEN * (upper - lower)
    return lower, upper


def grow_bracket(
    function: Callable[[float], float],
    start: float,
    *,
    limits: tuple[float, float] = (0.0, math.inf),
    reach: float = 0.0,
    patience: int = 3,
    steps_down: int = 0,
) -> float:
    """Walk from 0 in growing steps until the function falls; return an upper end of the interval of the maximum.

    A fall ends the walk once a step has risen above f(0); before that, `patience` falls do, because with few random
    directions the function may dip before it rises. The walk goes at least as far as `reach`. If its first step is the
    best or nothing beats f(0), up to `steps_down` smaller steps look between 0 and `start`.
    """
    walked, falls = [(0.0, function(0.0))], 0
    for step in range(16):  # the last one is two million times as large as the first
        x = min(start * GROWTH**step, limits[1])
        walked.append((x, function(x)))
        fell = walked[-1][1] < walked[-2][1] or walked[-1][1] == -math.inf
        falls += fell
        risen = max(value for _, value in walked) > walked[0][1]
        if x == limits[1] or (fell and x >= reach and (risen or falls >= patience)):
            break
    peak = max(range(len(walked)), key=lambda k: walked[k][1])
    upper, below = walked[min(peak + 1, len(walked) - 1)][0], start
    for _ in range(steps_down if peak <= 1 else 0):
        x = max(below / GROWTH, limits[0])
        if x == below or function(below) > max(function(x), function(0.0)):
            break
        upper, below = below, x
    return upper
