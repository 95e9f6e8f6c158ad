"""One file that gives what the ensemble gives: by torch.export and by ONNX, without peppermill, for any batch."""

import copy
import json
import subprocess
import sys

import networks
import numpy as np
import onnxruntime
import pytest
import torch
from scipy.special import expit, log_softmax, logsumexp
from torch import nn

import peppermill as pm

#: What runs through onnxruntime takes seconds.
SUFFIXES = ("pt2", pytest.param("onnx", marks=pytest.mark.slow))


def copies(pep, *inputs):
    """The outputs [m, ...] of copies of the network with noise added to them, in float64, by a plain loop."""
    found = []
    for member in range(pep.size if pep.sigma else 1):
        other = copy.deepcopy(pep.model)
        for name in pep.recipe.selected:
            weight = other.get_parameter(name)
            weight.data += pep.sigma * pep.recipe.noise.draw(name, member, weight)
        with torch.no_grad():
            found.append(other(*inputs).double().numpy())
    return np.stack(found)


def mean_log_probs(pep, *inputs):
    """ln of the mean probability, then divided by T and normalised again."""
    members = log_softmax(copies(pep, *inputs), axis=-1)
    averaged = logsumexp(members, axis=0) - np.log(len(members))
    return log_softmax(averaged / pep.temperature, axis=-1)


def answers(path, *args, **kwargs):
    """What a file says, by the name of the output, through torch or through onnxruntime."""
    if path.suffix == ".pt2":
        return {k: v.detach().numpy() for k, v in torch.export.load(path).module()(*args, **kwargs).items()}
    session = onnxruntime.InferenceSession(path)
    given = dict(zip([one.name for one in session.get_inputs()], args, strict=False)) | kwargs
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, {k: v.numpy() for k, v in given.items()}), strict=True))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_gives_the_mean_of_noisy_copies_for_any_number_of_items(ensemble, cnn, images, tmp_path, suffix):
    """The example has one item, the calls 1, 7 and 20; the network has batch norm."""
    pep, path = ensemble(cnn, temperature=1.3), tmp_path / f"deep/down.{suffix}"
    before = networks.snapshot(cnn)
    pep.export(path, images[0][:1])
    networks.assert_untouched(cnn, before)
    for items in (1, 7, 20):
        found, expected = answers(path, images[0][:items]), mean_log_probs(pep, images[0][:items])
        assert list(found) == ["probabilities", "log_probabilities"]
        np.testing.assert_allclose(found["log_probabilities"], expected, atol=2e-6)
        np.testing.assert_allclose(found["probabilities"], np.exp(expected), atol=1e-6)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_tied_weights_get_the_same_noise_in_both_places(ensemble, tied, data, tmp_path, suffix):
    pep, path = ensemble(tied), tmp_path / f"model.{suffix}"
    pep.export(path, data[0][:3])
    np.testing.assert_allclose(answers(path, data[0])["log_probabilities"], mean_log_probs(pep, data[0]), atol=2e-6)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_inputs_are_called_as_the_network_calls_them(ensemble, two_inputs, tmp_path, suffix):
    """A tuple by position, a dict by name."""
    pep, path = ensemble(two_inputs, size=2), tmp_path / f"model.{suffix}"
    left, right = networks.items(5)[0], networks.items(5, seed=2)[0]
    expected = np.exp(mean_log_probs(pep, left, right))
    pep.export(path, {"right": right[:2], "left": left[:2].numpy()})
    np.testing.assert_allclose(answers(path, left=left, right=right)["probabilities"], expected, atol=1e-6)
    pep.export(path, (left[:2], right[:2]))
    np.testing.assert_allclose(answers(path, left, right)["probabilities"], expected, atol=1e-6)
    if suffix == "onnx":
        inputs = onnxruntime.InferenceSession(path).get_inputs()
        assert [(one.name, one.shape) for one in inputs] == [("left", ["batch", 6]), ("right", ["batch", 6])]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_logarithms_do_not_underflow_where_probabilities_do(ensemble, data, tmp_path, suffix):
    """Members' log-probabilities down to -1,000: exp of them is 0, and the file must not go through it."""
    model = networks.mlp()
    with torch.no_grad():
        model[2].weight.mul_(2000)
    pep, path = ensemble(model, sigma=0.02), tmp_path / f"model.{suffix}"
    pep.export(path, data[0][:2])
    expected = mean_log_probs(pep, data[0])
    assert expected.min() < -500
    np.testing.assert_allclose(answers(path, data[0])["log_probabilities"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_yes_or_no_network_gives_the_probability_of_yes(ensemble, data, tmp_path, suffix):
    model = networks.mlp(classes=2)
    with torch.no_grad():
        model[2].weight[1].mul_(3000)
    pep, path = ensemble(model, likelihood=pm.Bernoulli()), tmp_path / f"model.{suffix}"
    pep.export(path, data[0][:2])
    found, logits = answers(path, data[0]), copies(pep, data[0])
    yes, no = (logsumexp(-np.logaddexp(0, sign * logits), axis=0) for sign in (-1, 1))
    assert list(found) == ["probabilities", "logits"]
    np.testing.assert_allclose(found["probabilities"], expit(logits).mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found["logits"], yes - no, rtol=1e-4, atol=1e-4)
    assert np.abs(yes - no).max() > 200


@pytest.mark.slow
def test_a_regression_gives_the_mixtures_mean_and_log_variance(ensemble, data, tmp_path):
    pep, path = ensemble(networks.mlp(classes=2), likelihood=pm.Gaussian()), tmp_path / "model.onnx"
    pep.export(path, data[0][:2])
    found, (means, log_variances) = answers(path, data[0]), np.moveaxis(copies(pep, data[0]), -1, 0)
    variance = np.exp(log_variances).mean(axis=0) + means.var(axis=0)
    np.testing.assert_allclose(found["mean"], means.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found["log_variance"], np.log(variance), atol=1e-5)


def held(path):
    """How many numbers a pt2 file holds."""
    return sum(value.numel() for value in torch.export.load(path).state_dict.values())


def test_what_is_not_perturbed_is_held_once(ensemble, cnn, images, tmp_path):
    """Kernels of 36 + 320 + 15 numbers, m = 4 times; 47 others: biases, batch norm, two counters."""
    ensemble(cnn, size=4).export(tmp_path / "model.pt2", images[0][:2])
    assert held(tmp_path / "model.pt2") == 4 * (36 + 320 + 15) + (4 + 5 + 3) + 4 * (4 + 5) + 2


def test_without_noise_the_file_is_one_network(ensemble, cnn, images, tmp_path):
    pep, path = ensemble(cnn, sigma=0.0, size=50, temperature=2.0), tmp_path / "model.pt2"
    pep.export(path, images[0][:2])
    expected = torch.softmax(cnn(images[0]) / 2, dim=1).detach()
    np.testing.assert_allclose(answers(path, images[0])["probabilities"], expected, atol=1e-6)
    assert held(path) == sum(value.numel() for value in cnn.state_dict().values())


class Recurrent(nn.Module):
    """[batch, 5, 4] -> an object with logits."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.LSTM(4, 6, batch_first=True), networks.Wrapped("object")

    def forward(self, inputs):
        return self.head(self.memory(inputs)[0][:, -1])


@pytest.mark.slow
def test_a_recurrent_network_that_returns_an_object(ensemble, tmp_path):
    model = networks.seeded(Recurrent)
    pep, inputs = ensemble(model, size=2), networks.items(4, shape=(5, 4))[0]
    pep.export(tmp_path / "model.onnx", inputs[:1])
    found = answers(tmp_path / "model.onnx", inputs)["probabilities"]
    np.testing.assert_allclose(found, pep.predict_proba(inputs).detach(), atol=1e-6)


class Counting(nn.Module):
    """Counts its calls in a buffer, as some networks do."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(networks.FEATURES, networks.CLASSES), 0

    def forward(self, inputs):
        self.calls = self.calls + 1
        self.scale = self.layer.weight.abs().max()  # a tensor of the pass, as an attribute
        return self.layer(inputs)


def with_norm(norm):
    return networks.seeded(lambda: nn.Sequential(norm(nn.Linear(networks.FEATURES, 8)), nn.Tanh(), nn.Linear(8, 3)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: with_norm(nn.utils.spectral_norm),
        lambda: with_norm(nn.utils.weight_norm),
        lambda: with_norm(nn.utils.parametrizations.weight_norm),
        lambda: networks.seeded(Counting),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
def test_the_attributes_of_the_network_are_its_own_afterwards(ensemble, data, tmp_path, build):
    """Old weight norms put a tensor into `module.weight` in every call: while tracing, one without data."""
    model = build()
    model(data[0])
    before = [dict(vars(module)) for module in model.modules()]
    pep = ensemble(model)
    expected = pep.predict_proba(data[0]).detach()
    pep.export(tmp_path / "model.pt2", data[0][:2])
    for module, attributes in zip(model.modules(), before, strict=True):
        assert all(vars(module)[name] is value for name, value in attributes.items())
    torch.testing.assert_close(pep.predict_proba(data[0]).detach(), expected)


def test_half_precision_stays(ensemble, mlp, data, tmp_path):
    pep = ensemble(mlp.bfloat16())
    pep.export(tmp_path / "model.pt2", data[0][:2])
    inputs = data[0].bfloat16()
    found = answers(tmp_path / "model.pt2", inputs)["probabilities"]
    np.testing.assert_allclose(found, pep.predict_proba(inputs).detach(), atol=1e-2)


@pytest.mark.slow
def test_a_transformer_from_a_dict(ensemble, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20, num_labels=3
    )
    pep = ensemble(networks.seeded(lambda: transformers.BertForSequenceClassification(config)), size=2)
    words = torch.randint(20, (5, 7), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": words, "attention_mask": (words > 3).long()}
    expected = pep.predict_proba(**inputs).detach()
    pep.export(tmp_path / "model.onnx", {name: value[:1] for name, value in inputs.items()})
    np.testing.assert_allclose(answers(tmp_path / "model.onnx", **inputs)["probabilities"], expected, atol=1e-6)


@pytest.mark.slow
def test_the_file_needs_no_peppermill(ensemble, cnn, images, tmp_path):
    """In a process that cannot import it; what the ensemble was is in the file."""
    pep = ensemble(cnn, temperature=1.5)
    pep.export(tmp_path / "model.pt2", images[0][:2])
    np.save(tmp_path / "images.npy", images[0].numpy())
    code = (
        "import sys; sys.modules['peppermill'] = None\n"
        "import json, numpy, torch\n"
        "about = {'peppermill.json': ''}\n"
        "network = torch.export.load('model.pt2', extra_files=about).module()\n"
        "found = network(torch.from_numpy(numpy.load('images.npy')))['probabilities'].tolist()\n"
        "print(json.dumps([found, json.loads(about['peppermill.json'])]))"
    )
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found, about = json.loads(shown.stdout)
    np.testing.assert_allclose(found, np.exp(mean_log_probs(pep, images[0])), atol=1e-6)
    after = {"temperature": 1.5, "calibrator": "temperature"}
    assert about == {"sigma": 0.2, "size": 3, **after, "views": [], "likelihood": "categorical"}


@pytest.mark.slow
def test_the_files_say_nothing_of_the_machine(ensemble, mlp, data, tmp_path):
    """torch would write the path and the text of every line of code that was traced."""
    for suffix in ("pt2", "onnx"):
        ensemble(mlp, size=1).export(tmp_path / f"model.{suffix}", data[0][:2])
        content = (tmp_path / f"model.{suffix}").read_bytes()
        assert b".py" not in content
        assert b"site-packages" not in content
    metadata = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert metadata["peppermill.sigma"] == "0.2"


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_file_says_how_sure_the_members_are(ensemble, cnn, images, tmp_path, suffix):
    pep, path = ensemble(cnn, temperature=2.0), tmp_path / f"model{suffix}"
    names = ("probabilities", "confidence", "mutual_information", "disagreement")
    pep.export(path, images[0][:3], outputs=names)
    found, expected = answers(path, images[0]), pep.uncertainty(images[0])
    assert set(found) == set(names)
    for name in names[1:]:
        torch.testing.assert_close(torch.as_tensor(found[name]), getattr(expected, name).float(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"'unrest' is unknown, choose from probabilities, log_probabilities, conf"):
        pep.export(path, images[0][:3], outputs=("unrest",))
