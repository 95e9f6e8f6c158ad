from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from peppermill.tuning import count_peaks
from peppermill.tuning.search import GOLDEN, golden_section, grow_bracket


class Memo:
    """A function that remembers its values, as the searches ask for; (x, f(x)) in the order of the questions."""

    def __init__(self, function):
        self.function, self.points = function, []

    def __call__(self, x):
        for known, value in self.points:
            if math.isclose(known, x):
                return value
        self.points.append((x, self.function(x)))
        return self.points[-1][1]


def parabola(peak):
    return Memo(lambda x: -((x - peak) ** 2))


def best(memo):
    return max(memo.points, key=lambda point: point[1])


@pytest.mark.parametrize(
    ("lower", "upper"), [(0, 3), (1, 3), (-5, 2.5), (1.9, 2.1), (1.99999, 1000), (-7, 2.0), (2.0, 9)]
)
def test_finds_the_peak_wherever_the_interval_starts(lower, upper):
    memo = parabola(2.0)
    left, right = golden_section(memo, lower, upper, 30)
    assert abs(best(memo)[0] - 2.0) <= (upper - lower) * GOLDEN**30
    assert left <= 2.0 <= right


@given(peak=st.floats(-100, 100), left=st.floats(1e-3, 50), right=st.floats(1e-3, 50), iterations=st.integers(1, 25))
def test_the_interval_shrinks_by_the_golden_ratio_and_keeps_the_peak(peak, left, right, iterations):
    lower, upper = golden_section(lambda x: -abs(x - peak), peak - left, peak + right, iterations)
    assert upper - lower == pytest.approx((left + right) * GOLDEN**iterations, rel=1e-6, abs=1e-11)
    assert lower - 1e-12 * abs(peak) <= peak <= upper + 1e-12 * abs(peak)


@pytest.mark.parametrize("iterations", [1, 2, 7, 20])
@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (-3, 8), (0.25, 0.26)])
@pytest.mark.parametrize("peak", [-100.0, 0.2, 0.255, 100.0])
def test_needs_one_point_more_than_iterations(lower, upper, iterations, peak):
    asked = []
    golden_section(lambda x: asked.append(x) or -((x - peak) ** 2), lower, upper, iterations)
    assert len(set(asked)) == iterations + 1


def test_the_first_points_are_the_golden_sections_of_the_interval():
    """By hand: [2, 12] has 2 + 10 * 0.381966 and 2 + 10 * 0.618034; a peak on the right then asks for 9.63932."""
    memo = parabola(12.0)
    golden_section(memo, 2, 12, 2)
    assert [x for x, _ in memo.points] == pytest.approx([5.8196601, 8.1803399, 9.6393202])


@pytest.mark.parametrize(
    ("function", "lower", "upper"),
    [
        (lambda x: x * math.exp(-x), 0.0, 10.0),
        (lambda x: -math.cosh(x + 3), -9.0, 1.0),
        (lambda x: math.log(x) - x / 50, 1.0, 400.0),
    ],
)
def test_agrees_with_the_golden_section_of_scipy(function, lower, upper):
    theirs = minimize_scalar(
        lambda x: -function(x), bracket=(lower, (lower + upper) / 4 + lower / 2, upper), method="golden", tol=1e-9
    )
    ours = Memo(function)
    golden_section(ours, lower, upper, 40)
    # near a maximum a function is flat: x is known to the square root of the precision of f
    assert best(ours)[0] == pytest.approx(theirs.x, abs=1e-6 * (upper - lower))
    assert best(ours)[1] == pytest.approx(-theirs.fun, rel=1e-12)


def test_finds_the_peak_beside_a_breakdown():
    memo = Memo(lambda x: -math.inf if x > 1 else -((x - 0.5) ** 2))
    golden_section(memo, 0, 1000, 40)
    assert best(memo)[0] == pytest.approx(0.5, abs=1e-4)


def test_a_function_that_always_breaks_down_ends_at_the_lower_end():
    assert golden_section(lambda x: -math.inf, 1, 2, 30)[0] == 1


@given(peak=st.floats(-8, 6), start=st.floats(-1, 1))
def test_grow_bracket_brackets_a_peak_of_any_scale(peak, start):
    peak, start = 10**peak, 10**start
    assert peak <= grow_bracket(parabola(peak), start) <= max(start, peak * (1 + 1 / GOLDEN) * 2)


def test_the_search_after_the_walk_starts_from_a_known_point():
    asked = []
    memo = Memo(lambda x: asked.append(x) or parabola(7.0)(x))
    upper = grow_bracket(memo, 1.0)
    walked = len(asked)
    golden_section(memo, 0, upper, 6)
    assert len(asked) == walked + 6


def curve(*values):
    """A function with the given values at 0 and at the steps of a walk that starts at 1."""
    steps = [0.0, *((1 / GOLDEN**2) ** k for k in range(len(values) - 1))]
    return Memo(lambda x: values[min(range(len(steps)), key=lambda k: abs(steps[k] - x))])


@pytest.mark.parametrize(
    ("values", "count", "upper"),
    [
        ((0, 1, 2, 1, 9), 4, 3),  # risen, then fallen: the walk ends
        ((0, -1, 2, 1, 9), 4, 3),  # a dip before the rise is forgiven
        ((0, -1, -2, 2, 1, 9), 5, 4),  # two falls as well
        ((0, -1, -2, -3, 9), 4, 1),  # three are not: the peak is at 0, and the search looks below the first step
        ((0, -1, -0.5, -2, -3, 9), 5, 1),  # falls need not follow one another
        ((0, 1, -math.inf, 9), 3, 2),  # breakdown counts as a fall
        ((0, -math.inf, -math.inf, 1, 0, 9), 5, 4),
        ((0, -math.inf, -math.inf, -math.inf, 9), 4, 1),
        ((0, 0, 0, 0, 1, 0, 9), 6, 5),  # noise too small for half precision changes nothing, and is no fall
    ],
)
def test_the_walk_ends_when_the_function_falls_after_it_has_risen(values, count, upper):
    memo = curve(*values)
    assert grow_bracket(memo, 1.0) == (1 / GOLDEN**2) ** (upper - 1)
    assert len(memo.points) == count


def test_the_walk_goes_as_far_as_it_must_reach():
    """A low peak, then a higher one beyond the fall: found only by a walk that must pass it."""
    memo = curve(0, 1, 0, 0, 5, 4, 9)
    assert grow_bracket(memo, 1.0) == 1 / GOLDEN**2
    assert grow_bracket(memo, 1.0, reach=(1 / GOLDEN**2) ** 3) == (1 / GOLDEN**2) ** 4
    assert len(memo.points) == 6


def test_a_flat_function_is_searched_near_zero():
    assert grow_bracket(lambda x: 5.0, 0.1) == 0.1


def test_a_function_that_only_rises_is_walked_to_the_end():
    memo = Memo(lambda x: x)
    assert grow_bracket(memo, 1.0) == best(memo)[0] == (1 / GOLDEN**2) ** 15


@pytest.mark.parametrize("upper", [1.0, 1.5, 40.0])
def test_the_walk_does_not_leave_its_limits(upper):
    up, down = Memo(lambda x: x), Memo(lambda x: -x)
    assert grow_bracket(up, 1.0, limits=(0.0, upper)) == best(up)[0] == upper
    grow_bracket(down, 1.0, limits=(0.5, upper), patience=1, steps_down=5)
    assert {x for x, _ in down.points} == {0.0, 0.5, 1.0}


@given(place=st.floats(0.01, 0.99))
def test_smaller_steps_bracket_a_peak_below_the_first_step(place):
    """Five steps down reach 1 / 2.618^5 = 0.008 of the first one."""
    memo = parabola(place)
    grow_bracket(memo, 1.0, patience=1, steps_down=5)
    tried = sorted(x for x, _ in memo.points)
    top = tried.index(best(memo)[0])
    assert best(memo)[1] > memo(0.0)
    assert tried[top - 1] <= place <= tried[top + 1]


def test_the_first_step_is_bracketed_from_below_if_it_is_the_best():
    memo = parabola(1.0)
    grow_bracket(memo, 1.0, patience=1, steps_down=5)
    assert [x for x, _ in memo.points] == pytest.approx([0.0, 1.0, 1 / GOLDEN**2, GOLDEN**2])


@pytest.mark.parametrize(
    ("values", "depth", "peaks"),
    [
        ([0, 1, 2, 1, 0], 0.1, 1),
        ([2, 1, 0], 0.1, 1),  # the peak on the left edge
        ([0, 1, 2], 0.1, 1),  # and on the right
        ([0, 2, 1, 2, 0], 0.5, 2),
        ([0, 2, 1.6, 2, 0], 0.5, 1),  # the valley is too shallow
        ([0, 2, 1.5, 2, 0], 0.5, 1),  # just as deep as allowed
        ([3, 0, 2, 1, 4], 0.5, 3),
        ([3, 0, 2, 1, 4], 1.5, 2),
        ([0, 5, -math.inf, -math.inf], 0.5, 1),
        ([1], 0.5, 1),
        ([1, 1, 1], 0.5, 1),
    ],
)
def test_count_peaks_counts_maxima_with_valleys_between_them(values, depth, peaks):
    points = [(float(x), float(value)) for x, value in enumerate(values)]
    assert count_peaks(tuple(points), depth) == peaks
    assert count_peaks(tuple(reversed(points)), depth) == peaks
