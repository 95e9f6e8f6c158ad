from __future__ import annotations

import math
import warnings

import networks
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

import peppermill as pm
from peppermill.calibrators.temperature import best_temperature


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


def test_the_log_probabilities_are_not_written_to():
    for shape in ((1, 4), (3, 1), (3, 4)):
        log_probs = torch.randn(shape, dtype=torch.float64).log_softmax(dim=1)
        before = log_probs.clone()
        best_temperature(log_probs, torch.zeros(shape[0], dtype=torch.long))
        assert torch.equal(log_probs, before)


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


@pytest.mark.parametrize(("logit", "edge"), [(3.0, 1 / 20), (-3.0, 1000)])
def test_labels_that_are_always_right_or_wrong_end_at_an_edge(logit, edge):
    """All right: the colder the better. All wrong, with two classes: the hotter the better."""
    log_probs = torch.tensor([[logit, 0.0]] * 5, dtype=torch.float64).log_softmax(dim=1)
    assert best_temperature(log_probs, torch.zeros(5, dtype=torch.long))[0] == pytest.approx(edge, rel=1e-4)


@pytest.mark.parametrize("weights", [torch.ones(300), torch.arange(300) % 3 + 0.5])
def test_a_weight_counts_an_item_several_times(weights):
    """Half-integer weights, doubled: as many copies of each item, and twice the log-likelihood."""
    inputs, labels = networks.items(300, (4,), dtype=torch.float64)
    labels = torch.where(torch.arange(300) % 3 == 0, labels, inputs.argmax(dim=1))
    log_probs, copies = (2 * inputs).log_softmax(dim=1), (2 * weights).long()
    temperature, value = best_temperature(log_probs, labels, weights.double())
    repeated = best_temperature(log_probs.repeat_interleave(copies, 0), labels.repeat_interleave(copies))
    assert (temperature, 2 * value) == pytest.approx(repeated, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, -math.inf])
def test_where_no_temperature_is_better_it_is_one_exactly(value):
    """Equal probabilities, and labels of probability 0."""
    log_probs = torch.tensor([[value, 0.0]] * 4, dtype=torch.float64).log_softmax(dim=1)
    assert best_temperature(log_probs, torch.zeros(4, dtype=torch.long))[0] == 1


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (True, "is 1/20, the lowest that is tried"),
        (False, "on the validation data the predictions say next to nothing"),
    ],
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


def test_random_labels_are_as_likely_as_by_guessing():
    """Otherwise an ensemble, whose averages say less, would look better than one pass that may not say as little."""
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(400, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (400,), generator=generator)
    assert best_temperature(logits.log_softmax(dim=1), labels)[1] >= -400 * (math.log(3) + 1e-3)


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
