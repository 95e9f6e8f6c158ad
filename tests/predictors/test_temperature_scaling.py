from __future__ import annotations

import math

import networks
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn import functional

import peppermill as pm


def nll(predictor, data):
    return float(-pm.predict(predictor, data).log_likelihoods.mean())


def test_the_temperature_is_the_one_that_scipy_finds(overfitted):
    model, validation, _ = overfitted
    logits, labels = model(validation[0]).detach().double(), validation[1]
    theirs = minimize_scalar(
        lambda t: float(functional.cross_entropy(logits / t, labels)), bounds=(0.05, 20), method="bounded"
    )
    warm = pm.fit_temperature(model, validation)
    assert warm.temperature == pytest.approx(theirs.x, rel=1e-3)
    assert nll(warm, validation) == pytest.approx(theirs.fun, rel=1e-6)
    assert nll(warm, validation) < nll(model, validation)


def test_a_tempered_network_divides_its_logits(mlp, data):
    warm = pm.Tempered(mlp, 2.5, pm.Categorical())
    torch.testing.assert_close(warm(data[0]), (mlp(data[0]) / 2.5).log_softmax(dim=1))
    assert torch.allclose(warm(data[0]).exp().sum(dim=1), torch.ones(20))
    assert "temperature=2.5" in repr(warm)


@pytest.mark.parametrize(
    ("likelihood", "build", "shape"),
    [
        (pm.Categorical(), lambda: nn.Conv2d(2, 3, 1), (2, 4, 4)),
        (pm.Categorical(class_dimension=-1), lambda: nn.Linear(2, 3), (5, 2)),
        (pm.Bernoulli(), lambda: nn.Linear(2, 4), (2,)),
    ],
)
def test_outputs_keep_the_layout_of_the_network(likelihood, build, shape):
    model = networks.seeded(build, dtype=torch.float64)
    inputs, _ = networks.items(3, shape, dtype=torch.float64)
    found, logits = pm.Tempered(model, 3.0, likelihood)(inputs), model(inputs)
    dimension = getattr(likelihood, "class_dimension", None)
    expected = logits / 3 if dimension is None else (logits / 3).log_softmax(dim=dimension)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_inputs_and_outputs_of_every_form_are_passed_on(two_inputs, data):
    inputs, _ = data
    warm = pm.Tempered(two_inputs, 2.0, pm.Categorical())
    torch.testing.assert_close(warm(inputs, right=inputs + 1), warm(left=inputs, right=inputs + 1))
    wrapped = networks.seeded(lambda: networks.Wrapped("object"))
    torch.testing.assert_close(
        pm.Tempered(wrapped, 2.0, pm.Categorical())(inputs), (wrapped.inner(inputs) / 2).log_softmax(dim=1)
    )


def test_a_function_can_be_tempered(data):
    weights = networks.mlp()[0].weight.detach()[:3]
    warm = pm.fit_temperature(lambda inputs: inputs @ weights.T, data)
    assert warm(data[0]).shape == (20, 3)


def test_yes_or_no_questions_have_a_temperature():
    """Logits three times as sharp as those that made the labels: T = 3, within five standard errors."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, generator=generator, dtype=torch.float64)
    labels = torch.bernoulli(logits.sigmoid(), generator=generator)
    warm = pm.fit_temperature(lambda x: 3 * x, (logits, labels), likelihood="bernoulli")
    information = float((logits.square() * logits.sigmoid() * (-logits).sigmoid()).sum())
    assert abs(math.log(warm.temperature / 3)) < 5 / math.sqrt(information)


def test_a_regression_has_no_temperature(mlp, data):
    with pytest.raises(
        ValueError, match="`fit_temperature` is for classifiers: a Gaussian likelihood has no temperature"
    ):
        pm.fit_temperature(mlp, data, likelihood="gaussian")


def test_a_temperature_stacks_on_an_ensemble_which_stays_one(overfitted, tmp_path):
    model, validation, _ = overfitted
    pep = pm.fit(model, validation)
    warm = pm.fit_temperature(pep, validation)
    assert isinstance(warm, pm.PepEnsemble)
    assert (warm.sigma, warm.size, warm.seed) == (pep.sigma, pep.size, pep.seed)
    assert nll(warm, validation) <= nll(pep, validation)
    averaged = pep(validation[0])
    torch.testing.assert_close(warm(validation[0]), (averaged / warm.temperature).log_softmax(dim=1))
    warm.save(tmp_path / "pep.json")
    again = pm.load(tmp_path / "pep.json", model)
    assert again.temperature == warm.temperature
    assert torch.equal(again(validation[0]), warm(validation[0]))


def test_temperatures_multiply(overfitted):
    """A second temperature finds nothing left to do."""
    model, validation, _ = overfitted
    warm = pm.fit_temperature(pm.fit(model, validation), validation)
    again = pm.fit_temperature(warm, validation)
    assert again.temperature == pytest.approx(warm.temperature, rel=1e-4)
    assert warm.with_temperature(2.0).temperature == 2 * warm.temperature


def test_temperature_after_pep_can_lose_to_both_tuned_together(overfitted):
    """The reason for joint tuning."""
    model, validation, _ = overfitted
    after = pm.fit_temperature(pm.fit(model, validation), validation)
    both = pm.fit(model, validation, temperature=True)
    assert nll(both, validation) < nll(after, validation)


@pytest.mark.filterwarnings("ignore:the best temperature is:peppermill.PepWarning")
def test_the_network_is_untouched_and_training_mode_refused(mlp, data):
    before = networks.snapshot(mlp)
    pm.fit_temperature(mlp, data)
    networks.assert_untouched(mlp, before)
    with pytest.raises(ValueError, match="in training mode"):
        pm.fit_temperature(mlp.train(), data)


def test_a_tempered_network_is_in_the_mode_of_its_network(mlp):
    assert not pm.Tempered(mlp, 2.0, pm.Categorical()).training
    assert pm.Tempered(mlp.train(), 2.0, pm.Categorical()).training


def test_validation_data_are_named_in_messages(mlp, data):
    with pytest.raises(ValueError, match="`validation` has 19 inputs and 20 labels"):
        pm.fit_temperature(mlp, (data[0][:-1], data[1]))


def logits_with_a_bias(items=1500, seed=0):
    """Inputs that are logits with a bias and their labels, for networks that do nothing."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(items, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return logits + torch.tensor([0.0, 1.0, -1.0]), labels


@pytest.mark.parametrize("calibrator", ["temperature", "vector", "matrix"])
def test_a_calibrator_goes_on_any_predictor(calibrator):
    validation, test = logits_with_a_bias(), logits_with_a_bias(seed=1)
    found = pm.fit_calibrator(nn.Identity().eval(), validation, calibrator)
    assert isinstance(found, pm.Calibrated)
    assert f"calibrator={calibrator}" in repr(found)
    assert torch.allclose(found(test[0]).exp().sum(dim=1), torch.ones(1500))
    gain = nll(lambda inputs: inputs, test) - nll(found, test)
    assert gain > {"temperature": -0.01, "vector": 0.1, "matrix": 0.1}[calibrator]
    assert nll(pm.fit_calibrator(found, validation, calibrator), test) == pytest.approx(nll(found, test), abs=0.01)


def test_the_temperature_calibrator_is_temperature_scaling(overfitted):
    model, validation, test = overfitted
    found, warm = pm.fit_calibrator(model, validation, "temperature"), pm.fit_temperature(model, validation)
    assert found.temperature == warm.temperature
    assert nll(found, test) == nll(warm, test)


def test_an_ensemble_stays_one_with_a_calibrator_and_saves_it(overfitted, tmp_path):
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, size=4, temperature=True)
    found = pm.fit_calibrator(pep, validation)
    assert isinstance(found, pm.PepEnsemble)
    assert (found.sigma, found.calibrator.name) == (pep.sigma, "vector")
    assert nll(found, validation) <= nll(pep, validation) + 1e-6
    found.save(tmp_path / "pep.json")
    assert torch.equal(pm.load(tmp_path / "pep.json", model)(validation[0]), found(validation[0]))


@pytest.mark.parametrize("calibrator", ["temperature", "vector"])
def test_several_yes_or_no_questions_share_a_calibrator(calibrator):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(500, 4, generator=generator)
    labels = torch.bernoulli(logits.sigmoid(), generator=generator)
    found = pm.fit_calibrator(lambda x: 3 * x - 1, (logits, labels), calibrator, likelihood="bernoulli")
    assert found(logits).shape == (500, 4)
    assert pm.evaluate(found, (logits, labels)).nll.value < 0.5


def test_a_calibrator_that_does_not_exist_or_fit_is_refused_before_any_pass(data):
    def never(inputs):
        raise AssertionError("a pass was made")

    with pytest.raises(ValueError, match="`calibrator='beta'` is unknown: choose one of temperature, vector, matrix"):
        pm.fit_calibrator(never, data, "beta")
    with pytest.raises(ValueError, match="is not for the gaussian likelihood"):
        pm.fit_calibrator(never, data, likelihood="gaussian")
    with pytest.raises(
        ValueError, match="'matrix'` is not for the bernoulli likelihood: choose one of temperature, ve"
    ):
        pm.fit_calibrator(never, data, "matrix", likelihood="bernoulli")


def test_a_calibrator_leaves_the_network_untouched(overfitted):
    model, validation, _ = overfitted
    before = networks.snapshot(model)
    pm.fit_calibrator(model, validation)
    networks.assert_untouched(model, before)


def test_a_temperature_replaces_a_richer_calibrator(overfitted):
    """T alone, as of the bare network: not vector scaling's own T times another, without its scales."""
    model, data, _ = overfitted
    richer = pm.fit_calibrator(model, data, "vector")
    found = pm.fit_temperature(richer, data)
    assert found.method == "temperature scaling"
    assert found.temperature == pytest.approx(pm.fit_temperature(model, data).temperature)
    with pytest.raises(ValueError, match="vector scaling has a T of its own"):
        richer.with_temperature(2.0)


def test_a_network_without_its_temperature_is_the_network(overfitted):
    """There was no search for sigma, which would know the best one without T."""
    model, data, _ = overfitted
    bare = pm.fit_temperature(model, data).without_temperature()
    assert (bare.sigma, bare.temperature, bare.method) == (0, 1, "network")
