"""The methods that PEP is compared with, each on a network of somebody's own."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import peppermill as pm


def network(seed: int = 0, dropout: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), *([nn.Dropout(0.5)] if dropout else []), nn.Linear(8, 3)]
    return nn.Sequential(*layers).eval()


def data(items: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(items, 4, generator=generator), torch.randint(3, (items,), generator=generator)


def test_the_single_network_gives_the_softmax_of_its_logits() -> None:
    model, (x, _) = network(), data()
    torch.testing.assert_close(pm.SingleNetwork(model)(x).exp(), model(x).softmax(1))


def test_a_deep_ensemble_averages_probabilities() -> None:
    models, (x, _) = [network(seed) for seed in range(3)], data()
    expected = torch.stack([model(x).softmax(1) for model in models]).mean(0)
    torch.testing.assert_close(pm.DeepEnsemble(models)(x).exp(), expected)


def test_a_deep_ensemble_of_one_yes_or_no_output_averages_the_probability_of_yes() -> None:
    models = [nn.Sequential(nn.Linear(4, 1)).eval() for _ in range(3)]
    x, labels = data()[0], torch.ones(40, 1)
    ensemble = pm.DeepEnsemble(models, likelihood="bernoulli")
    expected = torch.stack([model(x).sigmoid() for model in models]).mean(0)
    torch.testing.assert_close(ensemble(x).sigmoid(), expected)
    assert pm.evaluate(ensemble, (x, labels)).nll.value == pytest.approx(-expected.log().mean().item(), rel=1e-5)


def test_test_time_augmentation_averages_what_the_views_give() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    x, labels = data(40)[0].new_tensor(range(480)).sin().view(40, 1, 3, 4), data(40)[1]
    augmented = pm.TestTimeAugmentation(model, ["horizontal_flip", "vertical_flip"])
    expected = torch.stack([model(y).softmax(1) for y in (x, x.flip(-1), x.flip(-2))]).mean(0)
    torch.testing.assert_close(augmented(x).exp(), expected)
    assert pm.evaluate(augmented, (x, labels)).nll.value == pytest.approx(
        -expected[torch.arange(40), labels].log().mean().item(), rel=1e-5
    )
    assert augmented.passes == 3
    pep = pm.PepEnsemble.at_sigma(model, 0.0, size=3, views=["horizontal_flip", "vertical_flip"])
    torch.testing.assert_close(augmented(x), pep(x))
    tempered = pm.fit_temperature(augmented, (x, torch.multinomial(expected, 1)[:, 0]))
    torch.testing.assert_close(tempered(x), (expected.log() / tempered.temperature).log_softmax(1))


def test_test_time_augmentation_keeps_the_likelihood() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval()
    x = torch.linspace(-1, 2, 20).view(5, 1, 2, 2)
    augmented = pm.TestTimeAugmentation(model, likelihood="bernoulli")
    torch.testing.assert_close(augmented(x).sigmoid(), (model(x).sigmoid() + model(x.flip(-1)).sigmoid()) / 2)
    with pytest.raises(ValueError, match="hold no pictures"):
        augmented(x.flatten(1))


def test_mc_dropout_averages_the_passes_that_a_loop_by_hand_makes() -> None:
    model, (x, _) = network(), data()
    found = pm.McDropout(model, 6, seed=3)(x)
    model[3].train()
    torch.manual_seed(3)
    by_hand = torch.stack([model(x).softmax(1) for _ in range(6)]).mean(0)
    torch.testing.assert_close(found.exp(), by_hand)


def test_mc_dropout_leaves_network_and_generator_as_they_were() -> None:
    model, (x, labels) = network(), data()
    before, statistics = torch.get_rng_state(), model[2].running_mean.clone()
    sampled = pm.McDropout(model, 4)
    pm.evaluate(sampled, (x, labels))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(statistics, model[2].running_mean)
    assert not any(module.training for module in sampled.modules())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        sampled(torch.zeros(2, 7))
    assert not any(module.training for module in sampled.modules())


def test_mc_dropout_does_not_change_the_network_even_for_an_instant() -> None:
    """A layer in the middle of the network looks at the user's own modules during every pass."""
    seen = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.extend(module.training for module in watched.modules())
            return x

    watched = nn.Sequential(network(), Watch()).eval()
    pm.McDropout(watched, 3)(data()[0])
    assert len(seen) == 3 * len(list(watched.modules()))
    assert not any(seen)


def test_the_average_of_weights_is_their_mean() -> None:
    models, average = [network(seed, dropout=False) for seed in range(4)], pm.WeightAverage()
    for model in models:
        average.add(model)
    averaged = average.network(data())
    torch.testing.assert_close(averaged[0].weight, torch.stack([model[0].weight for model in models]).mean(0))
    torch.testing.assert_close(averaged[3].bias, torch.stack([model[3].bias for model in models]).mean(0))


def test_statistics_of_averaged_weights_are_those_of_the_data() -> None:
    average, (x, labels) = pm.WeightAverage(), data()
    for seed in range(3):
        average.add(network(seed))
    averaged = average.network((x, labels))
    seen = averaged[0](x).relu()
    torch.testing.assert_close(averaged[2].running_mean, seen.mean(0))
    torch.testing.assert_close(averaged[2].running_var, seen.var(0))
    assert averaged[2].momentum == 0.1
    assert not any(module.training for module in averaged.modules())


def test_methods_stack() -> None:
    """A temperature on top of a deep ensemble is the one that scipy finds for its averaged log-probabilities."""
    ensemble, (x, _) = pm.DeepEnsemble([network(seed) for seed in range(2)]), data(400)
    with torch.no_grad():
        log_probs = ensemble(x).double()
    sure = torch.distributions.Categorical(logits=log_probs * 3)  # the labels are surer than the ensemble
    torch.manual_seed(0)
    labels = sure.sample()

    def nll(temperature: float) -> float:
        return float(nn.functional.cross_entropy(log_probs / temperature, labels))

    expected = minimize_scalar(nll, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-6})
    warm = pm.fit_temperature(ensemble, (x, labels))
    assert warm.temperature == pytest.approx(expected.x, rel=1e-3)
    assert 0.2 < expected.x < 0.6
    assert pm.evaluate(warm, (x, labels)).nll.value == pytest.approx(expected.fun, rel=1e-5)


def test_misuse_is_refused_with_its_cure() -> None:
    with pytest.raises(ValueError, match=r"has no dropout layer .* or use `pm.fit`"):
        pm.McDropout(network(dropout=False))
    with pytest.raises(ValueError, match="`passes=0` must be at least 1"):
        pm.McDropout(network(), 0)
    with pytest.raises(ValueError, match="`models` is empty"):
        pm.DeepEnsemble([])
    with pytest.raises(ValueError, match=r"cannot be used while it is in training mode: call `model.eval\(\)` first"):
        pm.DeepEnsemble([network(), network().train()])
    with pytest.raises(TypeError, match=r"`models` is one Sequential, not several networks: give a list"):
        pm.DeepEnsemble(network())  # whose layers would be taken for networks
    with pytest.raises(ValueError, match="nothing was averaged"):
        pm.WeightAverage().network()
    average = pm.WeightAverage()
    average.add(network())
    with pytest.raises(ValueError, match="give training `data`"):
        average.network()
    with pytest.raises(ValueError, match="this Linear is not the network that was added before"):
        average.add(nn.Linear(4, 3))
    assert average.count == 1


def test_the_networks_of_an_ensemble_may_come_one_after_the_other() -> None:
    models, (x, _) = [network(seed) for seed in range(2)], data()
    expected = pm.DeepEnsemble(models)(x)
    assert torch.equal(pm.DeepEnsemble(model for model in models)(x), expected)
    assert torch.equal(pm.DeepEnsemble(nn.ModuleList(models).eval())(x), expected)
