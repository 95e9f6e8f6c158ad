"""The PEP effect of items and of ensembles, predicted and measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import peppermill as pm
import peppermill.demo
from peppermill.curvature.analysis import carried_by, compare_effects
from peppermill.noise import Noise


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


def data(count: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)


@pytest.mark.parametrize("temperature", [False, True])
def test_item_effects_are_the_items_gains_and_add_up_to_the_pep_effect(temperature: bool) -> None:
    model, (x, y) = network(), data()
    pep = pm.fit(model, (x, y), temperature=temperature)
    found = pep.item_effects((x, y))
    log_probs = pep(x).double().detach()
    expected = (
        log_probs.gather(1, y[:, None])[:, 0] - model(x).detach().double().log_softmax(1).gather(1, y[:, None])[:, 0]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert float(found.sum()) == pytest.approx(pep.search.gain * len(y), rel=1e-6)


@pytest.mark.filterwarnings("ignore:noise does not help")
def test_without_noise_no_item_has_an_effect() -> None:
    pep = pm.fit(network(), data(), parameters="all", search=pm.Golden(lower=5.0, upper=6.0, iterations=1))
    assert pep.sigma == 0
    assert pep.item_effects(data()).tolist() == [0.0] * 60


def test_the_measured_effect_is_that_of_a_loop_over_members() -> None:
    model, (x, y) = network().double(), data()
    analysis = pm.local_analysis(model, (x, y), probes=8)
    (point,) = compare_effects(analysis, model, (x, y), [0.05], size=6, seed=3)
    noise, center = Noise(seed=3), {name: value for name, value in model.named_parameters() if "weight" in name}
    likelihoods = torch.stack([
        functional_call(model, {n: v + 0.05 * noise.draw(n, j, v).double() for n, v in center.items()}, (x.double(),))
        .softmax(1).gather(1, y[:, None])[:, 0].detach()
        for j in range(6)
    ])  # fmt: skip
    base = model(x.double()).softmax(1).gather(1, y[:, None])[:, 0].detach()
    assert point.measured == pytest.approx(float((likelihoods.mean(0) / base).log().sum()), rel=1e-9)
    left_out = [
        float(likelihoods[[k for k in range(6) if k // 2 != j]].mean(0).log().sum()) for j in range(3)
    ]  # the jackknife over three pairs, by hand; 4.527 = t of two degrees of freedom at two standard deviations
    assert point.measured_error == pytest.approx(np.std(left_out, ddof=1) / math.sqrt(3) * 2 * 4.527 / 2, rel=1e-3)
    assert point.predicted == pytest.approx(analysis.effect_rate * 0.05**2 / 2)


def test_prediction_and_ensemble_agree_within_their_errors_in_the_believable_range() -> None:
    model, given = network(), data(200)
    analysis = pm.local_analysis(model, given, probes=48)
    upper = analysis.believable_range[1]
    for point in compare_effects(analysis, model, given, [upper / 2, upper], size=100):
        assert abs(point.predicted - point.measured) < 2 * math.hypot(point.predicted_error, point.measured_error) + (
            0.1 * abs(point.predicted)
        )


def test_an_odd_ensemble_is_refused() -> None:
    analysis = pm.local_analysis(network(), data(), probes=8)
    with pytest.raises(ValueError, match="`size=7` must be even and at least 6"):
        compare_effects(analysis, network(), data(), [0.1], size=7)


def test_shares_are_counted_as_by_hand() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]).double().log()
    labels = torch.tensor([1, 1, 0, 0])  # the first is wrong; likelihoods 0.1, 0.8, 0.6, 0.5
    likelihoods = log_probs.gather(1, labels[:, None])[:, 0]
    predictions = pm.Predictions(log_probs, labels, likelihoods, pm.Categorical())
    found = {
        (part.who, part.fraction): part.share for part in carried_by(torch.tensor([3.0, -1.0, 1.0, 1.0]), predictions)
    }
    assert found[("that the network gets wrong", 0.25)] == 0.75
    assert found[("of lowest likelihood", 0.25)] == 0.75
    assert found[("of lowest likelihood", 0.5)] == 1.0


@pytest.mark.filterwarnings("ignore:the best sigma")
def test_hard_and_mislabelled_items_carry_the_effect_of_the_embedded_network() -> None:
    """Section 2.3: 'its value may be dominated by data items that have low likelihood ... or incorrectly labeled'."""
    model, (validation, _) = peppermill.demo.network(), peppermill.demo.data()
    inputs, labels = validation[0][:600], validation[1][:600].clone()
    labels[:12] = (labels[:12] + 1) % 10  # two in a hundred are mislabelled
    recipe = pm.fit(model, (inputs, labels), size=4, search=pm.Golden(lower=0.008, upper=0.016, iterations=1))
    effects = recipe.item_effects((inputs, labels))
    wrong = model(inputs).argmax(1) != labels
    assert float(effects[wrong].sum()) > float(effects.sum())  # the others lose a little
    assert float(effects[:12].mean()) > 5 * float(effects.mean())
    assert float(effects[~wrong].mean()) < 0
