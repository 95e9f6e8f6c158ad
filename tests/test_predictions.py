from __future__ import annotations

from dataclasses import replace

import networks
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import peppermill as pm
from peppermill.data import Batches
from peppermill.predictions import likelihood_of, predict


def test_a_networks_predictions_are_its_log_probabilities(mlp, data):
    inputs, labels = data
    found = predict(mlp, data)
    expected = mlp(inputs).detach().log_softmax(dim=1)
    torch.testing.assert_close(found.log_probs, expected.double())
    assert torch.equal(found.labels, labels)
    assert float(-found.log_likelihoods.mean()) == pytest.approx(float(functional.cross_entropy(expected, labels)))
    assert found.likelihood == pm.Categorical()
    assert not found.log_probs.requires_grad


@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_batches_do_not_change_predictions(batch_size):
    model, data = networks.mlp(dtype=torch.float64), networks.items(dtype=torch.float64)
    whole, parts = predict(model, data), predict(model, Batches(data, model, batch_size=batch_size))
    torch.testing.assert_close(parts.log_probs, whole.log_probs, rtol=1e-13, atol=1e-14)


def test_a_function_is_a_predictor_too(data):
    logits = networks.items(20, (3,))[0]
    found = predict(lambda inputs: logits[: len(inputs)], data)
    assert torch.equal(found.log_probs, logits.log_softmax(dim=1).double())


def test_a_log_probability_of_minus_infinity_is_a_prediction():
    """A predictor may rule a class out."""
    rows = torch.tensor([[0.0, -torch.inf, -torch.inf]] * 20)
    found = predict(lambda inputs: rows, networks.items(20))
    assert found.log_probs[0].tolist() == [0.0, -torch.inf, -torch.inf]


def test_predictions_that_are_no_numbers_are_refused(mlp, data):
    with torch.no_grad():
        mlp[2].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="predictions for 20 of 20 items are NaN: check the network's weights and the"):
        predict(mlp, data)
    with pytest.raises(ValueError, match="predictions for 1 of 2 items are NaN"):
        predict(lambda x: x, (torch.tensor([[1.0, 2.0], [torch.inf, 0.0]]), torch.tensor([0, 1])))


def test_predictions_are_their_own(mlp, data):
    found = predict(mlp, data)
    assert predict(found, data) is found


def test_an_ensemble_knows_better():
    """The density of a mixture of Gaussians is not that of its mean and variance: the ensemble is asked."""
    model = networks.mlp(classes=2, dtype=torch.float64)
    inputs, _ = networks.items(15, dtype=torch.float64)
    data = (inputs, 3 * inputs[:, 0])
    pep = pm.fit(model, data, likelihood="gaussian", size=3, parameters="all")
    found = predict(pep, data)
    mixture = pep.member_pass(data).member_log_likelihoods.exp().mean(dim=0).log()
    torch.testing.assert_close(found.log_likelihoods, mixture, rtol=1e-10, atol=1e-12)
    gaussian = pm.Gaussian().log_likelihoods(found.log_probs, data[1])
    assert not torch.allclose(found.log_likelihoods, gaussian)


@pytest.mark.parametrize(
    ("labels", "error", "text"),
    [
        (torch.full((20,), 7), ValueError, "labels run from 7 to 7, but the network has 3 classes"),
        (torch.zeros(20), TypeError, "labels have type torch.float32"),
        (torch.zeros(19).long(), ValueError, "`test` has 20 inputs and 19 labels"),
        (torch.zeros(20, 3).long(), ValueError, r"labels of shape \[20, 3\] do not fit"),
        (torch.full((20,), -100), ValueError, "`test` has no item that counts: every label is the ignored one"),
    ],
)
def test_bad_labels_are_refused(mlp, data, labels, error, text):
    with pytest.raises(error, match=text):
        predict(mlp, (data[0], labels), argument="test")


def test_training_mode_is_refused(mlp, data):
    with pytest.raises(ValueError, match=r"in training mode: call `model\.eval"):
        predict(mlp.train(), data)


def test_probabilities_are_refused(data):
    with pytest.raises(ValueError, match="look like probabilities"):
        predict(nn.Sequential(networks.mlp(), nn.Softmax(dim=1)).eval(), data)


def test_the_likelihood_is_what_was_asked_for_else_the_predictors_own_else_categorical(mlp, data):
    warm = pm.Tempered(mlp, 2.0, pm.Categorical(ignored_label=1))
    assert likelihood_of(mlp, None) == pm.Categorical()
    assert likelihood_of(mlp, "bernoulli") == pm.Bernoulli()
    assert likelihood_of(warm, None) == pm.Categorical(ignored_label=1)
    assert likelihood_of(warm, "categorical") == pm.Categorical()
    assert len(predict(warm, data).labels) == int((data[1] != 1).sum())


# Without labels


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize("batch_size", [1, 7, 500])
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
@pytest.mark.parametrize("ensemble", [False, True])
def test_without_labels_the_predictions_are_those_with_any(ensemble, likelihood, batch_size):
    model = networks.mlp(dtype=torch.float64, classes={"categorical": 3, "bernoulli": 1, "gaussian": 2}[likelihood])
    inputs, labels = networks.items(dtype=torch.float64)
    labels = labels.clamp(max=1) if likelihood == "bernoulli" else labels
    pep = pm.fit(
        model, (inputs, labels), likelihood=likelihood, size=3, parameters="all", search=pm.TwoStage(upper=0.4)
    )
    predictor = pm.PepEnsemble(model, replace(pep.recipe, sigma=0.3)) if ensemble else model
    expected = predict(predictor, (inputs, labels), likelihood=likelihood).log_probs
    expected = expected[:, 0] if likelihood == "gaussian" else expected
    found = unlabelled(predictor, inputs, likelihood=likelihood, batch_size=batch_size)
    torch.testing.assert_close(found.reshape(expected.shape), expected.float())


def test_pixels_without_labels_are_in_the_order_of_those_with_labels():
    network = networks.seeded(lambda: nn.Conv2d(1, 3, 1))
    inputs, labels = networks.items(4, (1, 5, 2))[0], torch.zeros(4, 5, 2, dtype=torch.long)
    expected = predict(network, (inputs, labels)).log_probs
    torch.testing.assert_close(unlabelled(network, inputs), expected.float().reshape(4, 5, 2, 3))


def unlabelled(predictor, inputs, **options):
    found = pm.stream(predictor, inputs, columns=None, **options)
    return torch.from_numpy(np.concatenate([batch[next(n for n in batch if n != "row")] for batch in found]))


def test_misuse_without_labels_is_refused(mlp, data):
    with pytest.raises(ValueError, match="`batch_size=0` must be at least 1"):
        unlabelled(mlp, data[0], batch_size=0)
    with pytest.raises(ValueError, match="look like probabilities"):
        unlabelled(nn.Sequential(mlp, nn.Softmax(dim=1)).eval(), data[0])
    with pytest.raises(ValueError, match="fewer than two classes"):
        unlabelled(lambda x: x[:, 0], data[0])
    with pytest.raises(ValueError, match="in training mode"):
        unlabelled(mlp.train(), data[0])
