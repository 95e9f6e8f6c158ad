from __future__ import annotations

import math
import warnings
from itertools import pairwise

import networks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

import peppermill as pm
from peppermill.calibrators.temperature import best_temperature
from peppermill.data import Batches
from peppermill.engines.loop import MemberPass, run_members
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation
from peppermill.tuning.golden import tune_sigma
from peppermill.tuning.search import GOLDEN


def quietly(action, *args, **options):
    """For results whose warnings another test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return action(*args, **options)


def curve(function, items=100):
    """A pass whose ensemble has the log-likelihood `items * function(sigma)`, one member, two classes."""
    asked = []

    def run(sigma):
        asked.append(sigma)
        log_likelihoods = torch.full((1, items), float(function(sigma)), dtype=torch.float64)
        averaged = torch.stack([log_likelihoods[0], torch.log1p(-log_likelihoods[0].exp())], dim=1)
        return MemberPass(sigma, log_likelihoods, averaged, torch.zeros(items, dtype=torch.long))

    run.asked = asked
    return run


#: Items that are all right, or all wrong, have no best temperature: said in a test of its own.
no_best_temperature = pytest.mark.filterwarnings("ignore:the best temperature is:peppermill.types.PepWarning")


def hill(peak):
    """Rises from -1 at 0 to -0.5 at the peak, then falls without end, as L(sigma) of the paper's Figure 1 does."""
    return lambda sigma: -1 + (sigma / peak) ** 2 - 0.5 * (sigma / peak) ** 4


def members_of(model, data, size=6, **noise):
    perturbation = Perturbation(select(model, "kernels"), Noise(**noise), size)
    batches = Batches(data, model)
    return perturbation, lambda sigma: run_members(
        model, perturbation, sigma, batches, Categorical(), lambda items: None
    )


@pytest.mark.parametrize("peak", [0.003, 0.05, 0.7, 40.0, 4000.0])
def test_finds_a_peak_of_any_size_without_being_told_where(peak):
    """The last interval is at most 0.618^7 of a bracket that ends at most 2.618^2 times beyond the peak."""
    search = tune_sigma(curve(hill(peak)), scale=1.0)
    assert search.best.sigma == pytest.approx(peak, abs=0.24 * peak)
    assert search.best.log_likelihood == pytest.approx(-50, abs=5)
    assert search.baseline.log_likelihood == pytest.approx(-100)
    assert search.gain == pytest.approx(0.5, abs=0.05)
    assert search.items == 100


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (0.2, 0.4), (None, 0.9), (0.29, 3.0)])
def test_finds_the_peak_in_the_interval_that_was_given(lower, upper):
    run = curve(hill(0.3))
    search = tune_sigma(run, scale=1.0, lower=lower, upper=upper, iterations=12)
    assert search.best.sigma == pytest.approx(0.3, abs=(upper - (lower or 0)) * GOLDEN**12)
    assert run.asked[0] == 0.0
    assert all((lower or 0) <= sigma <= upper for sigma in run.asked[1:])


@pytest.mark.parametrize("iterations", [1, 7])
def test_an_interval_costs_sigma_zero_and_one_value_more_than_iterations(iterations):
    run = curve(hill(0.3))
    quietly(tune_sigma, run, scale=1.0, lower=0.0, upper=1.0, iterations=iterations)
    assert len(run.asked) == len(set(run.asked)) == iterations + 2


@no_best_temperature
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("peak", [0.001, 0.3, 5.0])
def test_no_sigma_is_paid_for_twice(joint, peak):
    run = curve(hill(peak))
    search = tune_sigma(run, scale=1.0, joint=joint)
    ordered = sorted(run.asked)
    assert all(b > a * (1 + 1e-9) for a, b in pairwise(ordered))
    assert [e.sigma for e in search.evaluations] == run.asked


def test_the_found_sigma_is_the_peak_of_a_fine_grid(overfitted):
    """L(sigma) of a real network, on 80 values of sigma; the search must come within its own resolution."""
    model, validation, _ = overfitted
    perturbation, run = members_of(model, validation)
    search = tune_sigma(run, scale=perturbation.scale())
    grid = np.linspace(0, 3 * search.best.sigma, 81)
    values = []
    for sigma in grid:
        matrix = run(float(sigma)).member_log_likelihoods.numpy()
        values.append(np.log(np.exp(matrix).mean(axis=0)).sum())
    peak = grid[int(np.argmax(values))]
    resolution = search.upper - search.lower + grid[1]
    assert search.best.sigma == pytest.approx(peak, abs=resolution)
    # the grid may hit the top better than the search does, but by no more than the curve bends within its resolution
    assert search.best.log_likelihood >= max(values) - 0.02 * (max(values) - values[0])
    assert search.baseline.log_likelihood == pytest.approx(values[0], rel=1e-12)


def test_joint_tuning_finds_the_peak_of_the_profile_on_a_fine_grid(overfitted):
    model, validation, _ = overfitted
    perturbation, run = members_of(model, validation)
    search = tune_sigma(run, scale=perturbation.scale(), joint=True)
    values = [best_temperature(p.averaged, p.labels)[1] for p in map(run, np.linspace(0, 0.6, 61).tolist())]
    assert search.best.tempered_log_likelihood >= max(values) - 0.02 * (max(values) - values[0]) - 1e-6
    assert search.best.tempered_log_likelihood > values[0]


def test_sigma_is_zero_where_noise_does_not_help_and_a_plain_statement_says_so():
    with pytest.warns(
        pm.PepWarning, match="noise does not help here: no sigma that was tried beats sigma = 0 .* itself.$"
    ):
        search = tune_sigma(curve(lambda sigma: -1 - sigma), scale=1.0)
    assert search.best.sigma == 0
    assert search.gain == 0


@no_best_temperature
def test_with_a_temperature_the_statement_says_so():
    with pytest.warns(pm.PepWarning, match="the ensemble is the network itself with a temperature"):
        search = tune_sigma(curve(lambda sigma: -0.1 - sigma), scale=1.0, joint=True)
    assert search.best.sigma == 0
    assert search.gain > 0


@no_best_temperature
@pytest.mark.parametrize("joint", [False, True])
def test_a_lower_end_alone_is_enough_also_where_noise_does_not_help(joint):
    with pytest.warns(pm.PepWarning, match="noise does not help"):
        search = tune_sigma(curve(lambda sigma: -1 - sigma), scale=1.0, lower=0.01, joint=joint)
    assert search.best.sigma == 0
    assert tune_sigma(curve(hill(0.3)), scale=1.0, lower=0.01, joint=joint).best.sigma == pytest.approx(0.3, abs=0.07)


def test_a_flat_curve_leaves_the_network_as_it_is():
    """Noise on a parameter that does nothing: of equals the smallest sigma."""
    with pytest.warns(pm.PepWarning, match="noise does not help"):
        assert tune_sigma(curve(lambda sigma: -1.0), scale=1.0).best.sigma == 0


@no_best_temperature
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    ("lower", "upper", "edge"),
    [(0.0, 0.1, "`upper=0.1`"), (0.5, 1.0, "`lower=0.5`"), (0.01, 0.1, "`upper=0.1`"), (0.5, None, "`lower=0.5`")],
)
def test_a_best_point_on_the_edge_is_mentioned(lower, upper, edge, joint):
    function = hill(0.3) if upper == 0.1 else hill(0.4)
    with pytest.warns(pm.PepWarning, match=f"the best sigma, .*, sits at {edge}: widen the interval, or leave it out"):
        tune_sigma(curve(function), scale=1.0, lower=lower, upper=upper, joint=joint)


@no_best_temperature
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(None, None), (0.1, 1.0), (0.29, 0.31)])
def test_nothing_is_said_of_a_peak_inside(lower, upper, joint):
    """Warnings are errors."""
    tune_sigma(curve(hill(0.3)), scale=1.0, lower=lower, upper=upper, joint=joint)


@no_best_temperature
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("peak", [0.4, 0.6, 0.75])
def test_nor_after_few_iterations_whose_interval_still_reaches_an_edge(peak, iterations, joint):
    """The edge is tried before anything is said of it: the hill is lower there than at the best sigma inside."""
    lower, upper = 0.1, 1.0
    search = tune_sigma(curve(hill(peak)), scale=1.0, lower=lower, upper=upper, iterations=iterations, joint=joint)
    assert lower < search.best.sigma < upper
    touched = [edge for edge in (lower, upper) if edge in (search.lower, search.upper)]
    assert touched or iterations > 1
    assert set(touched) <= {e.sigma for e in search.evaluations}
    assert search.best.log_likelihood > 100 * max(hill(peak)(lower), hill(peak)(upper))


def test_a_best_sigma_on_the_edge_is_the_edge_itself():
    """Its own value, and not that of the last point which the golden section tried before it."""
    with pytest.warns(pm.PepWarning, match="the best sigma, 0.1, sits at `upper=0.1`"):
        search = tune_sigma(curve(hill(0.3)), scale=1.0, upper=0.1, iterations=1)
    assert search.best.sigma == 0.1
    assert search.best.log_likelihood == pytest.approx(100 * hill(0.3)(0.1))


def test_more_than_one_peak_is_mentioned():
    """The first step falls below sigma = 0, and then comes the hill: a valley between two maxima."""
    dip = lambda sigma: hill(0.3)(sigma) - (0.3 if 0.01 < sigma < 0.03 else 0.0)  # noqa: E731
    with pytest.warns(
        pm.PepWarning, match=r"L\(sigma\) has more than one peak .* look at `pm.sweep_sigma`, and use more"
    ):
        search = tune_sigma(curve(dip), scale=1.0)
    assert search.best.sigma == pytest.approx(0.3, abs=0.07)


def test_a_curve_that_breaks_down_far_out_is_searched_all_the_same():
    broken = lambda sigma: math.nan if sigma > 0.5 else hill(0.3)(sigma)  # noqa: E731
    assert tune_sigma(curve(broken), scale=1.0).best.sigma == pytest.approx(0.3, abs=0.07)
    search = tune_sigma(curve(broken), scale=1.0, lower=0.0, upper=100.0, iterations=20)
    assert search.best.sigma == pytest.approx(0.3, abs=100 * GOLDEN**20)
    assert any(e.log_likelihood == -math.inf for e in search.evaluations)


def test_members_of_a_real_network_that_overflow_are_survived(overfitted):
    model, validation, _ = overfitted
    _, run = members_of(model, validation)
    search = quietly(tune_sigma, run, scale=1.0, lower=0.0, upper=1e14, iterations=40)
    assert any(e.log_likelihood == -math.inf for e in search.evaluations)
    assert search.best.log_likelihood == max(e.log_likelihood for e in search.evaluations)


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
def test_an_interval_that_is_none_is_refused_before_anything_is_paid_for(lower, upper, text):
    run = curve(hill(0.3))
    with pytest.raises(ValueError, match=text):
        tune_sigma(run, scale=1.0, lower=lower, upper=upper)
    assert run.asked == []


# Temperature


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 3.0, 15.0])
def test_the_best_temperature_is_that_of_scipy(sharpness):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    log_probs = (sharpness * logits).log_softmax(dim=1)

    def loss(log_temperature):
        return float(torch.nn.functional.cross_entropy(log_probs / math.exp(log_temperature), labels, reduction="sum"))

    theirs = minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded", options={"xatol": 1e-9})
    temperature, log_likelihood = best_temperature(log_probs, labels)
    assert math.log(temperature) == pytest.approx(theirs.x, abs=2e-5)
    assert log_likelihood == pytest.approx(-theirs.fun, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 10, 300])
@pytest.mark.parametrize("sharpness", [0.2, 1.0, 1.1, 2.5, 12.0])
def test_at_the_best_temperature_labels_are_as_likely_as_they_should_be(sharpness, classes):
    """Where the likelihood is largest, sum_i z_y = sum_i E[z]; Brent's method finds that T to the last digits."""
    generator = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(700, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)
    log_probs = (sharpness * logits).log_softmax(dim=1)

    def excess(log_temperature):
        tempered = (log_probs / math.exp(log_temperature)).softmax(dim=1)
        return float((tempered * log_probs).sum() - log_probs.gather(1, labels).sum())

    theirs = brentq(excess, math.log(0.05), math.log(20), xtol=1e-12)
    assert math.log(best_temperature(log_probs, labels.squeeze(1))[0]) == pytest.approx(theirs, abs=1.1e-6)


@pytest.mark.parametrize("classes", [2, 10, 33])
def test_parting_the_items_changes_no_bit_of_the_temperature(classes):
    """Sums of items are exact, and so an item must be the same number wherever it stands: processes part them."""
    generator = torch.Generator().manual_seed(classes)
    log_probs = (2 * torch.randn(1001, classes, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    labels = torch.multinomial((log_probs / 1.3).softmax(dim=1), 1, generator=generator).squeeze(1)
    order = torch.randperm(1001, generator=generator)
    assert best_temperature(log_probs[order], labels[order]) == best_temperature(log_probs, labels)


def test_the_log_probabilities_are_not_written_to():
    for shape in ((1, 4), (3, 1), (3, 4)):
        log_probs = torch.randn(shape, dtype=torch.float64).log_softmax(dim=1)
        before = log_probs.clone()
        best_temperature(log_probs, torch.zeros(shape[0], dtype=torch.long))
        assert torch.equal(log_probs, before)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 3.0, 15.0])
def test_the_best_temperature_takes_few_rounds_of_sums(sharpness):
    """Each is a message between processes; golden section would take one for every T, 29 in all."""
    rounds = []
    inputs, labels = networks.items(400, (4,), dtype=torch.float64)
    labels = torch.where(torch.arange(400) % 3 == 0, labels, inputs.argmax(dim=1))

    def totals(rows):
        rounds.append(len(rows))
        return rows.sum(dim=1).tolist()

    assert 0.05 < best_temperature((sharpness * inputs).log_softmax(dim=1), labels, totals)[0] < 20
    assert len(rounds) <= 3


def test_a_class_without_any_probability_does_not_disturb_the_temperature():
    """Two classes of three: the third, at minus infinity, is as if it were not there."""
    inputs, labels = networks.items(50, (2,), dtype=torch.float64)
    labels = labels % 2
    without = torch.cat([inputs, torch.full((50, 1), -math.inf, dtype=torch.float64)], dim=1)
    found = best_temperature(without.log_softmax(dim=1), labels)
    assert found == pytest.approx(best_temperature(inputs.log_softmax(dim=1), labels), rel=1e-9)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_recovered(true):
    """Within five standard errors, from the Fisher information about ln T: the summed variance of scaled logits."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(5000, 3, generator=generator, dtype=torch.float64)
    tempered = (logits / true).softmax(dim=1)
    labels = torch.multinomial(tempered, 1, generator=generator).squeeze(1)
    mean = (tempered * logits / true).sum(dim=1, keepdim=True)
    information = float((tempered * (logits / true - mean).square()).sum())
    temperature, _ = best_temperature(logits.log_softmax(dim=1), labels)
    assert abs(math.log(temperature / true)) < 5 / math.sqrt(information)


@pytest.mark.parametrize(("logit", "edge"), [(3.0, 1 / 20), (-3.0, 20)])
def test_labels_that_are_always_right_or_wrong_end_at_an_edge(logit, edge):
    """All right: the colder the better. All wrong, with two classes: the hotter the better."""
    log_probs = torch.tensor([[logit, 0.0]] * 5, dtype=torch.float64).log_softmax(dim=1)
    assert best_temperature(log_probs, torch.zeros(5, dtype=torch.long))[0] == pytest.approx(edge, rel=1e-4)


@pytest.mark.parametrize(
    ("right", "text"), [(True, "is 1/20, the lowest that is tried"), (False, "is 20, the highest")]
)
@pytest.mark.parametrize("how", ["joint", "alone"])
def test_a_temperature_at_its_limit_is_mentioned_on_the_line_of_the_user(mlp, right, text, how):
    inputs, _ = networks.items(30)
    order = mlp(inputs).argsort(dim=1)
    data = inputs, order[:, 2 if right else 0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pm.fit(mlp, data, size=2, temperature=True) if how == "joint" else pm.fit_temperature(mlp, data)
    [about] = [warning for warning in said if "temperature is" in str(warning.message)]
    assert text in str(about.message)
    assert about.filename == __file__


def test_nothing_is_said_of_a_temperature_inside_its_limits(overfitted):
    """Warnings are errors."""
    model, validation, _ = overfitted
    assert 1 / 20 < pm.fit_temperature(model, validation).temperature < 20
    assert 1 / 20 < pm.fit(model, validation, temperature=True).temperature < 20


@given(seed=st.integers(0, 500), items=st.integers(1, 30))
def test_a_temperature_is_never_worse_than_none(seed, items):
    """T = 1 is in the race, exactly, also where it is the best."""
    inputs, labels = networks.items(items, (3,), seed=seed, dtype=torch.float64)
    log_probs = inputs.log_softmax(dim=1)
    assert best_temperature(log_probs, labels)[1] >= float(log_probs[torch.arange(items), labels].sum())


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    stretch=st.floats(-0.7, 1.3),
    items=st.integers(2, 60),
    size=st.integers(1, 6),
    antithetic=st.booleans(),
    interval=st.booleans(),
    search=st.sampled_from(["golden", "quick"]),
)
def test_joint_tuning_loses_to_neither_of_its_parts_on_validation_data(
    seed, stretch, items, size, antithetic, interval, search
):
    """Random networks from timid to certain, random labels: the curves have every shape, two peaks among them."""
    model, data = networks.mlp(seed, torch.float64), networks.items(items, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(10**stretch)
    options = {"size": size, "antithetic": antithetic, "seed": seed, "search": search}
    options |= {"upper": 10**stretch} if interval else {}
    both = quietly(pm.fit, model, data, temperature=True, **options)
    alone = quietly(pm.fit, model, data, **options)
    warm = quietly(pm.fit_temperature, model, data)
    found = [float(pm.predict(p, data).log_likelihoods.sum()) for p in (both, alone, warm)]
    assert found[0] >= max(found[1:]) - 1e-9 * items
    assert found[0] == pytest.approx(both.search.best.tempered_log_likelihood, abs=1e-9 * items)


@pytest.mark.parametrize("search", ["golden", "quick"])
def test_joint_tuning_does_not_stop_at_the_first_peak_of_the_profile(search):
    """This network's profile peaks near sigma = 0 and again, higher, near the sigma that PEP alone finds."""
    model, validation, _ = networks.overfitted(seed=5)
    both, alone = (pm.fit(model, validation, temperature=joint, search=search) for joint in (True, False))
    grid = [step * alone.sigma / 12 for step in range(19)]
    points = pm.sweep_sigma(model, validation, grid).points
    profile = [point.tempered_log_likelihood for point in points]
    peaks = [k for k in range(1, 18) if profile[k - 1] < profile[k] > profile[k + 1]]
    assert len(peaks) > 1
    assert profile[peaks[0]] < max(profile)
    assert both.search.best.tempered_log_likelihood / len(validation[1]) >= max(profile) - 0.02 * (
        max(profile) - profile[0]
    )


@pytest.mark.parametrize("search", ["golden", "quick"])
def test_joint_tuning_pays_for_all_that_pep_alone_would_try_and_little_more(overfitted, search):
    model, validation, _ = overfitted
    alone = pm.fit(model, validation, search=search)
    both = pm.fit(model, validation, temperature=True, search=search)
    tried = {sigma for sigma, _ in alone.search.points}
    assert tried <= {sigma for sigma, _ in both.search.points}
    assert len(both.search.points) <= len(tried) + 8


def test_the_log_likelihoods_of_a_joint_search_are_those_of_pep_alone(overfitted):
    model, validation, _ = overfitted
    alone = {e.sigma: e.log_likelihood for e in pm.fit(model, validation).search.evaluations}
    both = {e.sigma: e for e in pm.fit(model, validation, temperature=True).search.evaluations}
    for sigma, value in alone.items():
        assert both[sigma].log_likelihood == value
        assert both[sigma].tempered_log_likelihood >= value


@no_best_temperature
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("search", ["golden", "quick"])
def test_a_warning_points_at_the_line_of_the_user(joint, search):
    model = networks.mlp()
    inputs, _ = networks.items(40)
    perfect = model(inputs).argmax(dim=1)
    rule = lambda name, value: name == "0.weight"  # noqa: E731
    with pytest.warns(pm.PepWarning, match="noise does not help") as record:
        pm.fit(model, (inputs, perfect), parameters=rule, upper=5.0, temperature=joint, search=search)
    assert {warning.filename for warning in record} == {__file__}
