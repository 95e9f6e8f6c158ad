from __future__ import annotations

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest

import peppermill as pm
from peppermill.calibrators.temperature import best_temperature
from peppermill.data import Batches
from peppermill.engines import engine_named
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.passes import Request, run_members
from peppermill.perturbation import Perturbation
from peppermill.tuning.golden import Golden
from peppermill.tuning.search import GOLDEN
from peppermill.tuning.two_stage import TwoStage
from tuning.curves import SMALL_ITEMS, Curve, hill

#: Items that are all wrong have no best temperature: said in a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:the best temperature is:peppermill.PepWarning")


def quietly(action, *args, **options):
    """For results whose warnings another test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return action(*args, **options)


def request_of(model, data, size=6):
    perturbation = Perturbation(select(model, "kernels"), Noise(), size)
    return Request(model, perturbation, pm.Categorical(), engine_named("loop"), Batches(data, model))


@pytest.mark.parametrize("peak", [0.003, 0.05, 0.7, 40.0, 4000.0])
def test_finds_a_peak_of_any_size(peak):
    """The last interval is at most 0.618^7 of a bracket that ends at most 2.618^2 times beyond the peak."""
    search = Curve(hill(peak)).tune(Golden())
    assert search.best.sigma == pytest.approx(peak, abs=0.24 * peak)
    assert search.best.log_likelihood == pytest.approx(-750, abs=5)
    assert search.baseline.log_likelihood == pytest.approx(-800)
    assert search.gain == pytest.approx(0.5, abs=0.05)
    assert search.items == SMALL_ITEMS


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (0.2, 0.4), (None, 0.9), (0.29, 3.0)])
def test_finds_the_peak_in_the_interval_that_was_given(lower, upper):
    curve = Curve(hill(0.3))
    search = curve.tune(Golden(12, lower, upper))
    assert search.best.sigma == pytest.approx(0.3, abs=(upper - (lower or 0)) * GOLDEN**12)
    zero, *others = curve.asked["whole"]
    assert zero == 0.0
    assert all((lower or 0) <= sigma <= upper for sigma in others)


@pytest.mark.parametrize("iterations", [1, 7])
def test_an_interval_costs_sigma_zero_and_one_value_more_than_iterations(iterations):
    curve = Curve(hill(0.3))
    search = quietly(curve.tune, Golden(iterations, 0.0, 1.0))
    asked = curve.asked["whole"]
    assert len(asked) == len(set(asked)) == iterations + 2
    assert search.passes == 1 + curve.size * (iterations + 1)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("peak", [0.001, 0.3, 5.0])
def test_no_sigma_is_tried_twice(joint, peak):
    curve = Curve(hill(peak))
    search = curve.tune(Golden(), joint)
    asked = curve.asked["whole"]
    assert all(b > a * (1 + 1e-9) for a, b in pairwise(sorted(asked)))
    assert [e.sigma for e in search.evaluations] == asked


def test_the_found_sigma_is_the_peak_of_a_fine_grid(overfitted):
    """L(sigma) of a real network, on 80 values of sigma; the search must come within its own resolution."""
    model, validation, _ = overfitted
    request = request_of(model, validation)
    search = Golden().tune(request)
    grid = np.linspace(0, 3 * search.best.sigma, 81)
    values = []
    for sigma in grid:
        matrix = run_members(request, float(sigma)).member_log_likelihoods.numpy()
        values.append(np.log(np.exp(matrix).mean(axis=0)).sum())
    peak = grid[int(np.argmax(values))]
    assert search.best.sigma == pytest.approx(peak, abs=search.upper - search.lower + grid[1])
    # the grid may hit the top better than the search does, but by no more than the curve bends within its resolution
    assert search.best.log_likelihood >= max(values) - 0.02 * (max(values) - values[0])
    assert search.baseline.log_likelihood == pytest.approx(values[0], rel=1e-9)


def test_joint_tuning_finds_the_peak_of_the_profile_on_a_fine_grid(overfitted):
    model, validation, _ = overfitted
    request = request_of(model, validation)
    search = Golden().tune(request, joint=True)
    grid = [run_members(request, sigma) for sigma in np.linspace(0, 0.6, 61).tolist()]
    values = [best_temperature(members.averaged, members.labels)[1] for members in grid]
    assert search.best.tempered_log_likelihood >= max(values) - 0.02 * (max(values) - values[0]) - 1e-6
    assert search.best.tempered_log_likelihood > values[0]


def test_sigma_is_zero_if_noise_does_not_help_and_a_plain_statement_says_so():
    with pytest.warns(
        pm.PepWarning, match="noise does not help here: no sigma that was tried beats sigma = 0 .* without noise.$"
    ):
        search = Curve(lambda sigma: -1 - sigma).tune(Golden())
    assert search.best.sigma == 0
    assert search.gain == 0


def test_with_a_temperature_the_statement_says_so():
    with pytest.warns(pm.PepWarning, match="the ensemble is the network without noise, with a temperature"):
        search = Curve(lambda sigma: -0.1 - sigma).tune(Golden(), joint=True)
    assert search.best.sigma == 0
    assert search.gain > 0


@pytest.mark.parametrize("joint", [False, True])
def test_a_lower_end_alone_is_enough_even_if_noise_does_not_help(joint):
    with pytest.warns(pm.PepWarning, match="noise does not help"):
        assert Curve(lambda sigma: -1 - sigma).tune(Golden(lower=0.01), joint).best.sigma == 0
    assert Curve(hill(0.3)).tune(Golden(lower=0.01), joint).best.sigma == pytest.approx(0.3, abs=0.07)


def test_a_flat_curve_leaves_the_network_as_it_is():
    """Noise on a parameter that does nothing: of equals the smallest sigma."""
    with pytest.warns(pm.PepWarning, match="noise does not help"):
        assert Curve(lambda sigma: -1.0).tune(Golden()).best.sigma == 0


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    ("lower", "upper", "edge"),
    [(0.0, 0.1, "`upper=0.1`"), (0.5, 1.0, "`lower=0.5`"), (0.01, 0.1, "`upper=0.1`"), (0.5, None, "`lower=0.5`")],
)
def test_a_best_point_on_the_edge_is_mentioned(lower, upper, edge, joint):
    curve = Curve(hill(0.3) if upper == 0.1 else hill(0.4))
    with pytest.warns(pm.PepWarning, match=f"the best sigma, .*, sits at {edge}: widen the interval, or leave it out"):
        curve.tune(Golden(lower=lower, upper=upper), joint)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(None, None), (0.1, 1.0), (0.29, 0.31)])
def test_nothing_is_said_of_a_peak_inside(lower, upper, joint):
    """Warnings are errors."""
    Curve(hill(0.3)).tune(Golden(lower=lower, upper=upper), joint)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("peak", [0.4, 0.6, 0.75])
def test_an_edge_is_tried_before_anything_is_said_of_it(peak, iterations, joint):
    """After few iterations the interval still reaches an edge, where the hill is lower than at the best sigma."""
    lower, upper = 0.1, 1.0
    search = Curve(hill(peak)).tune(Golden(iterations, lower, upper), joint)
    assert lower < search.best.sigma < upper
    touched = [edge for edge in (lower, upper) if edge in (search.lower, search.upper)]
    assert touched or iterations > 1
    assert set(touched) <= {e.sigma for e in search.evaluations}
    assert search.best.log_likelihood > SMALL_ITEMS * max(hill(peak)(lower), hill(peak)(upper))


def test_a_best_sigma_on_the_edge_is_the_edge_itself():
    """Its own value, and not that of the last point which the golden section tried before it."""
    with pytest.warns(pm.PepWarning, match="the best sigma, 0.1, sits at `upper=0.1`"):
        search = Curve(hill(0.3)).tune(Golden(1, upper=0.1))
    assert search.best.sigma == 0.1
    assert search.best.log_likelihood == pytest.approx(SMALL_ITEMS * hill(0.3)(0.1))


def test_more_than_one_peak_is_mentioned():
    """The first step falls below sigma = 0, and then comes the hill: a valley between two maxima."""
    curve = Curve(lambda sigma: hill(0.3)(sigma) - (0.3 if 0.01 < sigma < 0.03 else 0.0))
    with pytest.warns(
        pm.PepWarning, match=r"L\(sigma\) has more than one peak .* look at `pm.sweep_sigma`, and use more"
    ):
        assert curve.tune(Golden()).best.sigma == pytest.approx(0.3, abs=0.07)


def test_a_curve_that_breaks_down_far_out_is_searched_all_the_same():
    broken = lambda sigma: math.nan if sigma > 0.5 else hill(0.3)(sigma)  # noqa: E731
    assert Curve(broken).tune(Golden()).best.sigma == pytest.approx(0.3, abs=0.07)
    search = Curve(broken).tune(Golden(20, 0.0, 100.0))
    assert search.best.sigma == pytest.approx(0.3, abs=100 * GOLDEN**20)
    assert any(e.log_likelihood == -math.inf for e in search.evaluations)


def test_members_of_a_real_network_that_overflow_are_survived(overfitted):
    model, validation, _ = overfitted
    search = quietly(pm.fit, model, validation, size=2, search=Golden(40, 0.0, 1e14)).search
    assert any(e.log_likelihood == -math.inf for e in search.evaluations)
    assert search.best.log_likelihood == max(e.log_likelihood for e in search.evaluations)


def test_a_search_without_iterations_is_refused():
    with pytest.raises(ValueError, match="`iterations=0` must be at least 1"):
        Golden(iterations=0)


@pytest.mark.parametrize("search", [Golden, TwoStage])
@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (-0.1, None, "`lower=-0.1` must be a size of noise, zero or positive"),
        (math.inf, None, "`lower=inf` must be a size of noise"),
        (math.nan, None, "`lower=nan` must be a size of noise"),
        (0.2, 0.1, "`lower=0.2` must be below `upper=0.1`: exchange them or widen the interval"),
        (0.2, 0.2, "`lower=0.2` must be below `upper=0.2`"),
        (None, 0.0, "`lower=0.0` must be below `upper=0.0`"),
        (None, math.inf, "must be below `upper=inf`"),
        (None, math.nan, "must be below `upper=nan`"),
    ],
)
def test_an_interval_that_is_none_is_refused(search, lower, upper, text):
    with pytest.raises(ValueError, match=text):
        search(lower=lower, upper=upper)
