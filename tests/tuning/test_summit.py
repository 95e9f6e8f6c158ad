from __future__ import annotations

import math

import pytest

from peppermill.tuning.two_stage import summit

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
    sigma, gain = summit(drawn(lambda s: stretch * hill(s, peak)))
    assert abs(math.log(sigma / peak)) < 0.03
    assert gain == pytest.approx(stretch / 2, rel=0.004)


def test_one_point_is_its_own_summit():
    assert summit({0.2: 3.0}) == pytest.approx((0.2, 3.0))


def test_where_nothing_is_gained_the_smallest_sigma_loses_least():
    sigma, gain = summit(drawn(lambda s: -(s**2)))
    assert sigma == pytest.approx(min(SIGMAS))
    assert gain < 0


def test_values_that_lie_close_together_give_no_warning():
    """Warnings are errors: numpy's polynomial fit in sigma^2 used to say that it was poorly conditioned."""
    narrow = (0.0049, 0.0050, 0.005006, 0.005012, 0.0051)
    assert summit(drawn(lambda s: hill(s, 0.005), narrow))[0] == pytest.approx(0.005, rel=1e-3)
