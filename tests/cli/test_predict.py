"""`peppermill predict`: predictions for every item in an npz file that needs no pickle."""

import numpy as np
import pytest
from scipy.special import log_softmax

import peppermill as pm

ARGUMENTS = ("predict", "python:my_models:resnet", "npz:new.npz", "--weights", "resnet.safetensors")


def load(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def test_the_network_alone(done, network, data):
    written = done(*ARGUMENTS)
    found = load("predictions.npz")
    inputs, labels = data("new")
    expected = log_softmax(network(inputs).detach().double().numpy(), axis=1)
    np.testing.assert_allclose(found["log_probs"], expected, atol=1e-6)
    np.testing.assert_array_equal(found["predicted"], expected.argmax(axis=1))
    np.testing.assert_array_equal(found["labels"], labels)
    assert written == "wrote predictions.npz: log_probs, predicted, labels of 300 items\n"


def test_the_ensemble(done, network, data):
    pep = pm.fit(network, data("validation"), size=3, temperature=True)
    pep.save("pep.json")
    done(*ARGUMENTS, "--pep", "pep.json", "--out", "deep/down.npz", "--batch-size", 11)
    expected = pep.predict_proba(data("new")[0]).detach()
    np.testing.assert_allclose(np.exp(load("deep/down.npz")["log_probs"]), expected, atol=1e-5)


@pytest.mark.parametrize("options", [("--engine", "loop"), ("--engine", "vmap"), ("--precision", "bfloat16")])
def test_how_the_members_run_changes_little(done, network, data, options):
    """bfloat16 rounds to 8 bits: probabilities move in the third digit."""
    pep = pm.fit(network, data("validation"), size=3)
    pep.save("pep.json")
    done(*ARGUMENTS, "--pep", "pep.json", *options)
    expected = pep.predict_proba(data("new")[0]).detach()
    tolerance = 0.03 if "--precision" in options else 1e-5
    np.testing.assert_allclose(np.exp(load("predictions.npz")["log_probs"]), expected, atol=tolerance)


@pytest.mark.parametrize("with_ensemble", [False, True])
def test_a_regression_has_means_and_log_variances(done, folder, with_ensemble):
    with np.load("new.npz") as file:
        np.savez("real.npz", x=file["x"], y=file["x"][:, 0])
    model = ("python:my_models:fixed_regression", "npz:real.npz")
    options = ("--likelihood", "gaussian")
    if with_ensemble:
        done("fit", *model, *options, "--size", 2)
        options = ("--pep", "pep.json")
    done("predict", *model, *options)
    found = load("predictions.npz")
    assert set(found) == {"mean", "log_variance", "labels"}
    if not with_ensemble:
        np.testing.assert_allclose(found["mean"], load("real.npz")["x"].sum(axis=1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["log_variance"], 0.5)
