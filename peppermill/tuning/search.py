"""Searches for the maximum of a function of one number: golden section, and one that knows slopes too.

They know nothing of networks. Each point is paid for once and kept, because one value may cost minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

GOLDEN = (math.sqrt(5) - 1) / 2
GROWTH = 1 / GOLDEN**2  # makes the middle one of three growing points the lower inner point of [0, last]

Point = tuple[float, float]
Jet = tuple[float, float, float]  # value, slope and curvature of a function at one place


@dataclass(frozen=True)
class Search:
    """Every (x, f(x)) that was paid for, in the order of payment, and the interval that holds the maximum."""

    points: tuple[Point, ...]
    lower: float
    upper: float

    @property
    def best(self) -> Point:
        """The point with the largest value; of equals, the smallest x."""
        return max(self.points, key=lambda point: (point[1], -point[0]))


class Paid:
    """A function that remembers: asking again for a point costs nothing."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self.function = function
        self.points: list[Point] = []

    def __call__(self, x: float) -> float:
        for known, value in self.points:
            if math.isclose(known, x, rel_tol=1e-9, abs_tol=1e-300):
                return value
        value = self.function(x)
        self.points.append((x, -math.inf if math.isnan(value) else value))
        return self.points[-1][1]


def golden_section(function: Callable[[float], float], lower: float, upper: float, iterations: int) -> Search:
    """Shrink [lower, upper] around the maximum of a unimodal function, by 0.618 in each iteration.

    Costs at most `iterations + 1` values. A value that is not a number counts as minus infinity, so that a function
    which breaks down far from its maximum is searched all the same.
    """
    if not lower < upper:
        raise ValueError(f"`lower={lower}` must be below `upper={upper}`: exchange them or widen the interval.")
    if iterations < 1:
        raise ValueError(f"`iterations={iterations}` must be at least 1.")
    paid = function if isinstance(function, Paid) else Paid(function)
    left, right = upper - GOLDEN * (upper - lower), lower + GOLDEN * (upper - lower)
    for _ in range(iterations):
        if paid(left) >= paid(right):
            upper, right = right, left
            left = upper - GOLDEN * (upper - lower)
        else:
            lower, left = left, right
            right = lower + GOLDEN * (upper - lower)
    return Search(tuple(paid.points), lower, upper)


def climb(
    function: Callable[[Sequence[float]], Sequence[Jet]], places: Sequence[float], tolerance: float, most: int = 50
) -> Point:
    """The maximum, between the first place and the last, of a function with one peak that gives many jets at once.

    The places are paid for first; then, one at a time, where the polynomial through the jets on both sides of the peak
    is highest, until that is no further than `tolerance` from a place that is known. Of equals, the smallest.
    """
    known = dict(zip(places, function(places), strict=True))
    for _ in range(most):
        x = _peak(known)
        if min(abs(x - place) for place in known) <= tolerance:
            break
        known[x] = function([x])[0]
    best = max(known, key=lambda place: (known[place][0], -place))
    return best, known[best][0]


def _peak(known: Mapping[float, Jet]) -> float:
    """Where the slope is expected to be 0: an end, where it never changes its sign."""
    rising = [x for x, (_, slope, _) in known.items() if slope > 0]
    lower = max(rising, default=min(known))
    falling = [x for x, (_, slope, _) in known.items() if not slope > 0 and x > lower]
    upper = min(falling, default=lower)
    if not rising or not falling:
        return lower
    slopes = _slopes(known[lower], known[upper], upper - lower)
    left, right = 0.0, 1.0
    for _ in range(60):
        middle = (left + right) / 2
        left, right = (middle, right) if _bernstein(slopes, middle) > 0 else (left, middle)
    return lower + (left + right) / 2 * (upper - lower)


def _slopes(first: Jet, last: Jet, width: float) -> list[float]:
    """The slope of the polynomial of the fifth degree through two jets: its Bernstein coefficients."""
    (value, slope, bend), (value_1, slope_1, bend_1) = first, last
    start, end = width * slope / 5, width * slope_1 / 5
    near, far = start + width**2 * bend / 20, end - width**2 * bend_1 / 20
    return [start, near, value_1 - value - start - near - far - end, far, end]


def _bernstein(coefficients: Sequence[float], x: float) -> float:
    """The polynomial at x in [0, 1], by de Casteljau's means of neighbors."""
    while len(coefficients) > 1:
        coefficients = [(1 - x) * a + x * b for a, b in pairwise(coefficients)]
    return coefficients[0]


def grow_bracket(
    function: Callable[[float], float], start: float, *, reach: float = 0.0, patience: int = 3, most: int = 16
) -> Search:
    """Walk from 0 in growing steps until the function falls; the maximum then lies in [0, upper].

    A fall ends the walk at once when a step has already risen above f(0). Before that, `patience` falls are forgiven:
    with few random directions the function may dip before it rises. A value that is not a number is a fall. The walk
    goes at least as far as `reach`.
    """
    paid = function if isinstance(function, Paid) else Paid(function)
    walked = [(0.0, paid(0.0))]
    falls = 0
    for x in _growing(start, most):
        walked.append((x, paid(x)))
        fell = walked[-1][1] < walked[-2][1] or walked[-1][1] == -math.inf
        falls += fell
        risen = max(value for _, value in walked) > walked[0][1]
        if fell and x >= reach and (risen or falls >= patience):
            break
    peak = max(range(len(walked)), key=lambda k: walked[k][1])
    return Search(tuple(paid.points), 0.0, walked[min(peak + 1, len(walked) - 1)][0])


def walk(function: Callable[[float], float], start: float, lower: float, upper: float) -> None:
    """Steps up from `start` while the function rises above f(0); where the first step does not rise, steps down.

    The best point then lies between two others, unless it is an end of [lower, upper] or nothing beats f(0).
    """
    best = start
    for _ in range(16 if function(start) > function(0.0) else 0):
        further = min(GROWTH * best, upper)
        if not function(further) > function(best):
            break
        best = further
    for _ in range(5 if best == start else 0):
        nearer = max(best / GROWTH, lower)
        if nearer == best or (function(nearer) < function(best) and function(best) > function(0.0)):
            break
        best = nearer


def count_peaks(points: tuple[Point, ...], depth: float) -> int:
    """How many maxima the points show, valleys shallower than `depth` not counted as separating two."""
    values = [value for _, value in sorted(points)]
    peaks, climbing, extreme = 0, True, values[0]
    for value in values:
        if climbing and value < extreme - depth:
            peaks, climbing, extreme = peaks + 1, False, value
        elif not climbing and value > extreme + depth:
            climbing, extreme = True, value
        extreme = max(extreme, value) if climbing else min(extreme, value)
    return peaks + climbing


def _growing(start: float, most: int) -> Iterator[float]:
    for step in range(most):
        yield start * GROWTH**step
