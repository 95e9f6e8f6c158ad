from __future__ import annotations

import math

import numpy as np
import pytest

from peppermill.tuning.two_stage import GainCurve

SIGMAS = tuple(0.1 * 1.27**step for step in range(-6, 9))


def hill(sigma, peak=0.14):
    """Gains 1/2 at the peak, and falls without end beyond it."""
    return (sigma / peak) ** 2 - 0.5 * (sigma / peak) ** 4


def drawn(curve, sigmas=SIGMAS):
    return {sigma: curve(sigma) for sigma in sigmas}


@pytest.mark.parametrize("peak", [0.05, 0.0811, 0.14, 0.3])
@pytest.mark.parametrize("stretch", [1e-3, 1.0, 500.0])
def test_the_summit_of_a_hill_lies_between_the_points(peak, stretch):
    """A hill loses 4 x^2 of its height at e^x times its peak, so 3 % beside the peak is 0.4 % below the top."""
    sigma, gain = GainCurve(drawn(lambda s: stretch * hill(s, peak)), {}).summit()
    assert abs(math.log(sigma / peak)) < 0.03
    assert gain == pytest.approx(stretch / 2, rel=0.004)


@pytest.mark.parametrize("added", [lambda s: -9.0, lambda s: 4 + 300 * s**2, lambda s: 1 - 2 * s**2 - 9000 * s**4])
def test_a_subsample_that_differs_by_a_polynomial_is_corrected_exactly(added):
    """With as many known values as the polynomial has coefficients, the corrected curve is exact."""
    whole = lambda s: hill(s) + s**2 * added(s)  # noqa: E731
    points = SIGMAS[3:13]
    bent = GainCurve(drawn(hill), drawn(whole, (points[0], points[4], points[-1])))
    assert bent.gains(np.log(points)) == pytest.approx([whole(sigma) for sigma in points], rel=1e-9, abs=1e-12)


def test_one_value_of_the_whole_is_a_constant_difference_of_rates():
    whole = lambda s: hill(s) - 9 * s**2  # noqa: E731
    assert GainCurve(drawn(hill), {0.1: whole(0.1)}).summit() == pytest.approx(GainCurve(drawn(whole), {}).summit())


def test_the_correction_is_believed_a_little_beyond_the_known_values_and_no_further():
    """The difference of rates is sigma^2 - 1; half of ln sigma beyond 2 this is 4 e - 1, and stays so."""
    points = drawn(hill, (1.0, 2.0, 3.0, 4.0, 8.0))
    bent = GainCurve(points, {1.0: hill(1.0), 2.0: hill(2.0) + 4 * 3.0})
    rates = [(gain - points[s]) / s**2 for s, gain in zip(points, bent.gains(np.log(list(points))), strict=True)]
    assert rates == pytest.approx([0, 3, 8, 4 * math.e - 1, 4 * math.e - 1])


def test_points_at_which_the_curve_broke_down_are_passed_over():
    points = drawn(hill)
    assert GainCurve({**points, 0.9: -math.inf}, {0.8: -math.inf}).summit() == GainCurve(points, {}).summit()


def test_one_point_is_its_own_summit():
    assert GainCurve({0.2: 3.0}, {}).summit() == pytest.approx((0.2, 3.0))


def test_where_nothing_is_gained_the_smallest_sigma_loses_least():
    sigma, gain = GainCurve(drawn(lambda s: -(s**2)), {}).summit()
    assert sigma == pytest.approx(min(SIGMAS))
    assert gain < 0


def test_values_that_lie_close_together_are_corrected_without_a_warning():
    """Warnings are errors: numpy's polynomial fit in sigma^2 used to say that it was poorly conditioned."""
    narrow = (0.0050, 0.005006, 0.005012)
    curve = GainCurve(drawn(hill, (0.0049, *narrow, 0.0051)), drawn(lambda s: hill(s) - 3 * s**2, narrow))
    assert curve.gains(np.log(narrow)) == pytest.approx([hill(s) - 3 * s**2 for s in narrow], rel=1e-9)
