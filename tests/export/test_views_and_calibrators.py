"""Views and calibrators are part of the file: it gives what the ensemble gives, which numpy checks."""

import copy
import json
import zipfile

import networks
import numpy as np
import onnxruntime
import pytest
import torch
from scipy.special import expit, log_softmax, logsumexp, softmax
from torch import nn

import peppermill as pm

#: What runs through onnxruntime takes seconds.
SUFFIXES = ("pt2", pytest.param("onnx", marks=pytest.mark.slow))
FLIPS = {"horizontal_flip": lambda x: np.flip(x, -1), "vertical_flip": lambda x: np.flip(x, -2)}
BOTH = ["horizontal_flip", "vertical_flip"]


def answers(path, x):
    """What a file says, by the name of the output, through torch or through onnxruntime."""
    if path.suffix == ".pt2":
        return {name: value.detach().numpy() for name, value in torch.export.load(path).module()(x).items()}
    session = onnxruntime.InferenceSession(path)
    names = [one.name for one in session.get_outputs()]
    found = session.run(names, {session.get_inputs()[0].name: x.numpy()})
    return dict(zip(names, found, strict=True))


def copies(pep, names, x):
    """The outputs [members, ...] of copies of the network with noise added, each with its own flip of the inputs."""
    flips, found = [lambda x: x, *(FLIPS[name] for name in names)], []
    for member in range(pep.size if pep.sigma else len(flips)):
        other = copy.deepcopy(pep.model)
        with torch.no_grad():
            for name in pep.recipe.selected:
                weight = other.get_parameter(name)
                weight += pep.sigma * pep.recipe.noise.draw(name, member, weight)
            seen = torch.from_numpy(flips[member % len(flips)](x.numpy()).copy())
            found.append(other(seen).double().numpy())
    return np.stack(found)


@pytest.mark.parametrize(
    ("sigma", "names", "size", "suffix"),
    [
        (0.2, BOTH[:1], 3, "pt2"),
        (0.2, BOTH, 4, "pt2"),
        (0.0, BOTH, 10, "pt2"),
        pytest.param(0.2, BOTH, 4, "onnx", marks=pytest.mark.slow),
        pytest.param(0.0, BOTH, 10, "onnx", marks=pytest.mark.slow),
    ],
)
def test_a_file_shows_each_member_its_view(cnn, images, tmp_path, sigma, names, size, suffix):
    pep, path = pm.PepEnsemble.at_sigma(cnn, sigma, size=size, views=names), tmp_path / f"model.{suffix}"
    pep.export(path, images[0][:2])
    expected = softmax(copies(pep, names, images[0]), axis=-1).mean(0)
    for count in (1, 7, 20):
        found = answers(path, images[0][:count])
        np.testing.assert_allclose(found["probabilities"], expected[:count], atol=1e-6)
        np.testing.assert_allclose(found["probabilities"], pep.predict_proba(images[0][:count]), atol=1e-6)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_labels_of_pixels_are_flipped_back(tmp_path, suffix, likelihood):
    """The example has two items, the call five."""
    model, x = networks.seeded(lambda: nn.Conv2d(1, 3, 3, padding=1)), networks.items(5, (1, 6, 7))[0]
    options = {"size": 2, "views": "horizontal_flip", "likelihood": likelihood}
    pep, path = pm.PepEnsemble.at_sigma(model, 0.2, **options), tmp_path / f"model.{suffix}"
    pep.export(path, x[:2])
    first, second = copies(pep, BOTH[:1], x)
    probabilities = (lambda z: softmax(z, axis=1)) if likelihood == "categorical" else expit
    expected = (probabilities(first) + np.flip(probabilities(second), -1)) / 2
    np.testing.assert_allclose(answers(path, x)["probabilities"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("calibrator", "suffix"),
    [
        ("temperature", "pt2"),
        ("vector", "pt2"),
        ("matrix", "pt2"),
        pytest.param("vector", "onnx", marks=pytest.mark.slow),
        pytest.param("matrix", "onnx", marks=pytest.mark.slow),
    ],
)
def test_a_calibrator_comes_after_the_average(images, tmp_path, calibrator, suffix):
    """With views; the correction is read from the ensemble, and applied by numpy.

    A temperature in ONNX is a claim of test_files.py.
    """
    model, path = networks.cnn(), tmp_path / f"model.{suffix}"
    x = networks.items(200, (1, 6, 6))[0]
    labels = torch.where(torch.arange(200) % 4 == 0, torch.arange(200) % 3, model(x).argmax(1)).detach()
    pep = pm.PepEnsemble.at_sigma(model, 0.2, size=3, views="horizontal_flip")
    pep = pm.fit_calibrator(pep, (x, labels), calibrator)
    pep.export(path, x[:2])
    members = log_softmax(copies(pep, BOTH[:1], images[0]), axis=-1)
    expected = log_softmax((logsumexp(members, axis=0) - np.log(3)) / pep.temperature, axis=-1)
    arrays = {name: value.double().numpy() for name, value in pep.calibrator.arrays().items()}
    assert (calibrator == "temperature") == (not arrays)
    if arrays:
        weight = arrays["weight"] if calibrator == "matrix" else np.diag(arrays["weight"])
        assert np.abs(weight).max() > 1e-4
        expected = log_softmax(expected + expected @ weight.T + arrays["bias"], axis=-1)
    found = answers(path, images[0])
    np.testing.assert_allclose(found["log_probabilities"], expected, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], pep.predict_proba(images[0]), atol=1e-6)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_yes_or_no_network_with_vector_scaling(tmp_path, suffix):
    model, (x, labels) = networks.mlp(classes=1), networks.items(200)
    pep = pm.PepEnsemble.at_sigma(model, 0.3, size=2, likelihood="bernoulli")
    pep, path = pm.fit_calibrator(pep, (x, (labels > 0).long()[:, None]), "vector"), tmp_path / f"model.{suffix}"
    pep.export(path, x[:2])
    np.testing.assert_allclose(answers(path, x)["probabilities"], pep.predict_proba(x), atol=1e-6)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_views_without_noise_hold_the_weights_once(cnn, images, tmp_path, suffix):
    one, three = tmp_path / f"one.{suffix}", tmp_path / f"three.{suffix}"
    wide = networks.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 5000), nn.Linear(5000, 3)))
    pm.PepEnsemble.at_sigma(wide, 0.0).export(one, images[0][:2])
    pm.PepEnsemble.at_sigma(wide, 0.0, views=BOTH).export(three, images[0][:2])
    assert three.stat().st_size < 1.2 * one.stat().st_size


def test_a_function_of_the_users_is_exported(cnn, images, tmp_path):
    pep = pm.PepEnsemble.at_sigma(cnn, 0.2, size=2, views=lambda x: x.transpose(-1, -2))
    pep.export(tmp_path / "model.pt2", images[0][:2])
    found = answers(tmp_path / "model.pt2", images[0])["probabilities"]
    np.testing.assert_allclose(found, pep.predict_proba(images[0]), atol=1e-6)


def test_the_file_says_which_views_and_which_calibrator(cnn, images, tmp_path):
    pep, path = pm.PepEnsemble.at_sigma(cnn, 0.2, size=2, views=BOTH[:1]), tmp_path / "model.pt2"
    pep.export(path, images[0][:2])
    with zipfile.ZipFile(path) as file:
        name = next(name for name in file.namelist() if name.endswith("peppermill.json"))
        about = json.loads(file.read(name))
    assert (about["views"], about["calibrator"]) == (["identity", "horizontal_flip"], "temperature")


def test_what_is_not_a_picture_is_refused_before_a_file_is_written(mlp, data, tmp_path):
    pep = pm.PepEnsemble.at_sigma(mlp, 0.2, size=2, views="horizontal_flip")
    with pytest.raises(ValueError, match="hold no pictures"):
        pep.export(tmp_path / "model.pt2", data[0])
    assert not list(tmp_path.iterdir())
