"""sigma and T tuned together."""

from __future__ import annotations

import warnings

import networks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import peppermill as pm
from peppermill.noise import Noise
from peppermill.tuning.golden import Golden
from peppermill.tuning.two_stage import TwoStage

#: Items that are all right have no best temperature: said in a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:the best temperature is:peppermill.PepWarning")


def quietly(action, *args, **options):
    """For results whose warnings another test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return action(*args, **options)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    stretch=st.floats(-0.7, 1.3),
    items=st.integers(2, 60),
    size=st.integers(1, 6),
    antithetic=st.booleans(),
    interval=st.booleans(),
    search=st.sampled_from([Golden, TwoStage]),
)
def test_joint_tuning_loses_to_neither_of_its_parts_on_validation_data(
    seed, stretch, items, size, antithetic, interval, search
):
    """Random networks from timid to certain, random labels: the curves have every shape, two peaks among them."""
    model, data = networks.mlp(seed, torch.float64), networks.items(items, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(10**stretch)
    searcher = search(upper=10**stretch if interval else None)
    options = {"size": size, "noise": Noise("gaussian", antithetic, seed), "search": searcher}
    both = quietly(pm.fit, model, data, temperature=True, **options)
    alone = quietly(pm.fit, model, data, **options)
    warm = quietly(pm.fit_temperature, model, data)
    found = [float(pm.predict(p, data).log_likelihoods.sum()) for p in (both, alone, warm)]
    assert found[0] >= max(found[1:]) - 1e-9 * items
    assert found[0] == pytest.approx(both.search.best.tempered_log_likelihood, abs=1e-9 * items)


@pytest.mark.parametrize("search", ["golden", "two_stage"])
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


@pytest.mark.parametrize("search", ["golden", "two_stage"])
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


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("search", [Golden(upper=5.0), TwoStage(upper=5.0)])
def test_a_warning_points_at_the_line_of_the_user(joint, search):
    model = networks.mlp()
    inputs, _ = networks.items(40)
    perfect = model(inputs).argmax(dim=1)
    rule = lambda name, value: name == "0.weight"  # noqa: E731
    with pytest.warns(pm.PepWarning, match="noise does not help") as record:
        pm.fit(model, (inputs, perfect), parameters=rule, temperature=joint, search=search)
    assert {warning.filename for warning in record} == {__file__}
