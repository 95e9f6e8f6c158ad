from __future__ import annotations

import math
import warnings
from dataclasses import replace

import networks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.interpolate import PchipInterpolator
from torch import nn

import peppermill as pm
from peppermill.calibrators.temperature import best_temperature
from peppermill.data import Batches
from peppermill.engines import engine_named
from peppermill.likelihood import temper
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.passes import Request, run_members
from peppermill.perturbation import Perturbation
from peppermill.tuning.golden import Golden
from peppermill.tuning.two_stage import LikelihoodCurve, TwoStage
from tuning.curves import BASE, ITEMS, Curve, hill

# The toy curves give all items one likelihood: no temperature is the best one then.
pytestmark = pytest.mark.filterwarnings("ignore:the best temperature is")


def quietly(action, *args, **options):
    """For results whose warnings another test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return action(*args, **options)


def loss(found, peak):
    """What is missing of the hill's height, 1/2."""
    return (BASE + 0.5 - hill(peak)(found.best.sigma)) / 0.5


@pytest.mark.parametrize("peak", [0.003, 0.05, 0.137, 0.7, 40.0, 4000.0])
def test_finds_a_peak_of_any_size(peak):
    curve = Curve(hill(peak))
    found = curve.tune(TwoStage())
    assert 0 <= loss(found, peak) < 0.01
    assert found.lower < peak < found.upper
    assert found.best.log_likelihood == pytest.approx(-750, abs=0.5)
    assert found.baseline.log_likelihood == pytest.approx(-800)
    assert [e.sigma for e in found.evaluations] == curve.asked["whole"]
    assert found.items == 100


@pytest.mark.parametrize("shift", [0.8, 0.9, 1.0, 1.2, 1.5])
@pytest.mark.parametrize("peak", [0.02, 0.09, 0.3, 0.7])
def test_a_subsample_that_is_wrong_about_the_peak_is_corrected_by_all_items(peak, shift):
    """At most four values on all items, whatever the subsample says, and within 1 % of the gain."""
    curve = Curve(hill(peak), hill(shift * peak))
    found = curve.tune(TwoStage())
    assert loss(found, peak) < 0.01
    whole, sampled = (sum(sigma > 0 for sigma in curve.asked[name]) for name in ("whole", "sampled"))
    assert whole <= 4
    assert found.passes == pytest.approx(1 + 10 * whole + (1 + 10 * sampled) / 16)
    assert found.passes <= 5 * curve.size


@pytest.mark.parametrize("shift", [3.0, 10.0])
def test_a_subsample_whose_peak_loses_on_all_items_does_not_end_the_search(shift):
    """At its peak all items lose; a usual sigma is tried before noise is given up."""
    curve = Curve(hill(0.2), hill(shift * 0.2))
    found = curve.tune(TwoStage())
    assert loss(found, 0.2) < 0.2
    assert found.passes <= 5 * curve.size


@pytest.mark.parametrize("seed", [64, 97, 116, 626, 773])
def test_a_subsample_of_items_with_heavy_tails_does_not_end_the_search(seed):
    """Labels drawn at twice the temperature, so that noise helps; the subsample says that it does not, or too much."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(800, 6, generator=generator) * (1.2 * torch.randn(800, 1, generator=generator)).exp()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).eval()
    with torch.no_grad():
        model[2].weight.mul_(3)
        labels = torch.multinomial((model(inputs) / 2).softmax(1), 1, generator=generator)[:, 0]
    pep = pm.fit(model, (inputs, labels), size=4)
    assert pep.sigma > 0
    assert pep.search.gain > 0
    assert pep.search.passes <= 5 * pep.size


def test_a_subsample_that_is_far_off_leaves_a_fourth_value_to_find_the_peak():
    """Drawn after a CNN for CIFAR-100: at the subsample's peak all items gained more than twice what it did, and had
    their own peak at one and a half times it. All items of the subsample are alike here, so that a regression on them
    learns nothing; on the network itself it misses 0.01 % of the gain.
    """
    sampled, whole = ({0.0: 0.0, **dict(zip(SEEN, gains, strict=True))} for gains in (ON_THE_PART, ON_ALL_ITEMS))
    curve = Curve(*(lambda sigma, seen=seen: BASE + _between(seen, sigma) / 2500 for seen in (whole, sampled)))
    best = max(_between(whole, sigma) for sigma in np.geomspace(0.003, 0.02, 400))
    found = curve.tune(TwoStage(), scale=0.0338)
    assert 2500 * found.gain > 0.93 * best
    assert found.passes <= 5 * curve.size


SEEN = (0.00108, 0.00174, 0.00282, 0.00364, 0.00456, 0.0058, 0.00737, 0.00953, 0.01155, 0.014, 0.0193)
ON_THE_PART = (7.45, 21.38, 42.07, 54.25, 66.12, 57.32, 21.45, -60.0, -190.0, -430.0, -1156.15)
ON_ALL_ITEMS = (12.0, 31.0, 81.0, 118.19, 152.0, 181.5, 184.0, 122.14, -6.55, -245.97, -1000.0)


def _between(seen, sigma):
    """The gain at sigma, a smooth curve for gain / sigma^2 through what was seen; none at 0."""
    sigmas = np.array([s for s in seen if s])
    rates = np.array([seen[s] for s in sigmas]) / sigmas**2
    place = np.clip(np.log(max(sigma, 1e-9)), np.log(sigmas[0]), np.log(sigmas[-1]))
    return float(PchipInterpolator(np.log(sigmas), rates)(place)) * sigma**2


def test_the_search_stops_when_what_is_left_is_lost_in_the_noise_of_the_gain():
    """If items differ by 7, the gain of 1,024 has a standard error of 7 sqrt(2048) = 317: 1.6 is not worth a pass."""
    calm, rough = (Curve(hill(0.3), hill(0.306), spread=spread) for spread in (0.0, 7.0))
    assert loss(calm.tune(TwoStage()), 0.3) <= loss(rough.tune(TwoStage()), 0.3) < 0.01
    assert len(rough.asked["whole"]) < len(calm.asked["whole"])


@pytest.mark.parametrize("tempered", [False, True])
def test_the_noise_of_a_gain_is_the_standard_error_of_the_gain_that_is_searched(overfitted, tempered):
    """For the profile it is that of the paired differences from the network with its own T, not of PEP alone's."""
    model, validation, _ = overfitted
    request = request_of(model, validation, 4)
    curve = LikelihoodCurve(request, joint=True)
    rows = []
    for sigma in (0.0, 0.1):
        found, members = curve(sigma), run_members(request, sigma)
        if tempered:
            tempering = temper(members.averaged, found.temperature)
            rows.append(tempering.gather(1, members.labels[:, None])[:, 0].numpy())
        else:
            rows.append(np.log(np.exp(members.member_log_likelihoods.numpy()).mean(axis=0)))
    expected = 300 * stats.sem(rows[1] - rows[0], ddof=0)
    assert curve.standard_error(0.1, tempered) == pytest.approx(expected, rel=1e-6)


def test_values_of_the_subsample_are_never_points_of_the_search():
    curve = Curve(hill(0.3), lambda sigma: BASE + 4 * (hill(0.25)(sigma) - BASE))
    found = curve.tune(TwoStage(), joint=True)
    assert [sigma for sigma, _ in found.points] == curve.asked["whole"]
    for evaluation in found.evaluations:
        assert evaluation.log_likelihood == pytest.approx(ITEMS * hill(0.3)(evaluation.sigma))


def test_a_subsample_that_sees_no_gain_does_not_have_the_last_word():
    curve = Curve(hill(0.1), lambda sigma: BASE - sigma**2)
    assert loss(curve.tune(TwoStage()), 0.1) < 0.2
    assert min(curve.asked["sampled"][1:]) < 0.02


@pytest.mark.parametrize("rounding", [-1e-8, 0.0, 1e-8, 7e-8])
def test_a_gain_that_may_be_rounding_is_none(rounding):
    """All items gain 2e-4 at 0.02; the subsample falls, and the rounding of its values must not lead astray."""
    whole = lambda sigma: BASE + 4e-4 * (hill(0.02)(sigma) - BASE)  # noqa: E731
    exact = Curve(whole, lambda sigma: BASE - 1e-4 * sigma**2)
    shifted = Curve(whole, lambda sigma: BASE - 1e-4 * sigma**2 + rounding * (sigma > 0))
    assert shifted.tune(TwoStage()).best.sigma == exact.tune(TwoStage()).best.sigma == pytest.approx(0.02, rel=0.5)


@pytest.mark.parametrize("search", [TwoStage(), Golden()])
def test_noise_wins_only_if_it_gains_more_than_rounding(search):
    for gain, wins in ((5e-7, False), (5e-6, True)):
        curve = Curve(lambda sigma, gain=gain: BASE + gain * 2 * (hill(0.3)(sigma) - BASE))
        assert (quietly(curve.tune, search).best.sigma > 0) == wins


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sigma_does_not_depend_on_the_batch_size_where_noise_hardly_helps(seed, joint):
    """Labels as likely as a timid network says. Its float32 outputs differ in the last digit with the batch size."""
    model, (inputs, _) = networks.mlp(seed), networks.items(700, seed=seed)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(0.1)
        chances = (model(inputs) * (0.5 + 0.5 * seed)).softmax(dim=1)
    labels = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    found = [quietly(pm.fit, model, (inputs, labels), batch_size=b, temperature=joint) for b in (7, 33, 500)]
    assert [pep.sigma for pep in found] == pytest.approx([found[0].sigma] * 3, rel=1e-3)


def test_a_subsample_that_sees_a_gain_where_all_items_see_none_does_not_have_the_last_word():
    curve = Curve(lambda sigma: BASE - sigma**2, hill(0.3))
    with pytest.warns(pm.PepWarning, match="noise does not help here"):
        found = curve.tune(TwoStage())
    assert found.best.sigma == found.gain == 0


@pytest.mark.parametrize("sampled", [False, True])
def test_sigma_is_zero_if_noise_does_not_help_after_few_passes(sampled):
    falling = lambda sigma: BASE - sigma  # noqa: E731
    with pytest.warns(pm.PepWarning, match="noise does not help here: no sigma that was tried beats sigma = 0"):
        found = Curve(falling, falling if sampled else None).tune(TwoStage())
    assert found.best.sigma == 0
    assert found.passes <= (1 + 10 + 61 / 16 if sampled else 1 + 10 * 6)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_flat_curve_leaves_the_network_as_it_is(sampled):
    flat = lambda sigma: BASE  # noqa: E731
    with pytest.warns(pm.PepWarning, match="noise does not help here"):
        assert Curve(flat, flat if sampled else None).tune(TwoStage()).best.sigma == 0


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (0.2, 0.4), (None, 0.9), (0.29, 3.0), (0.1, None)])
def test_finds_the_peak_in_the_interval_that_was_given_and_looks_nowhere_else(lower, upper, sampled, joint):
    curve = Curve(hill(0.3), hill(0.33) if sampled else None)
    found = quietly(curve.tune, TwoStage(lower, upper), joint)  # 0.29 is almost the best sigma, and an end
    assert loss(found, 0.3) < 0.01
    asked = [sigma for sigma in curve.asked["whole"] + curve.asked["sampled"] if sigma]
    assert all((lower or 0) <= sigma <= (upper or math.inf) for sigma in asked)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("lower", "upper", "edge"),
    [(0.0, 0.1, "`upper=0.1`"), (0.5, 1.0, "`lower=0.5`"), (0.01, 0.1, "`upper=0.1`"), (0.5, None, "`lower=0.5`")],
)
def test_a_best_point_on_the_edge_is_mentioned(lower, upper, edge, sampled, joint):
    function = hill(0.3) if upper == 0.1 else hill(0.4)
    with pytest.warns(pm.PepWarning, match=f"the best sigma, .*, sits at {edge}: widen the interval, or leave it out"):
        Curve(function, function if sampled else None).tune(TwoStage(lower, upper), joint)


def test_a_curve_that_breaks_down_far_out_is_searched_all_the_same():
    broken = lambda sigma: math.nan if sigma > 0.5 else hill(0.3)(sigma)  # noqa: E731
    for curve in (Curve(broken), Curve(broken, broken), Curve(broken, hill(0.3))):
        assert loss(curve.tune(TwoStage()), 0.3) < 0.01


def test_nothing_but_broken_members_leaves_the_network_as_it_is():
    broken = lambda sigma: math.nan if sigma else BASE  # noqa: E731
    for curve in (Curve(broken), Curve(broken, broken), Curve(broken, hill(0.3))):
        with pytest.warns(pm.PepWarning, match="noise does not help"):
            assert curve.tune(TwoStage()).best.sigma == 0


# Real networks


def many(count, seed=0):
    """The network of `overfitted`, and this many items of the kind that it was trained on."""
    model, _, _ = networks.overfitted(seed)
    centers = torch.randn(networks.CLASSES, networks.FEATURES, generator=torch.Generator().manual_seed(100 + seed))
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(networks.CLASSES, (count,), generator=generator).sort().values
    return model, (centers[labels] + 1.5 * torch.randn(count, networks.FEATURES, generator=generator), labels)


def request_of(model, data, size=10):
    perturbation = Perturbation(select(model, "kernels"), Noise(), size)
    return Request(model, perturbation, pm.Categorical(), engine_named("loop"), Batches(data, model))


def passes_at(model, data, sigmas):
    request = request_of(model, data)
    return [run_members(request, sigma) for sigma in sigmas]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_found_sigma_is_within_a_hundredth_of_the_gain_of_a_fine_grid_in_five_passes(seed):
    """The items are sorted by class, so that a part of neighbors would see one class alone."""
    model, data = many(1200, seed)
    pep, both = pm.fit(model, data), quietly(pm.fit, model, data, temperature=True)
    grid = passes_at(model, data, (pep.sigma * np.geomspace(0.3, 2, 30)).tolist())
    values = [float(np.log(np.exp(p.member_log_likelihoods.numpy()).mean(axis=0)).sum()) for p in grid]
    zero = pep.search.baseline.log_likelihood
    assert pep.search.best.log_likelihood >= max(values) - 0.01 * (max(values) - zero)
    profile = [best_temperature(p.averaged, p.labels)[1] for p in grid]
    assert both.search.best.tempered_log_likelihood >= max(profile) - 0.01 * (max(profile) - zero)
    assert pep.search.passes <= 50
    assert both.search.passes <= 80


def test_points_are_values_on_all_items():
    model, data = many(1000)
    pep = quietly(pm.fit, model, data, temperature=True, engine="loop")
    for found, members in zip(
        pep.search.evaluations, passes_at(model, data, [s for s, _ in pep.search.points]), strict=True
    ):
        matrix = members.member_log_likelihoods.numpy()
        assert found.log_likelihood == pytest.approx(np.log(np.exp(matrix).mean(axis=0)).sum(), rel=1e-9)
        assert found.tempered_log_likelihood == pytest.approx(best_temperature(members.averaged, data[1])[1], rel=1e-9)


@pytest.mark.parametrize("count", [20, 700])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("search", [TwoStage(), Golden()])
def test_the_passes_that_are_reported_are_those_that_were_made(count, joint, search):
    model, data = many(count)
    seen = []
    request = replace(request_of(model, data, 6), tick=seen.append)
    assert quietly(search.tune, request, joint).passes == pytest.approx(sum(seen) / count, rel=1e-12)


def test_twenty_items_are_all_used_for_every_value():
    model, data = many(20)
    found = quietly(pm.fit, model, data, size=4).search
    assert found.passes == 1 + 4 * (len(found.evaluations) - 1)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    stretch=st.floats(-0.7, 1.3),
    items=st.integers(500, 900),
    size=st.integers(1, 6),
    antithetic=st.booleans(),
    interval=st.booleans(),
)
def test_joint_tuning_loses_to_neither_of_its_parts_and_few_passes_are_enough(
    seed, stretch, items, size, antithetic, interval
):
    """Random networks from timid to certain, random labels: the curves have every shape, two peaks among them."""
    model, data = networks.mlp(seed, torch.float64), networks.items(items, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(10**stretch)
    noise = Noise("gaussian", antithetic, seed)
    options = {"size": size, "noise": noise, "search": TwoStage(upper=10**stretch if interval else None)}
    both = quietly(pm.fit, model, data, temperature=True, **options)
    alone = quietly(pm.fit, model, data, **options)
    warm = pm.fit_temperature(model, data)
    found = [float(pm.predict(p, data).log_likelihoods.sum()) for p in (both, alone, warm)]
    assert found[0] >= max(found[1:]) - 1e-9 * items
    assert {sigma for sigma, _ in alone.search.points} <= {sigma for sigma, _ in both.search.points}
    assert alone.search.passes <= 5 * size
    assert both.search.passes <= 8 * size
    assert float(pm.predict(both.without_temperature(), data).log_likelihoods.sum()) >= found[1] - 1e-9 * items


def test_ignored_labels_are_left_out_of_the_subsample_too():
    model, (inputs, labels) = many(900)
    holes = labels.clone()
    holes[::3] = -100
    kept = holes != -100
    expected = pm.fit(model, (inputs[kept], labels[kept]))
    found = pm.fit(model, (inputs, holes))
    assert found.search.items == 600
    assert found.search.gain == pytest.approx(expected.search.gain, rel=0.01)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "labels"),
    [
        ("bernoulli", 1, lambda y: (y > 0).float()[:, None]),
        ("gaussian", 2, lambda y: y + 0.5 * torch.randn(len(y), generator=torch.Generator().manual_seed(0))),
        (pm.Categorical(class_dimension=-1), 3, lambda y: y),
    ],
)
def test_other_likelihoods_are_searched_as_well(likelihood, outputs, labels):
    """Against the golden section, which looks at all items alone; both resolve the summit to a few percent."""
    _, (inputs, classes) = many(800)
    model = networks.seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs)))
    targets = labels(classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        rows = slice(0, 800, 20)
        prediction = model(inputs[rows])
        chosen = pm.likelihood.likelihood_named(likelihood)
        (-chosen.log_likelihoods(*chosen.items(chosen.predict(prediction), targets[rows])).mean()).backward()
        optimizer.step()
    two_stage = quietly(pm.fit, model, (inputs, targets), likelihood=likelihood)
    golden = quietly(pm.fit, model, (inputs, targets), likelihood=likelihood, search=Golden())
    assert golden.search.gain > 0
    assert two_stage.search.gain >= 0.99 * golden.search.gain
    assert two_stage.search.passes <= 50 < golden.search.passes
