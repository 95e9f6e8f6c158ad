from __future__ import annotations

import math
import warnings

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
from peppermill.engines.loop import MemberPass, run_members
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation
from peppermill.tuning.golden import Evaluations
from peppermill.tuning.subsample import Sample
from peppermill.tuning.two_stage import tune_quickly


def quietly(action, *args, **options):
    """For results whose warnings another test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return action(*args, **options)


# The toy curves give all items one likelihood: no temperature is the best one then.
pytestmark = pytest.mark.filterwarnings("ignore:the best temperature is")


def hill(peak):
    """Rises from -1 at 0 to -0.5 at the peak, then falls without end, as L(sigma) of the paper's Figure 1 does."""
    return lambda sigma: -1 + (sigma / peak) ** 2 - 0.5 * (sigma / peak) ** 4


class Curves:
    """Passes whose ensembles have these log-likelihoods per item, on all 100 items and on a part of ten.

    Where there is noise, every other item gains so much more than that, and the others as much less.
    """

    size = 10

    def __init__(self, whole, sample=None, share=1 / 16, spread=0.0):
        self.curves, self.share, self.spread = {100: whole, 10: sample}, share, spread
        self.asked = {100: [], 10: []}

    def run(self, sigma, sample=None):
        items = 100 if sample is None else 10
        self.asked[items].append(sigma)
        value = torch.full((items,), float(self.curves[items](sigma)), dtype=torch.float64)
        value += self.spread * (sigma > 0) * (-1.0) ** torch.arange(items)
        averaged = torch.stack([value, torch.log1p(-value.exp())], dim=1)
        return MemberPass(sigma, value.expand(self.size, -1), averaged, torch.zeros(items, dtype=torch.long))

    def choose(self, network):
        assert network.sigma == 0
        weights = torch.full((10,), 10.0, dtype=torch.float64)
        return Sample(Batches([]), weights, self.share) if self.curves[10] else None

    def tune(self, **options):
        return tune_quickly(self.run, self.choose, scale=1.0, **options)


def loss(found, peak):
    """What is missing of the hill's height, 1/2."""
    return (-0.5 - hill(peak)(found.best.sigma)) / 0.5


@pytest.mark.parametrize("peak", [0.003, 0.05, 0.137, 0.7, 40.0, 4000.0])
def test_finds_a_peak_of_any_size_without_being_told_where(peak):
    curves = Curves(hill(peak))
    found = curves.tune()
    assert 0 <= loss(found, peak) < 0.01
    assert found.lower < peak < found.upper
    assert found.best.log_likelihood == pytest.approx(-50, abs=0.5)
    assert found.baseline.log_likelihood == pytest.approx(-100)
    assert [e.sigma for e in found.evaluations] == curves.asked[100]
    assert found.items == 100


@pytest.mark.parametrize("shift", [0.8, 0.9, 1.0, 1.2, 1.5])
@pytest.mark.parametrize("peak", [0.02, 0.09, 0.3, 0.7])
def test_a_part_that_is_wrong_about_the_peak_is_corrected_by_all_items(peak, shift):
    """At most four values on all items, whatever the sample says, and within 1 % of the gain."""
    curves = Curves(hill(peak), hill(shift * peak))
    found = curves.tune()
    assert loss(found, peak) < 0.01
    assert len(curves.asked[100]) <= 5
    asked = {items: [sigma for sigma in sigmas if sigma] for items, sigmas in curves.asked.items()}
    assert found.passes == pytest.approx(1 + 10 * len(asked[100]) + (1 + 10 * len(asked[10])) / 16)
    assert found.passes <= 5 * Curves.size


def test_a_part_that_is_far_off_leaves_a_fourth_value_to_find_the_peak():
    """Drawn after a CNN for CIFAR-100: at the part's peak all items gained more than twice what the part did, and had
    their own peak at one and a half times it; the second value, at the summit of the bent sketch, was far beyond."""
    part, whole = ({0.0: 0.0, **dict(zip(SEEN, gains, strict=True))} for gains in (ON_THE_PART, ON_ALL_ITEMS))
    curves = Curves(*(lambda sigma, seen=seen: -1 + _between(seen, sigma) / 2500 for seen in (whole, part)))
    best = max(_between(whole, sigma) for sigma in np.geomspace(0.003, 0.02, 400))
    found = tune_quickly(curves.run, curves.choose, scale=0.0338)
    assert 2500 * found.gain > 0.99 * best
    assert found.passes <= 5 * Curves.size


SEEN = (0.00108, 0.00174, 0.00282, 0.00364, 0.00456, 0.0058, 0.00737, 0.00953, 0.01155, 0.014, 0.0193)
ON_THE_PART = (7.45, 21.38, 42.07, 54.25, 66.12, 57.32, 21.45, -60.0, -190.0, -430.0, -1156.15)
ON_ALL_ITEMS = (12.0, 31.0, 81.0, 118.19, 152.0, 181.5, 184.0, 122.14, -6.55, -245.97, -1000.0)


def _between(seen, sigma):
    """The gain at sigma, a smooth curve for gain / sigma^2 through what was seen; none at 0."""
    sigmas = np.array([s for s in seen if s])
    rates = np.array([seen[s] for s in sigmas]) / sigmas**2
    place = np.clip(np.log(max(sigma, 1e-9)), np.log(sigmas[0]), np.log(sigmas[-1]))
    return float(PchipInterpolator(np.log(sigmas), rates)(place)) * sigma**2


def test_the_search_stops_where_what_is_left_is_lost_in_the_noise_of_the_gain():
    """The same two curves; where items differ by 0.3 the gain of 50 has a standard error of 3, and 0.03 is not worth a
    pass. Both find the peak."""
    calm, rough = (Curves(hill(0.3), hill(0.33), spread=spread) for spread in (0.0, 0.3))
    assert loss(calm.tune(), 0.3) < loss(rough.tune(), 0.3) < 0.01
    assert len(rough.asked[100]) < len(calm.asked[100])


def test_the_noise_of_a_gain_is_its_standard_error_over_items():
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    passes = {
        s: MemberPass(s, row.expand(4, -1), row, torch.zeros(40)) for s, row in zip((0.0, 0.1, 0.2), rows, strict=True)
    }
    found = Evaluations(passes.__getitem__, joint=False)
    for sigma in passes:
        found(sigma)
    gains = (rows - rows[0]).numpy()
    assert list(found.noises.values()) == pytest.approx([40 * stats.sem(one, ddof=0) for one in gains], abs=1e-9)


def test_values_of_the_part_are_never_points_of_the_search():
    curves = Curves(hill(0.3), lambda sigma: 7 * hill(0.2)(sigma))
    found = curves.tune(joint=True)
    assert [sigma for sigma, _ in found.points] == curves.asked[100]
    for evaluation in found.evaluations:
        assert evaluation.log_likelihood == pytest.approx(100 * hill(0.3)(evaluation.sigma))


def test_looks_at_the_part_leave_room_for_a_step_on_all_items():
    """From the weights' size to this peak it is a long way, and each look costs 0.3 of a pass."""
    curves = Curves(hill(4000.0), hill(4000.0), share=0.3)
    found = quietly(curves.tune)
    assert found.gain > 0
    assert len(curves.asked[100]) == 2
    assert found.passes <= 5 * Curves.size


def test_a_part_that_sees_no_gain_does_not_have_the_last_word():
    curves = Curves(hill(0.1), lambda sigma: -1 - sigma**2)
    assert loss(curves.tune(), 0.1) < 0.2
    assert min(curves.asked[10][1:]) < 0.02


def test_a_part_that_sees_a_gain_where_all_items_see_none_does_not_have_the_last_word():
    curves = Curves(lambda sigma: -1 - sigma**2, hill(0.3))
    with pytest.warns(pm.PepWarning, match="noise does not help here"):
        found = curves.tune()
    assert found.best.sigma == found.gain == 0


@pytest.mark.parametrize("function", [lambda sigma: -1 - sigma, lambda sigma: -1.0])
@pytest.mark.parametrize("sampled", [False, True])
def test_sigma_is_zero_where_noise_does_not_help_and_little_is_paid_to_know_it(function, sampled):
    curves = Curves(function, function if sampled else None)
    with pytest.warns(pm.PepWarning, match="noise does not help here: no sigma that was tried beats sigma = 0"):
        found = curves.tune()
    assert found.best.sigma == 0
    assert found.passes <= (1 + 10 + 61 / 16 if sampled else 1 + 10 * 6)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (0.2, 0.4), (None, 0.9), (0.29, 3.0), (0.1, None)])
def test_finds_the_peak_in_the_interval_that_was_given_and_looks_nowhere_else(lower, upper, sampled, joint):
    curves = Curves(hill(0.3), hill(0.33) if sampled else None)
    found = curves.tune(lower=lower, upper=upper, joint=joint)
    assert loss(found, 0.3) < 0.01
    asked = [sigma for sigma in curves.asked[100] + curves.asked[10] if sigma]
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
        Curves(function, function if sampled else None).tune(lower=lower, upper=upper, joint=joint)


def test_a_curve_that_breaks_down_far_out_is_searched_all_the_same():
    broken = lambda sigma: math.nan if sigma > 0.5 else hill(0.3)(sigma)  # noqa: E731
    for curves in (Curves(broken), Curves(broken, broken), Curves(broken, hill(0.3))):
        assert loss(curves.tune(), 0.3) < 0.01


def test_nothing_but_broken_members_leaves_the_network_as_it_is():
    broken = lambda sigma: math.nan if sigma else -1.0  # noqa: E731
    for curves in (Curves(broken), Curves(broken, broken), Curves(broken, hill(0.3))):
        with pytest.warns(pm.PepWarning, match="noise does not help"):
            assert curves.tune().best.sigma == 0


def test_an_interval_that_is_none_is_refused_before_anything_is_paid_for():
    curves = Curves(hill(0.3))
    with pytest.raises(ValueError, match=r"`lower=0\.2` must be below `upper=0\.1`"):
        curves.tune(lower=0.2, upper=0.1)
    assert curves.asked[100] == []


# Real networks


def many(count, seed=0):
    """The network of `overfitted`, and so many items of the kind that it was trained on."""
    model, _, _ = networks.overfitted(seed)
    centers = torch.randn(networks.CLASSES, networks.FEATURES, generator=torch.Generator().manual_seed(100 + seed))
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(networks.CLASSES, (count,), generator=generator).sort().values
    return model, (centers[labels] + 1.5 * torch.randn(count, networks.FEATURES, generator=generator), labels)


def passes_at(model, data, sigmas, size=10):
    perturbation = Perturbation(select(model, "kernels"), Noise(), size)
    batches = Batches(data, model)
    return [run_members(model, perturbation, s, batches, pm.Categorical(), lambda items: None) for s in sigmas]


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
    assert both.search.passes <= 60


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
@pytest.mark.parametrize("temperature", [False, True])
@pytest.mark.parametrize("search", ["quick", "golden"])
def test_the_passes_that_are_reported_are_those_that_were_made(count, temperature, search):
    model, data = many(count)
    counting = networks.Counting(model).eval()
    pep = quietly(pm.fit, counting, data, size=6, temperature=temperature, search=search, engine="loop")
    assert pep.search.passes == pytest.approx(sum(counting.counts) / count, rel=1e-12)


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
    options = {"size": size, "antithetic": antithetic, "seed": seed, **({"upper": 10**stretch} if interval else {})}
    both = quietly(pm.fit, model, data, temperature=True, **options)
    alone = quietly(pm.fit, model, data, **options)
    warm = pm.fit_temperature(model, data)
    found = [float(pm.predict(p, data).log_likelihoods.sum()) for p in (both, alone, warm)]
    assert found[0] >= max(found[1:]) - 1e-9 * items
    assert {sigma for sigma, _ in alone.search.points} <= {sigma for sigma, _ in both.search.points}
    assert alone.search.passes <= 5 * size
    assert both.search.passes <= 6 * size
    assert float(pm.predict(both.without_temperature(), data).log_likelihoods.sum()) >= found[1] - 1e-9 * items


@pytest.mark.parametrize("kept_bytes", [2**30, 5000])
def test_data_in_chunks_give_the_same_search(kept_bytes, monkeypatch):
    """They are read once for each value on all items, and once more to choose the sample."""
    model, (inputs, labels) = many(800)
    reads = []

    class Loader:
        def __iter__(self):
            reads.append(1)
            return zip(inputs.split(50), labels.split(50), strict=True)

    monkeypatch.setattr("peppermill.data.KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(
        Batches.__init__, "__kwdefaults__", {**Batches.__init__.__kwdefaults__, "kept_bytes": kept_bytes}
    )
    chunked = pm.fit(model, Loader())
    monkeypatch.undo()
    whole = pm.fit(model, (inputs, labels))
    assert chunked.sigma == pytest.approx(whole.sigma, rel=0.02)
    heads = 2  # two looks at whether the data repeat
    assert len(reads) == heads + (1 if kept_bytes > 2**20 else len(chunked.search.evaluations) + 1)


def test_ignored_labels_are_left_out_of_the_part_too():
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
    quick = quietly(pm.fit, model, (inputs, targets), likelihood=likelihood)
    golden = quietly(pm.fit, model, (inputs, targets), likelihood=likelihood, search="golden")
    assert golden.search.gain > 0
    assert quick.search.gain >= 0.99 * golden.search.gain
    assert quick.search.passes <= 50 < golden.search.passes


# Which search


def test_iterations_are_those_of_the_golden_section():
    model, data = many(600)
    golden, quick = pm.fit(model, data, iterations=7, size=4), pm.fit(model, data, size=4)
    assert golden.recipe == pm.fit(model, data, search="golden", size=4).recipe
    assert quick.recipe == pm.fit(model, data, search="quick", size=4).recipe
    assert quick.search.passes < golden.search.passes / 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"search": "silver"}, "`search='silver'` is unknown: choose one of quick, golden"),
        (
            {"search": "quick", "iterations": 9},
            '`iterations=9` is for the golden section: leave it out, or use `search="golden"`',
        ),
    ],
)
def test_a_search_that_is_none_is_refused(mlp, data, options, text):
    with pytest.raises(ValueError, match=text):
        pm.fit(mlp, data, **options)
