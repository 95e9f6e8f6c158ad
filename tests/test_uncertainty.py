"""How sure the members are: against scipy's entropies of the members, one by one."""

from __future__ import annotations

import networks
import numpy as np
import pytest
import torch
from scipy.special import entr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm

SIX = ["confidence", "entropy", "expected_entropy", "mutual_information", "disagreement", "deviation"]


def ensemble(model=None, sigma=0.4, **settings):
    return pm.PepEnsemble.at_sigma(model or networks.mlp(dtype=torch.float64), sigma, parameters="all", **settings)


def by_hand(pep, inputs):
    """The six numbers of each item, from the members' probabilities [m, N, K]."""
    members = pep.member_log_probs(inputs).detach().exp().numpy()
    if pep.likelihood.name == "bernoulli":  # the members' logits
        yes = 1 / (1 + 1 / members)
        members = np.stack([1 - yes, yes], axis=-1)
    mean = members.mean(axis=0)
    predicted = mean.argmax(axis=-1)
    own = np.take_along_axis(members, predicted[None, ..., None], axis=-1)[..., 0]
    total, expected = entr(mean).sum(axis=-1), entr(members).sum(axis=-1).mean(axis=0)
    disagreement = (members.argmax(axis=-1) != predicted).mean(axis=0)
    rows = (mean.max(axis=-1), total, expected, total - expected, disagreement, own.std(axis=0))
    return dict(zip(SIX, rows, strict=True))


def assert_same(found, expected, tolerance=1e-8):
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_every_number_is_that_of_the_members_one_by_one(size):
    pep, inputs = ensemble(size=size), networks.items(30, dtype=torch.float64)[0]
    found = pep.uncertainty(inputs)
    assert list(found.values) == SIX
    assert_same(found, by_hand(pep, inputs))
    torch.testing.assert_close(found.outputs, pep(inputs).detach(), rtol=1e-12, atol=1e-14)


def test_yes_or_no_questions_have_the_same_numbers():
    pep = ensemble(networks.mlp(dtype=torch.float64, classes=2), likelihood="bernoulli", size=5)
    inputs = networks.items(30, dtype=torch.float64)[0]
    found = pep.uncertainty(inputs)
    assert found.entropy.shape == (30, 2)
    assert_same(found, by_hand(pep, inputs))


def test_a_regression_has_the_law_of_total_variance():
    pep = ensemble(networks.mlp(dtype=torch.float64, classes=2), likelihood="gaussian", size=5)
    inputs = networks.items(30, dtype=torch.float64)[0]
    means, log_variances = pep.member_log_probs(inputs).detach().unbind(dim=-1)
    inside, between = log_variances.exp().mean(dim=0), means.var(dim=0, correction=0)
    expected = {"variance": inside + between, "expected_variance": inside, "variance_of_means": between}
    assert_same(pep.uncertainty(inputs), expected)
    assert_same(pm.predict(pep, (inputs, inputs[:, 0]), uncertainty=True).uncertainty, expected)


def test_a_segmentation_has_a_map():
    network = networks.seeded(lambda: nn.Conv2d(1, 3, 3, padding=1), dtype=torch.float64)
    pep, inputs = ensemble(network, size=4), networks.items(3, (1, 5, 7), dtype=torch.float64)[0]
    found = pep.uncertainty(inputs)
    members = pep.member_log_probs(inputs).detach().exp().movedim(2, -1).numpy()
    assert found.entropy.shape == (3, 5, 7)
    np.testing.assert_allclose(found.entropy, entr(members.mean(axis=0)).sum(axis=-1), atol=1e-8)
    assert found.outputs.shape == (3, 3, 5, 7)
    labels = torch.zeros(3, 5, 7, dtype=torch.long)
    labels[:, 0] = -100  # the first row of pixels does not count
    counted = pm.predict(pep, (inputs, labels), uncertainty=True).uncertainty
    torch.testing.assert_close(counted.deviation, found.deviation[:, 1:].flatten())


@pytest.mark.parametrize("batch_size", [1, 7, 500])
@pytest.mark.parametrize("engine", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("views", [None, lambda inputs: -inputs])
def test_every_engine_and_batch_size_gives_the_same_numbers(engine, batch_size, views):
    pep, data = ensemble(size=5, engine=engine, views=views), networks.items(30, dtype=torch.float64)
    loader = DataLoader(TensorDataset(*data), batch_size)
    assert_same(pm.predict(pep, loader, uncertainty=True).uncertainty, by_hand(pep, data[0]))


@pytest.mark.parametrize(("likelihood", "classes"), [("categorical", 3), ("bernoulli", 1), ("gaussian", 2)])
def test_without_noise_the_members_agree_exactly(likelihood, classes):
    pep = ensemble(networks.mlp(classes=classes), sigma=0.0, likelihood=likelihood)
    found = pep.uncertainty(networks.items(50)[0])
    zero = ["variance_of_means"] if likelihood == "gaussian" else ["mutual_information", "disagreement", "deviation"]
    assert all(torch.equal(getattr(found, name), torch.zeros_like(getattr(found, name))) for name in zero)


@pytest.mark.parametrize("sigma", [0.0, 1e-8, 0.3, 30.0])
def test_entropy_is_expected_entropy_and_mutual_information_which_is_never_negative(sigma):
    found = ensemble(networks.mlp(), sigma, size=10).uncertainty(100 * networks.items(200)[0])
    assert bool((found.mutual_information >= 0).all())
    torch.testing.assert_close(found.entropy, found.expected_entropy + found.mutual_information, rtol=0, atol=1e-12)


def test_the_calibrator_changes_the_confidence_and_not_the_members():
    pep, data = ensemble(size=5), networks.items(30, dtype=torch.float64)
    cold = pep.with_temperature(0.25)
    before, after = pep.uncertainty(data[0]), cold.uncertainty(data[0])
    torch.testing.assert_close(after.confidence, cold.predict_proba(data[0]).amax(dim=1))
    for name in SIX[1:]:
        assert torch.equal(getattr(before, name), getattr(after, name))
    assert torch.equal(pm.predict(cold, data, uncertainty=True).uncertainty.confidence, after.confidence)


def test_a_single_network_knows_its_confidence_and_entropy(mlp, data):
    found = pm.predict(mlp, data, uncertainty=True)
    probabilities = mlp(data[0]).detach().double().softmax(dim=1)
    np.testing.assert_allclose(found.uncertainty.entropy, entr(probabilities.numpy()).sum(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.uncertainty.confidence, probabilities.amax(dim=1), atol=1e-6)
    with pytest.raises(AttributeError, match="no uncertainty `mutual_information` here, only confidence, entropy"):
        found.uncertainty.mutual_information  # noqa: B018
    assert pm.predict(mlp, data).uncertainty is None
