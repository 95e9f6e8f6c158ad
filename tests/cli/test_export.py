"""`peppermill export`: the file gives what the ensemble gives."""

import numpy as np
import onnxruntime
import pytest
import torch

import peppermill as pm

pytestmark = pytest.mark.slow

ARGUMENTS = ("export", "python:my_models:resnet", "--weights", "resnet.safetensors", "--pep", "pep.json")


@pytest.fixture
def pep(network, data):
    found = pm.fit(network, data("validation"), size=3, temperature=True)
    found.save("pep.json")
    return found


def test_by_an_example(done, pep, data):
    written = done(*ARGUMENTS, "--out", "model.onnx", "--example", "npz:validation.npz")
    assert written == "wrote model.onnx: 3 members, 0.0 MB\n"
    inputs = data("new")[0]
    found = onnxruntime.InferenceSession("model.onnx").run(["probabilities"], {"input": inputs.numpy()})[0]
    np.testing.assert_allclose(found, pep.predict_proba(inputs).detach(), atol=1e-6)


def test_by_an_example_without_labels(done, pep, data):
    """Of another type than the network, and with one item alone."""
    inputs = data("new")[0]
    for count in (1, 300):
        np.savez("bare.npz", x=inputs[:count].double().numpy())
        assert done(*ARGUMENTS, "--example", "npz:bare.npz").startswith("wrote model.pt2: 3 members")
        found = torch.export.load("model.pt2").module()(inputs)["probabilities"]
        np.testing.assert_allclose(found.detach(), pep.predict_proba(inputs).detach(), atol=1e-6)


def test_by_a_shape(done, pep, data):
    done(*ARGUMENTS, "--shape", 6)
    inputs = data("new")[0]
    found = torch.export.load("model.pt2").module()(inputs)["probabilities"]
    np.testing.assert_allclose(found.detach(), pep.predict_proba(inputs).detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ((), "give either `--example DATA` or `--shape 3,224,224`"),
        (("--shape", "6", "--example", "npz:new.npz"), "give either `--example DATA` or `--shape 3,224,224`"),
        (("--shape", "6,a"), "`--shape 6,a` must be numbers separated by commas"),
        (("--shape", "6.5"), "`--shape 6.5` must be whole numbers separated by commas, as in 3,224,224"),
        (("--shape", "6", "--out", "model.h5"), "has an unknown suffix: choose one of .pt2, .onnx"),
    ],
)
def test_refusals_come_before_the_network_is_made(peppermill, pep, options, match, folder):
    before = sorted(path.name for path in folder.iterdir())
    found = peppermill("export", "python:absent:model", "--pep", "pep.json", *options)
    assert found.exit_code == 2
    assert match in " ".join(found.stderr.split())
    assert sorted(path.name for path in folder.iterdir()) == before
