"""A sigma for every array: its gradient, its direction, its price, and what it leaves alone."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm
from peppermill.data import Batches
from peppermill.engines import engine_named
from peppermill.engines.network_shell import Shells
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.passes import Request
from peppermill.perturbation import Perturbation
from peppermill.tuning.layer_scales import FIRST_DRAW, PAIRS, fit_scales, minibatch_log_likelihood
from tests import networks


def request_of(model, data, likelihood=None, rule="kernels", seed=0, **options):
    perturbation = Perturbation(select(model, rule), Noise(seed=seed), 4)
    batches = Batches(data, model, **options)
    return Request(model, perturbation, likelihood or pm.Categorical(), engine_named("loop"), batches)


def by_hand(model, inputs, labels, sigma, logs, log_temperature, members):
    """ln (1/m) sum_j p_j, then T, with the members' weights put into a copy of the network."""
    probabilities = 0
    for member in range(members):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for name, value in other.named_parameters():
                if name in logs:
                    factor = logs[name].exp().view(-1, *[1] * (value.ndim - 1))
                    value += sigma * factor * Noise().draw(name, FIRST_DRAW + member, value)
            probabilities = probabilities + other(inputs).softmax(dim=1) / members
    tempered = (probabilities.log() / math.exp(log_temperature)).log_softmax(dim=1)
    return float(tempered.gather(1, labels[:, None]).sum())


@pytest.mark.parametrize(
    ("network", "per", "hold"),
    [
        (networks.mlp, "layer", False),
        (networks.mlp, "filter", True),
        (networks.cnn, "layer", True),
        (networks.cnn, "filter", False),
    ],
)
def test_the_gradient_is_that_of_finite_differences_with_the_same_noise(network, per, hold):
    model = network(0, torch.float64)
    inputs, labels = networks.items(20, (6,) if network is networks.mlp else (1, 6, 6), dtype=torch.float64)
    request = request_of(model, (inputs, labels))
    logs = {
        name: torch.linspace(-0.3, 0.4, len(value) if per == "filter" else 1, dtype=torch.float64).requires_grad_()
        for name, value in request.perturbation.center.items()
    }
    log_temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    batches = [(inputs[:13], labels[:13], torch.ones(13)), (inputs[13:], labels[13:], torch.ones(7))]
    value = minibatch_log_likelihood(request, Shells(model), 0.2, logs, log_temperature, 0, batches, hold)
    gradients = torch.autograd.grad(value, [*logs.values(), log_temperature])

    def at(name, k, step):
        moved = {key: log.detach().clone() for key, log in logs.items()}
        if name is not None:
            moved[name][k] += step
        return by_hand(model, inputs, labels, 0.2, moved, 0.3 + (step if name is None else 0), 2 * PAIRS)

    assert value.item() == pytest.approx(at(None, 0, 0.0), rel=1e-9)
    for name, gradient in zip([*logs, None], gradients, strict=True):
        for k, slope in enumerate(gradient.flatten().tolist()):
            assert slope == pytest.approx((at(name, k, 1e-6) - at(name, k, -1e-6)) / 2e-6, rel=1e-5, abs=1e-7)


class Uneven(nn.Module):
    """Two layers that reach the same logits: `sharp` by small weights on large inputs, `dull` the other way round."""

    def __init__(self):
        super().__init__()
        self.sharp, self.dull = nn.Linear(6, 3, bias=False), nn.Linear(6, 3, bias=False)

    def forward(self, inputs):
        return self.sharp(30 * inputs) + self.dull(inputs / 30)


def uneven():
    """The network with random weights, too sure of itself, and 600 items whose labels are drawn from softer logits."""
    model = networks.seeded(Uneven)
    with torch.no_grad():
        model.sharp.weight.copy_(torch.randn(3, 6, generator=torch.Generator().manual_seed(1)) / 15)
    inputs, _ = networks.items(600)
    odds = (model(inputs) / 2).softmax(dim=1).detach()
    return model, (inputs, torch.multinomial(odds, 1, generator=torch.Generator().manual_seed(2)).squeeze(1))


@pytest.mark.slow
@pytest.mark.parametrize("joint", [False, True])
def test_an_array_that_cannot_bear_noise_gets_less_than_one_that_can(joint):
    """Noise on `sharp` moves the logits 900 times as much; too much of it at the start, and hardly any on `dull`."""
    model, data = uneven()
    scales, _ = fit_scales(request_of(model, data), 0.2, 1.0 if joint else None)
    factors = {name: factor for name, (factor,) in scales}
    assert factors["sharp.weight"] < 0.5
    assert factors["dull.weight"] > 2 * factors["sharp.weight"]


def test_each_filter_can_have_its_own_sigma():
    model, data = uneven()
    scales, _ = fit_scales(request_of(model, data), 0.2, 1.0, "filter", steps=10)
    assert {name: len(factors) for name, factors in scales} == {"sharp.weight": 3, "dull.weight": 3}
    noise = Noise(scales=scales)
    members = [pm.PepEnsemble.at_sigma(model, 0.2, size=4, noise=noise, engine=engine) for engine in ("loop", "vmap")]
    assert torch.allclose(*(member(data[0][:5]) for member in members), atol=1e-5)


def test_the_same_seed_gives_the_same_scales_however_the_data_are_batched():
    model, data = uneven()
    loader = DataLoader(TensorDataset(*data), batch_size=77)
    found = [fit_scales(request_of(model, given), 0.1, 1.5, steps=6)[0] for given in (data, data, loader)]
    assert found[0] == found[1]
    for (_, (factor,)), (_, (other,)) in zip(found[0], found[2], strict=True):
        assert other == pytest.approx(factor, rel=2e-3)  # half precision, and sums in another order
    assert fit_scales(request_of(model, data, seed=1), 0.1, 1.5, steps=6)[0] != found[0]


@pytest.mark.parametrize("network", [networks.mlp, networks.Tied, lambda: networks.Wrapped("object")])
def test_the_network_is_left_as_it_was_and_so_are_the_global_generators(network):
    model = networks.seeded(network)
    before, state = networks.snapshot(model), torch.get_rng_state()
    with torch.no_grad():  # as a careful user may call it
        fit_scales(request_of(model, networks.items(30)), 0.1, 1.0, steps=3)
    networks.assert_untouched(model, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("count", [40, 700])
def test_the_price_is_the_forward_passes_that_were_made_and_two_for_each_backward_pass(count):
    model, ticks = networks.mlp(), []
    request = replace(request_of(model, networks.items(count), batch_size=30), tick=ticks.append)
    _, price = fit_scales(request, 0.1, 1.0, steps=5)
    assert price == pytest.approx(sum(ticks) / count, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "outputs", "labels"),
    [
        (pm.likelihood.Bernoulli(), 2, lambda y: torch.stack([y > 0, y > 1], dim=1).float()),
        (pm.likelihood.Gaussian(), 2, lambda y: y.float()),
        (pm.Categorical(ignored_label=2), 3, lambda y: y),
    ],
)
def test_other_likelihoods_gain_as_well(likelihood, outputs, labels):
    """With new noise, and averaged over ensembles of the size of a step: better than the start, which had too much."""
    model, (inputs, classes) = networks.mlp(classes=outputs), networks.items(600)
    targets = labels(classes)
    scales, _ = fit_scales(request_of(model, (inputs, targets), likelihood), 3.0, None, steps=40)
    values = []
    for chosen in ((), scales):
        noises = [Noise(seed=seed, scales=chosen) for seed in range(5, 15)]
        options = {"size": 2 * PAIRS, "likelihood": likelihood, "engine": "loop"}
        peps = [pm.PepEnsemble.at_sigma(model, 3.0, noise=noise, **options) for noise in noises]
        values.append(sum(float(pm.predict(pep, (inputs, targets)).log_likelihoods.sum()) for pep in peps))
    assert values[1] > values[0]


def test_a_network_that_cannot_be_differentiated_is_refused():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = networks.mlp()

        @torch.no_grad()
        def forward(self, inputs):
            return self.inner(inputs)

    with pytest.raises(
        ValueError, match="this Frozen cannot be differentiated with respect to its weights, which `scale` needs"
    ):
        fit_scales(request_of(Frozen().eval(), networks.items(20)), 0.1)


@pytest.mark.parametrize(("factors", "method"), [((1.5,), "PEP by layer"), ((1.0,) * 24, "PEP by filter")])
def test_noise_by_layer_and_by_filter_have_names(factors, method):
    noise = Noise(scales=(("0.weight", factors), ("2.weight", (2.0,)), ("4.weight", (2.0,))))
    assert pm.PepEnsemble.at_sigma(networks.mlp(), 0.1, noise=noise).method == method


def test_an_unknown_scale_is_refused_before_the_data_are_read():
    with pytest.raises(ValueError, match=r'`scale=\'neuron\'` is unknown: choose "layer" or "filter"'):
        pm.fit(networks.mlp(), None, scale="neuron")


@pytest.mark.slow
def test_fit_with_scales_is_better_on_the_validation_data_and_pays_for_all_it_did(tmp_path):
    model, data, _ = networks.overfitted()
    shared, pep = (pm.fit(model, data, size=4, scale=scale) for scale in (None, "layer"))
    assert pep.search.gain > shared.search.gain
    assert pep.search.passes > shared.search.passes + 100
    assert [len(factors) for _, factors in pep.recipe.noise.scales] == [1, 1, 1]
    pep.save(tmp_path / "pep.json")
    again = pm.load(tmp_path / "pep.json", model)
    assert again.recipe.noise == pep.recipe.noise
    assert torch.equal(again(data[0][:9]), pep(data[0][:9]))


@pytest.mark.parametrize(("engine", "products"), [("loop", torch.float32), ("loop:float16", torch.bfloat16)])
def test_gradients_are_taken_in_low_precision_if_the_engine_computes_in_it(engine, products):
    """Eight bits suffice: the factors of sigma differ by a few percent."""
    model, data = networks.mlp(0), networks.items(600, (6,))
    expected, _ = fit_scales(request_of(model, data), 0.2, 1.0, steps=20)
    seen = set()
    model[0].register_forward_hook(
        lambda layer, inputs, output: seen.add(output.dtype) if output.requires_grad else None
    )
    found, _ = fit_scales(replace(request_of(model, data), engine=engine_named(engine)), 0.2, 1.0, steps=20)
    assert seen == {products}
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert other == pytest.approx(one, rel=0.05)
    assert (found == expected) == (engine == "loop")
