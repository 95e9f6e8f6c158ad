from __future__ import annotations

import copy
import math
import pickle
import random
import warnings

import networks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm
from peppermill import parameters
from peppermill.calibrators.temperature import Temperature
from peppermill.noise import Noise
from peppermill.recipe import Recipe, fingerprint
from peppermill.tuning.result import Evaluation, SigmaSearch


def ensemble(model, sigma=0.3, size=4, rule="kernels", likelihood=None, temperature=1.0, **noise):
    """An ensemble at a sigma of our choice, without a search."""
    search = SigmaSearch((Evaluation(0.0, -2.0, 1.0, -2.0), Evaluation(sigma, -1.0, 1.0, -1.0)), 0.0, 1.0, 10, False)
    selected = tuple(parameters.select(model, rule))
    likelihood = likelihood or pm.Categorical()
    name = parameters.rule_name(rule)
    recipe = Recipe(
        sigma, size, Noise(**noise), name, selected, likelihood, Temperature(temperature), search, fingerprint(model)
    )
    return pm.PepEnsemble(model, recipe)


@torch.no_grad()
def copied_outputs(pep, inputs):
    """Every member's outputs, from deep copies of the network with noise added to their weights."""
    outputs = []
    for j in range(pep.size):
        member = copy.deepcopy(pep.model)
        for name, value in member.named_parameters():
            if name in pep.recipe.selected:
                value += pep.sigma * pep.recipe.noise.draw(name, j, value).to(value.dtype)
        outputs.append(member(inputs))
    return torch.stack(outputs)


def quietly(action, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        return action(*args, **options)


# Eq. 9


def test_probabilities_come_without_a_graph_and_outputs_with_one():
    """`predict_proba(x).numpy()` works; whoever wants gradients calls the ensemble itself."""
    pep, (inputs, _) = ensemble(networks.mlp()), networks.items()
    np.testing.assert_allclose(pep.predict_proba(inputs).numpy(), pep(inputs).detach().exp(), atol=1e-6)
    assert not pep.predict_proba(inputs.requires_grad_()).requires_grad
    pep(inputs)[:, 0].sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in (inputs, pep.model[0].weight))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_forward_is_the_log_of_the_averaged_probability(temperature):
    """Averaged first, then tempered: the other order is another prediction."""
    model, (inputs, _) = networks.cnn(dtype=torch.float64), networks.items(8, (1, 6, 6), dtype=torch.float64)
    pep = ensemble(model, temperature=temperature)
    averaged = copied_outputs(pep, inputs).softmax(dim=-1).mean(dim=0)
    powered = averaged ** (1 / temperature)
    expected = powered / powered.sum(dim=1, keepdim=True)
    torch.testing.assert_close(pep(inputs).exp(), expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(pep.predict_proba(inputs), expected, rtol=1e-10, atol=1e-14)


def test_outputs_are_normalised_and_stay_right_downstream(mlp, data):
    inputs, labels = data
    pep = ensemble(mlp, sigma=1.0, temperature=1.7)
    log_probs = pep(inputs).detach()
    assert torch.allclose(log_probs.logsumexp(dim=1), torch.zeros(20), atol=1e-6)
    assert torch.allclose(log_probs.softmax(dim=1), pep.predict_proba(inputs), atol=1e-6)
    of_label = pep.predict_proba(inputs).detach()[torch.arange(20), labels]
    torch.testing.assert_close(functional.cross_entropy(log_probs, labels), -of_label.log().mean())


def test_member_log_probs_are_those_of_the_members(mlp, data):
    pep = ensemble(mlp, temperature=3.0)
    expected = copied_outputs(pep, data[0]).log_softmax(dim=-1)
    found = pep.member_log_probs(data[0])
    assert found.shape == (4, 20, 3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sigma", [-0.1, float("nan"), float("inf")])
def test_a_sigma_that_is_no_size_of_noise_is_refused(mlp, sigma):
    with pytest.raises(ValueError, match=r"`sigma=.*` must be a size of noise, zero or positive, and finite"):
        pm.PepEnsemble.at_sigma(mlp, sigma)
    with pytest.raises(ValueError, match=r"`sigma=.*` must be a size of noise, zero or positive, and finite"):
        pm.PepEnsemble.at_sigma(mlp, 0.1).with_sigma(sigma)


def test_at_sigma_zero_every_member_is_the_network(mlp, data):
    found = ensemble(mlp, sigma=0.0).member_log_probs(data[0])
    assert torch.equal(found, mlp(data[0]).log_softmax(dim=1).expand(4, 20, 3))


@given(
    kind=st.sampled_from(["dense", "convolutional"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    size=st.integers(1, 5),
    seed=st.integers(0, 99),
    items=st.integers(1, 12),
)
def test_an_ensemble_at_sigma_zero_is_the_network_bit_for_bit(kind, dtype, size, seed, items):
    build, shape = (networks.mlp, (6,)) if kind == "dense" else (networks.cnn, (1, 6, 6))
    model, data = build(seed, dtype), networks.items(items, shape, seed, dtype)
    pep = ensemble(model, sigma=0.0, size=size)
    assert torch.equal(pep(data[0]), model(data[0]).log_softmax(dim=1))
    found, plain = pm.predict(pep, data), pm.predict(model, data)
    assert torch.equal(found.log_probs, plain.log_probs)
    assert torch.equal(found.log_likelihoods, plain.log_likelihoods)


@given(
    batch_size=st.integers(1, 23),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    law=st.sampled_from(["gaussian", "uniform"]),
)
def test_one_batch_after_another_gives_what_all_at_once_gives(batch_size, dtype, law):
    model, (inputs, labels) = networks.mlp(dtype=dtype), networks.items(23, dtype=dtype)
    pep = ensemble(model, law=law)
    parts = torch.cat([pep(part) for part in inputs.split(batch_size)])
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-13}
    torch.testing.assert_close(parts, pep(inputs), **tolerance)
    torch.testing.assert_close(pep.predict_items((inputs, labels)).log_probs, pep(inputs).double(), **tolerance)


@pytest.mark.parametrize(
    ("likelihood", "build", "shape"),
    [
        (pm.Categorical(), lambda: nn.Conv2d(2, 3, 3), (2, 5, 5)),
        (pm.Categorical(class_dimension=-1), lambda: nn.Linear(2, 3), (4, 2)),
    ],
)
def test_outputs_have_the_layout_of_the_network(likelihood, build, shape):
    model = networks.seeded(build, dtype=torch.float64)
    inputs, _ = networks.items(3, shape, dtype=torch.float64)
    pep, dimension = ensemble(model, likelihood=likelihood), likelihood.class_dimension
    expected = copied_outputs(pep, inputs).movedim(0, -1).softmax(dim=dimension if dimension > 0 else -2).mean(dim=-1)
    torch.testing.assert_close(pep.predict_proba(inputs), expected, rtol=1e-10, atol=1e-14)
    assert pep.member_log_probs(inputs).shape == (4, *model(inputs).shape)


def test_a_yes_or_no_ensemble_gives_logits_and_the_probability_of_yes():
    model = networks.mlp(dtype=torch.float64)
    inputs, _ = networks.items(7, dtype=torch.float64)
    pep = ensemble(model, likelihood=pm.Bernoulli())
    expected = copied_outputs(pep, inputs).sigmoid().mean(dim=0)
    torch.testing.assert_close(pep.predict_proba(inputs), expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(pep(inputs), expected.logit(), rtol=1e-10, atol=1e-12)


def test_a_regression_gives_mean_and_log_variance_and_no_probabilities():
    model = networks.mlp(classes=2, dtype=torch.float64)
    inputs, _ = networks.items(7, dtype=torch.float64)
    pep = ensemble(model, likelihood=pm.Gaussian())
    outputs = copied_outputs(pep, inputs)
    torch.testing.assert_close(pep(inputs)[:, 0], outputs[..., 0].mean(dim=0), rtol=1e-12, atol=1e-14)
    with pytest.raises(TypeError, match="a regression has no class probabilities: call the ensemble itself"):
        pep.predict_proba(inputs)


def test_inputs_may_be_positional_or_named(two_inputs, data):
    pep, inputs = ensemble(two_inputs), data[0]
    expected = pep(inputs, inputs + 1)
    assert torch.equal(pep(left=inputs, right=inputs + 1), expected)
    assert torch.equal(pep(inputs, right=inputs + 1), expected)
    assert pep.predict_proba(right=inputs + 1, left=inputs).shape == (20, 3)
    assert pep.member_log_probs(inputs, inputs + 1).shape == (4, 20, 3)


def test_it_works_with_and_without_gradients(mlp, data):
    pep, inputs = ensemble(mlp), data[0].clone().requires_grad_()
    with torch.no_grad():
        plain = pep(inputs)
    with torch.inference_mode():
        assert torch.equal(pep(inputs), plain)
    torch.testing.assert_close(pep(inputs).detach(), plain)
    assert not plain.requires_grad
    pep(inputs).sum().backward()
    assert inputs.grad is not None
    assert all(value.grad is not None for value in mlp.parameters())


# In place of the network


def test_the_network_is_held_and_not_copied(mlp):
    pep = ensemble(mlp)
    assert pep.model is mlp
    assert {id(p) for p in pep.parameters()} == {id(p) for p in mlp.parameters()}
    assert not pep.training
    assert "sigma=0.3, size=4, temperature=1, seed=0" in repr(pep)


def test_an_ensemble_in_training_mode_is_refused(mlp, data):
    pep = ensemble(mlp).train()
    for action in (pep, pep.predict_proba, pep.member_log_probs):
        with pytest.raises(ValueError, match="in training mode"):
            action(data[0])
    assert torch.equal(pep.eval()(data[0]), ensemble(mlp)(data[0]))


def test_an_ensemble_can_be_copied_and_pickled(mlp, data):
    pep = ensemble(mlp, temperature=1.5)
    for again in (copy.deepcopy(pep), pickle.loads(pickle.dumps(pep))):
        assert again.recipe == pep.recipe
        assert again.model is not mlp
        assert torch.equal(again(data[0]), pep(data[0]))


# Fit


def test_fit_finds_noise_that_helps_on_data_it_has_not_seen(overfitted):
    model, validation, test = overfitted
    pep = pm.fit(model, validation)
    assert pep.sigma > 0
    assert pep.sigma == pep.search.best.sigma
    assert (pep.size, pep.seed, pep.temperature) == (10, 0, 1.0)
    nll = [float(-pm.predict(p, test).log_likelihoods.mean()) for p in (model, pep)]
    assert nll[1] < nll[0]
    found = float(pm.predict(pep, validation).log_likelihoods.sum())
    assert found == pytest.approx(pep.search.best.log_likelihood, rel=1e-12)


def test_every_option_reaches_the_ensemble(overfitted):
    model, validation, _ = overfitted
    options = {"parameters": "last_layer", "size": 3, "noise": pm.Noise("uniform", antithetic=False, seed=9)}
    pep = quietly(
        pm.fit, model, validation, **options, search=pm.Golden(lower=0.01, upper=0.5, iterations=3), temperature=True
    )
    assert pep.recipe.selected == ("4.weight",)
    assert pep.recipe.noise == Noise("uniform", antithetic=False, seed=9)
    assert (pep.size, pep.seed, pep.recipe.rule) == (3, 9, "last_layer")
    assert all(sigma == 0 or 0.01 <= sigma <= 0.5 for sigma, _ in pep.search.points)
    assert pep.temperature == pep.search.best.temperature != 1


def test_fit_is_the_same_every_time_and_another_with_another_seed(overfitted):
    model, validation, _ = overfitted
    first, again, other = (pm.fit(model, validation, noise=pm.Noise(seed=seed), size=4) for seed in (0, 0, 1))
    assert first.recipe == again.recipe
    assert first.search.points[1:] != other.search.points[1:]


@settings(max_examples=8)
@given(batch_size=st.integers(1, 400), as_loader=st.booleans())
def test_the_batches_of_the_validation_data_do_not_matter(overfitted, batch_size, as_loader):
    model, (inputs, labels), _ = overfitted
    model, data = copy.deepcopy(model).double(), (inputs[:60].double(), labels[:60])
    loader = DataLoader(TensorDataset(*data), batch_size=batch_size)
    found = pm.fit(model, loader if as_loader else data, size=2, search=pm.Golden(iterations=3), batch_size=batch_size)
    whole = pm.fit(model, data, size=2, search=pm.Golden(iterations=3))
    assert found.sigma == whole.sigma
    assert [value for _, value in found.search.points] == pytest.approx(
        [value for _, value in whole.search.points], rel=1e-11
    )


@pytest.mark.parametrize("temperature", [False, True])
def test_fit_takes_dicts_and_tuples(two_inputs, data, temperature):
    inputs, labels = data
    as_tuple = quietly(pm.fit, two_inputs, ((inputs, inputs + 1), labels), size=2, temperature=temperature)
    as_dict = quietly(
        pm.fit, two_inputs, [{"left": inputs, "right": inputs + 1, "labels": labels}], size=2, temperature=temperature
    )
    assert as_dict.recipe == as_tuple.recipe


def test_fit_survives_members_that_break_down(overfitted):
    model, validation, _ = overfitted
    pep = quietly(pm.fit, model, validation, size=4, search=pm.Golden(upper=1e14, iterations=75))
    values = [value for _, value in pep.search.points]
    assert values.count(-math.inf) > 1
    assert pep.search.best.log_likelihood == max(values) > pep.search.baseline.log_likelihood
    assert bool(pep(validation[0]).isfinite().all())


def test_a_head_of_zeros_can_be_perturbed(data):
    """Its weights give no scale to start from; at sigma = 0 it has but its bias, whose likelihood is had by hand."""
    model, labels = networks.mlp(), data[1]
    nn.init.zeros_(model[2].weight)
    pep = quietly(pm.fit, model, data, parameters="last_layer", size=2)
    by_bias = float(model[2].bias.detach().double().log_softmax(0)[labels].sum())
    assert pep.search.baseline.log_likelihood == pytest.approx(by_bias, rel=1e-6)
    tried = {sigma: value for sigma, value in pep.search.points if sigma > 0}
    assert len(set(tried.values())) == len(tried) > 5
    assert tried[max(tried)] < pep.search.best.log_likelihood  # the search went on until noise did harm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_network_works_and_is_told_what_that_means(overfitted, dtype, tmp_path):
    model, validation, _ = overfitted
    half = copy.deepcopy(model).to(dtype)
    with pytest.warns(
        pm.PepWarning, match=rf"the weights are {dtype}, .* noise is drawn and added in float32"
    ) as record:
        pep = pm.fit(half, validation, size=4)
    assert record[0].filename == __file__
    assert pep.sigma > 0
    assert pep(validation[0].to(dtype)).dtype == torch.float32
    pep.save(tmp_path / "pep.json")
    assert torch.equal(pm.load(tmp_path / "pep.json", half)(validation[0].to(dtype)), pep(validation[0].to(dtype)))
    assert pep.sigma == pytest.approx(pm.fit(model, validation, size=4).sigma, rel=0.3)


def test_no_global_generator_is_touched(overfitted):
    model, validation, _ = overfitted
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    pep = pm.fit(model, DataLoader(TensorDataset(*validation), batch_size=100), size=2)
    pep(validation[0])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


# The user's network


@pytest.mark.parametrize("frozen", [False, True])
def test_everything_leaves_the_network_untouched(cnn, images, tmp_path, frozen):
    cnn.requires_grad_(not frozen)
    before = networks.snapshot(cnn)
    pep = quietly(pm.fit, cnn, images, parameters="all", size=3, temperature=True)
    pep(images[0])
    pep.predict_proba(images[0])
    pep.member_log_probs(images[0])
    pm.predict(pep, images)
    quietly(pm.fit_temperature, pep, images)
    pep.save(tmp_path / "pep.json")
    pm.load(tmp_path / "pep.json", cnn)(images[0])
    networks.assert_untouched(cnn, before)


@settings(max_examples=15)
@given(calls=st.integers(0, 25), interrupt=st.booleans(), rule=st.sampled_from(["kernels", "all"]))
def test_a_fit_that_is_broken_off_leaves_the_network_untouched(calls, interrupt, rule):
    """Ctrl-C or an error at any forward pass of a fit: 20 items in 3 batches, 2 members."""
    error = KeyboardInterrupt() if interrupt else RuntimeError("out of memory")
    model = networks.Interrupted(networks.cnn(), calls, error).eval()
    before = networks.snapshot(model)
    with pytest.raises(type(error)):
        pm.fit(model, networks.items(shape=(1, 6, 6)), parameters=rule, size=2, batch_size=8, engine="loop")
    networks.assert_untouched(model, before)


@pytest.mark.parametrize(
    ("change", "options", "error", "text"),
    [
        (lambda m, x, y: (m.train(), x, y), {}, ValueError, r"in training mode: call `model\.eval\(\)` first"),
        (lambda m, x, y: (nn.Sequential(m, nn.Softmax(1)).eval(), x, y), {}, ValueError, "look like probabilities"),
        (lambda m, x, y: (m, x, y + 1), {}, ValueError, r"labels run from 1 to 3, but the network has 3 classes"),
        (lambda m, x, y: (m, x, y.float()), {}, TypeError, r"labels have type torch\.float32, but class numbers"),
        (lambda m, x, y: (m, x[:0], y[:0]), {}, ValueError, "`validation` has no items"),
        (lambda m, x, y: (m, x, y[:-1]), {}, ValueError, "`validation` has 20 inputs and 19 labels"),
        (
            lambda m, x, y: (m, x * torch.nan, y),
            {},
            ValueError,
            "the network itself, without any noise, gives outputs that",
        ),
        (
            lambda m, x, y: (m, x * torch.inf, y),
            {},
            ValueError,
            "the network itself, without any noise, gives outputs that",
        ),
        (lambda m, x, y: (m, x, y * 0 - 100), {}, ValueError, "`validation` has no item that counts"),
        (
            lambda m, x, y: (m, x, y),
            {"size": 0},
            ValueError,
            "`size=0` must be a whole number of members, 1 to 1,000,000",
        ),
        (
            lambda m, x, y: (m, x, y),
            {"lower": 2.0, "upper": 1.0},
            ValueError,
            r"`lower=2\.0` must be below `upper=1\.0`",
        ),
        (
            lambda m, x, y: (m, x, y),
            {"iterations": 0},
            ValueError,
            "`iterations=0` must be at least 1",
        ),
        (
            lambda m, x, y: (pm.PepEnsemble.at_sigma(m, 0.1), x, y),
            {},
            TypeError,
            "`model` is an ensemble, which is perturbed already: pass its network, `pep.model`",
        ),
        (lambda m, x, y: (m, x, y), {"parameters": "conv"}, ValueError, "`parameters='conv'` selects nothing"),
        (lambda m, x, y: (m, x, y), {"parameters": "["}, ValueError, "nor a regular expression"),
        (lambda m, x, y: (m, x, y), {"noise": "pink"}, ValueError, "`noise='pink'` is unknown"),
        (lambda m, x, y: (m, x, y), {"seed": 0.5}, TypeError, r"`seed=0\.5` must be a whole number"),
        (lambda m, x, y: (m, x, y), {"likelihood": "poisson"}, ValueError, "`likelihood='poisson'` is unknown"),
        (lambda m, x, y: (m, x, y), {"likelihood": "gaussian", "temperature": True}, ValueError, "is for classifiers"),
    ],
)
def test_misuse_gets_a_clear_message_and_leaves_the_network_untouched(mlp, data, change, options, error, text):
    model, inputs, labels = change(mlp, *data)
    before = networks.snapshot(model)
    with pytest.raises(error, match=text):
        pm.fit(model, (inputs, labels), **options)
    networks.assert_untouched(model, before)


def test_shuffled_validation_data_are_refused(mlp, data):
    with pytest.raises(ValueError, match=r"`validation` changes between two passes: it is shuffled"):
        pm.fit(mlp, DataLoader(TensorDataset(*data), batch_size=4, shuffle=True))


# Save and load


@settings(max_examples=30)
@given(
    sigma=st.floats(0, 5),
    size=st.integers(1, 4),
    seed=st.integers(-5, 2**40),
    law=st.sampled_from(["gaussian", "uniform"]),
    antithetic=st.booleans(),
    temperature=st.floats(0.1, 9),
    rule=st.sampled_from(["kernels", "all", "last_layer", "bias", lambda name, value: value.ndim == 1]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    likelihood=st.sampled_from([pm.Categorical(), pm.Categorical(-1, 255), pm.Bernoulli()]),
)
def test_save_load_predict_is_the_identity(
    tmp_path_factory, sigma, size, seed, law, antithetic, temperature, rule, dtype, likelihood
):
    model, (inputs, _) = networks.mlp(seed % 7, dtype), networks.items(5, dtype=dtype)
    pep = ensemble(model, sigma, size, rule, likelihood, temperature, law=law, antithetic=antithetic, seed=seed)
    path = tmp_path_factory.mktemp("saved") / "pep.json"
    pep.save(path)
    again = pm.load(path, copy.deepcopy(model))
    assert again.recipe == pep.recipe
    assert torch.equal(again(inputs), pep(inputs))
    assert torch.equal(again.member_log_probs(inputs), pep.member_log_probs(inputs))


def test_a_fitted_ensemble_comes_back_with_its_search(overfitted, tmp_path):
    model, validation, test = overfitted
    pep = pm.fit(model, validation, temperature=True)
    pep.save(tmp_path / "pep.json")
    again = pm.load(tmp_path / "pep.json", model)
    assert torch.equal(again(test[0]), pep(test[0]))
    assert [s for s, _ in again.search.points] == [s for s, _ in pep.search.points]
    assert again.search.gain == pytest.approx(pep.search.gain, rel=1e-8)
    assert again.search.best.sigma == pep.sigma


def test_a_long_search_is_saved_in_four_kilobytes(overfitted, tmp_path):
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, size=2, search=pm.Golden(iterations=60), temperature=True)
    pep.save(tmp_path / "pep.json")
    assert len(pep.search.points) > 60
    assert (tmp_path / "pep.json").stat().st_size <= 4000
    again = pm.load(tmp_path / "pep.json", model)
    assert again.sigma == pep.sigma
    assert again.search.baseline.log_likelihood == pytest.approx(pep.search.baseline.log_likelihood)


def test_a_selection_by_function_survives(mlp, data, tmp_path):
    """The function itself is not saved; what it selected is."""
    pep = quietly(pm.fit, mlp, data, parameters=lambda name, value: name in ("0.bias", "2.weight"), size=2)
    pep.save(tmp_path / "pep.json")
    again = pm.load(tmp_path / "pep.json", mlp)
    assert again.recipe.selected == ("0.bias", "2.weight")
    assert again.recipe.rule.startswith("function ")


def test_tied_weights_survive(tied, data, tmp_path):
    pep = ensemble(tied)
    pep.save(tmp_path / "pep.json")
    again = pm.load(tmp_path / "pep.json", networks.seeded(networks.Tied))
    assert torch.equal(again(data[0]), pep(data[0]))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (networks.mlp, "this Sequential differs, it has 4 arrays with 83 numbers, the saved one has 16 with 421"),
        (lambda: nn.Sequential(networks.cnn()), "its arrays have other names or shapes: another architecture"),
        (lambda: networks.cnn().double(), "its numbers are float64,int64, the saved one's are float32,int64"),
        (lambda: networks.cnn(seed=1), "its parameters have other values: it was trained further"),
    ],
)
def test_other_weights_are_refused_and_told_what_differs(cnn, tmp_path, other, text):
    ensemble(cnn).save(tmp_path / "pep.json")
    with pytest.raises(ValueError, match=rf"pep\.json was fitted on another network: .*{text}"):
        pm.load(tmp_path / "pep.json", other())


def test_batch_norm_statistics_are_part_of_the_network(cnn, images, tmp_path):
    ensemble(cnn).save(tmp_path / "pep.json")
    cnn.train()(images[0])
    with pytest.raises(
        ValueError, match=r"its parameters are the same, but its buffers \(batch-norm statistics, say\) have"
    ):
        pm.load(tmp_path / "pep.json", cnn.eval())


def test_a_network_that_was_trained_further_is_not_saved(mlp, tmp_path):
    pep = ensemble(mlp)
    with torch.no_grad():
        mlp[0].bias += 0.1
    with pytest.raises(
        ValueError, match=r"the network is not the one that was fitted \(its parameters have other values"
    ):
        pep.save(tmp_path / "pep.json")
    assert not (tmp_path / "pep.json").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"format": "peppermill ensemble", "ver', r"is not JSON \(line 1\): it is truncated or corrupted"),
        ('{"sigma": 0.1}', "is not a peppermill ensemble: it was written by another tool"),
        ('{"format": "peppermill ensemble", "version": 3}', "has version 3, and this library reads up to 2: install a"),
        ('{"format": "peppermill ensemble", "version": 1}', r"is damaged \(sigma is None\)"),
    ],
)
def test_a_file_that_is_no_saved_ensemble_is_refused(mlp, tmp_path, content, text):
    (tmp_path / "pep.json").write_text(content)
    with pytest.raises(ValueError, match=rf"pep\.json {text}"):
        pm.load(tmp_path / "pep.json", mlp)
