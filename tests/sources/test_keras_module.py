"""Keras models on the torch backend in place of a network: the adapter, and the public functions through it."""

import copy
import math

import keras
import numpy as np
import pytest
import torch
from networks import assert_untouched, snapshot
from torch import nn

import peppermill as pm
from peppermill.engines.network_shell import shell_of
from peppermill.parameters import names, select
from peppermill.plumbing.networks import as_network

pytestmark = pytest.mark.slow  # importing Keras takes seconds

layers = keras.layers


def keras_cnn(activation=None):
    """[batch, 6, 6, 1] -> [batch, 3], fresh from Keras: nobody has called `eval()`."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, name="first"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(3, activation=activation, name="classes"),
        ],
        name="network",  # noise depends on names, and Keras would number this one
    )


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalize = layers.Normalization()
        self.hidden, self.norm, self.head = layers.Dense(5), layers.BatchNormalization(), layers.Dense(3)
        self.normalize.adapt(np.ones((4, 6)) * 3.0 + np.eye(4, 6))

    def call(self, x):
        return self.head(self.norm(self.hidden(self.normalize(x))))


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(3)

    def call(self, x):
        return self.head(x)


def subclassed():
    model = Subclassed()
    model(torch.zeros(1, 6))
    return model


def deep():
    """Twelve dense layers, whose names the alphabet puts into another order: dense_10 before dense_2."""
    return keras.Sequential([keras.Input((4,)), *[layers.Dense(4, name=f"dense_{k}") for k in range(12)]])


def nested():
    """A model inside a model, the kernels of the inner one between two of the outer one."""
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(5, name="a2"), layers.Dense(4, name="a1")], name="inner")
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, name="z"), inner, layers.Dense(3, name="b")])


def words():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(7, 4, name="words"),
            layers.SpectralNormalization(layers.Dense(4, name="inside")),
            layers.Conv1D(4, 2, name="token_mixer"),
            layers.LayerNormalization(name="norm"),
            layers.LSTM(3, name="recurrence"),
            layers.Dense(2, name="position_free"),
        ]
    )


def in_torch():
    """Keras between two layers of torch."""
    return nn.Sequential(nn.Linear(6, 4), deep(), nn.Linear(4, 3))


def last_names(model, rule):
    return ["/".join(name.split(".")[-1].split("/")[-2:]) for name in select(as_network(model), rule)]


@pytest.mark.parametrize(
    ("build", "rule", "expected"),
    [
        (keras_cnn, "kernels", ["first/kernel", "classes/kernel"]),
        (keras_cnn, "conv", ["first/kernel"]),
        (keras_cnn, "last_layer", ["classes/kernel"]),
        (
            keras_cnn,
            "all",
            ["first/kernel", "first/bias", "norm/gamma", "norm/beta", "classes/kernel", "classes/bias"],
        ),
        (keras_cnn, ".", ["first/kernel", "first/bias", "norm/gamma", "norm/beta", "classes/kernel", "classes/bias"]),
        (keras_cnn, lambda name, value: "norm" in name, ["norm/gamma", "norm/beta"]),
        (deep, "kernels", [f"dense_{k}/kernel" for k in range(12)]),
        (deep, "last_layer", ["dense_11/kernel"]),
        (nested, "kernels", ["z/kernel", "a2/kernel", "a1/kernel", "b/kernel"]),
        (
            words,
            "kernels",
            [
                "inside/kernel",
                "token_mixer/kernel",
                "lstm_cell/kernel",
                "lstm_cell/recurrent_kernel",
                "position_free/kernel",
            ],
        ),
        (words, "conv", ["token_mixer/kernel"]),
        (in_torch, "kernels", ["weight", *(f"dense_{k}/kernel" for k in range(12)), "weight"]),
    ],
)
def test_a_rule_selects_in_a_keras_model_what_it_says(build, rule, expected):
    assert last_names(build(), rule) == expected


@pytest.mark.parametrize("build", [keras_cnn, subclassed, words])
def test_what_keras_itself_calls_untrainable_is_never_selected(build):
    model = build()
    state = {variable.path for variable in model.non_trainable_variables}
    assert state, "there is nothing to leave alone"
    assert not any(path in name for path in state for name in select(as_network(model), "all"))
    assert len(names(as_network(model))) == len(model.trainable_variables)


def test_frozen_kernels_are_selected_like_others_and_frozen_statistics_are_not():
    model, before = keras_cnn(), names(as_network(keras_cnn()))
    model.trainable = False
    frozen = names(as_network(model))
    assert [name.split("/")[-2:] for name in frozen] == [name.split("/")[-2:] for name in before]
    assert not any("moving" in name for name in frozen)


@pytest.mark.parametrize("setting", ["parameters", "after training"])
def test_resnet50_has_53_convolution_kernels_and_no_batch_norm_array_among_the_selected(setting):
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=4, classifier_activation=None)
    if setting == "after training":
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.train_on_batch(np.zeros((2, 32, 32, 3)), np.zeros(2))
    model = as_network(model)
    assert len(select(model, "conv")) == 53
    assert len(select(model, "kernels")) == 54
    assert list(select(model, "last_layer")) == ["_torch_params.predictions/kernel"]
    assert not any("_bn/" in name for name in select(model, "kernels"))
    assert len(select(model, "all")) == 2 * 53 + 2 * 53 + 2  # kernels and biases, gammas and betas, the dense layer
    assert not any("moving" in name for name in names(model))


@pytest.mark.parametrize(
    ("build", "shape"), [(keras_cnn, (6, 6, 1)), (subclassed, (6,)), (nested, (6,)), (in_torch, (6,))]
)
def test_other_parameters_change_the_outputs_as_if_they_were_assigned(build, shape):
    """Against a copy into which Keras' own weights were written."""
    model, inputs = build().eval(), torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    own, network = dict(model.named_parameters()), as_network(model)
    params = {name: value + 0.3 for name, value in select(network, "kernels").items()}
    with torch.no_grad():
        before = model(inputs)
        assert torch.equal(network(inputs), before)
        outputs = torch.func.functional_call(shell_of(network), params, (inputs,))
        assert torch.equal(model(inputs), before)
        for name, value in params.items():
            own[name].copy_(value)
        assert torch.equal(model(inputs), outputs)
    assert not torch.allclose(outputs, before)


def test_the_loss_of_keras_has_its_gradient_through_the_call():
    model, inputs = keras_cnn(), torch.ones(2, 6, 6, 1)
    network = as_network(model)
    [name] = select(network, "last_layer")
    weight = select(network, "last_layer")[name].clone().requires_grad_()
    torch.func.functional_call(network, {name: weight}, (inputs,)).sum().backward()
    features = keras.Model(model.inputs, model.layers[-1].input)(inputs)
    torch.testing.assert_close(weight.grad, features.sum(dim=0)[:, None].expand(-1, 3).detach())


def test_the_local_analysis_of_a_keras_model_is_that_of_the_same_network_in_torch():
    """With a probe for every parameter it is exact, so that other names, and so other noise, do not matter."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
    same = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)).eval()
    with torch.no_grad():
        for part, layer in ((same[0], model.layers[0]), (same[2], model.layers[1])):
            part.weight.copy_(layer.kernel.value.T)
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(20, 6, generator=generator), torch.randint(3, (20,), generator=generator)
    a, b = (pm.local_analysis(network, data, probes=36) for network in (model, same))
    assert a.fisher_trace == pytest.approx(b.fisher_trace, rel=1e-5)
    assert a.laplacian == pytest.approx(b.laplacian, rel=1e-4)


@pytest.fixture
def images():
    """Labels drawn from the tempered predictions of `keras_cnn`, three times as sure of itself as it should be."""
    inputs = 6 * torch.randn(60, 6, 6, 1, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        probabilities = (keras_cnn()(inputs) / 3).softmax(dim=1)
    return inputs, torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(2))[:, 0]


def test_fit_takes_a_keras_model_as_it_is_and_leaves_it_so(images, tmp_path):
    model = keras_cnn()
    before = snapshot(model)
    pep = pm.fit(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*images), batch_size=16), size=4)
    assert pep.sigma > 0
    assert pep.search.gain > 0
    assert pm.compare(model, pep, images).nll.value < 0
    assert pm.evaluate(pm.fit_temperature(model, images), images).nll.value < pm.evaluate(model, images).nll.value
    pep.save(tmp_path / "pep.json")
    torch.testing.assert_close(pm.load(tmp_path / "pep.json", model)(images[0]), pep(images[0]))
    assert_untouched(model, before)


QUIET = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras beside numpy 2


def test_the_seeds_of_dropout_layers_do_not_make_another_network(images, tmp_path):
    """Keras draws them afresh whenever a model is made; the weights, the names and so the members are the same."""
    model = keras_cnn()
    pep = pm.fit(model, images, size=2)
    pep.save(tmp_path / "pep.json")
    states = [value for name, value in model.named_parameters() if "seed" in name]
    assert states
    for value in states:
        value.data += 1
    assert pm.load(tmp_path / "pep.json", model).sigma == pep.sigma


@QUIET
def test_a_member_is_the_network_with_its_weights_assigned(images):
    """Member j of eq. 5, against Keras' own `predict` after the perturbed weights were written into a second model."""
    model, again = keras_cnn(), keras_cnn()
    pep = pm.fit(model, images, size=2)
    written = dict(zip(names(as_network(model)), names(as_network(again)), strict=True))
    for j in range(2):
        params = pep.perturbation.member(pep.sigma, j)
        with torch.no_grad():
            for name, value in params.items():
                dict(again.named_parameters())[written[name]].copy_(value)
        expected = torch.as_tensor(again.predict(images[0].numpy(), verbose=0)).log_softmax(dim=1)
        torch.testing.assert_close(pep.member_log_probs(images[0])[j], expected, atol=1e-5, rtol=1e-5)


@QUIET
def test_a_keras_model_after_its_own_training_goes_in_as_it_is(images):
    """Even in what torch calls training mode, which means nothing to Keras."""
    model = keras_cnn()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(images[0].numpy(), images[1].numpy(), epochs=2, verbose=0)
    model.train()
    a, b = (pm.evaluate(model, images).nll.value for _ in range(2))
    assert a == b  # no dropout
    logits = torch.as_tensor(model.predict(images[0].numpy(), verbose=0))
    assert a == pytest.approx(float(nn.functional.cross_entropy(logits, images[1])), abs=1e-6)


def test_a_keras_model_that_ends_in_a_softmax_is_told_the_cure(images):
    model = keras_cnn("softmax")
    with pytest.raises(
        ValueError, match=r"look like probabilities.*`model\.layers\[-1\]\.activation = keras\.activations\.linear`"
    ):
        pm.fit(model, images)
    model.layers[-1].activation = keras.activations.linear
    assert pm.fit(model, images, size=2).sigma > 0


def test_a_keras_model_computes_where_its_weights_are(images):
    """Keras would move everything to its default device, which here is one without numbers."""
    model = keras_cnn()
    with keras.device("meta"):
        assert model(images[0]).is_meta
        found = pm.fit(model, images, size=2)
        assert math.isfinite(pm.evaluate(model, images).nll.value)
    assert found.search.evaluations == pm.fit(model, images, size=2).search.evaluations


def two_inputs():
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    both = layers.Concatenate()([layers.Dense(4)(left), layers.Dense(4, activation="tanh")(right)])
    return keras.Model([left, right], layers.Dense(3)(both), name="pair")


@pytest.mark.parametrize("form", [lambda a, b: (a, b), lambda a, b: {"left": a, "right": b}], ids=["tuple", "dict"])
def test_several_inputs_go_to_a_keras_model_as_one_argument(form):
    model, generator = two_inputs(), torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 8, 6, generator=generator)
    labels = torch.randint(3, (8,), generator=generator)
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(model([left, right]), labels))
    assert pm.evaluate(model, (form(left, right), labels)).nll.value == pytest.approx(expected, abs=1e-6)
    first = pm.sweep_sigma(model, (form(left, right), labels), sigmas=[0, 0.1], size=2).points[0]
    assert first.log_likelihood == pytest.approx(-expected, abs=1e-6)


def test_a_torch_module_inside_a_keras_model_stays_in_evaluation_mode():
    """Left alone, Keras would switch it to training, and its dropout on."""
    wrapped = keras.layers.TorchModuleWrapper(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), output_shape=(None, 3))
    model = keras.Sequential([keras.Input((6,)), wrapped]).eval()
    data = torch.ones(4, 6), torch.zeros(4, dtype=torch.long)
    assert pm.evaluate(model, data).nll.value == pm.evaluate(model, data).nll.value
    assert len(select(as_network(model), "kernels")) == 1
    points = pm.sweep_sigma(model, data, sigmas=[0.5], size=4).points
    assert points[0].log_likelihood != points[1].log_likelihood  # the noise reaches the module of torch


def test_a_torch_module_inside_a_keras_model_keeps_its_weights_while_members_run():
    """An interrupt or another thread in the middle of a call finds them as they are."""

    class Watched(nn.LSTM):
        def forward(self, x):
            held.append([id(value) for value in self.parameters()])
            return super().forward(x)[0][:, -1]

    def build():
        torch.manual_seed(0)
        wrapped = keras.layers.TorchModuleWrapper(Watched(6, 3, batch_first=True), output_shape=(None, 3))
        return keras.Sequential([keras.Input((4, 6)), wrapped]).eval(), wrapped.module

    held = []
    (model, inside), x = build(), torch.randn(5, 4, 6)
    mine, values = [id(value) for value in inside.parameters()], [value.clone() for value in inside.parameters()]
    pep = pm.PepEnsemble.at_sigma(model, 0.5, size=3)
    held.clear()
    with torch.no_grad():
        found = pep.member_log_probs(x)
    assert held
    assert all(ids == mine for ids in held)
    for now, before in zip(inside.parameters(), values, strict=True):
        assert torch.equal(now, before)
    own_names = {id(value): name for name, value in inside.named_parameters()}
    slots = dict(as_network(model).named_parameters())
    for j in range(3):
        _, changed = build()
        with torch.no_grad():
            for name in pep.recipe.selected:
                weight = changed.get_parameter(own_names[id(slots[name])])
                weight += 0.5 * pep.recipe.noise.draw(name, j, weight)
            expected = changed(x).log_softmax(dim=1)
        torch.testing.assert_close(found[j], expected)


def test_what_keras_makes_without_torch_is_refused_with_the_cure():
    with pytest.raises(
        TypeError, match=r"`model` is a Mean, which is not a torch\.nn\.Module: set KERAS_BACKEND=torch befor"
    ):
        pm.fit(keras.metrics.Mean(), [])


def test_what_is_no_network_is_refused():
    with pytest.raises(TypeError, match=r"a function, which is not a torch\.nn\.Module: pass the network"):
        pm.fit(keras_cnn, [])


def test_a_keras_model_without_weights_is_refused_with_the_cure():
    with pytest.raises(ValueError, match=r"this Unbuilt of Keras has no weights yet: call it once on a batch"):
        pm.fit(Unbuilt(), [])


def test_a_copy_has_parameters_of_its_own_and_the_same_keras_model():
    model, inputs = keras_cnn(), torch.ones(2, 6, 6, 1)
    network = as_network(model)
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for value in copied.parameters():
            value.zero_()
        assert torch.equal(network(inputs), model(inputs))
        assert not copied(inputs).any()


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_ensembles_that_version_one_saved_know_their_keras_model_again():
    """The digest of names, shapes and their order, as version one computed it."""
    model = keras_cnn()
    pep = pm.fit(model, (torch.zeros(4, 6, 6, 1), torch.zeros(4, dtype=torch.long)), size=2)
    assert pep.recipe.fingerprint.architecture == "9e33c6409bf64345"
    assert (pep.recipe.fingerprint.tensors, pep.recipe.fingerprint.numbers) == (16, 502)
