"""`peppermill evaluate`: the library's scores, in a table and in a file."""

import json

import numpy as np
import pytest
import torch

import peppermill as pm

ARGUMENTS = ("python:my_models:resnet", "npz:test.npz", "--weights", "resnet.safetensors")


@pytest.fixture
def pep(network, data):
    found = pm.fit(network, data("validation"), size=4)
    found.save("pep.json")
    return found


def test_the_network_alone(done, network, data):
    written = done("evaluate", *ARGUMENTS)
    nll = pm.evaluate(network, data("test")).nll
    assert f"{nll.value:.4f}" in written
    assert f"[{nll.lower:.4f}, {nll.upper:.4f}]" in written
    assert "300 test items; in brackets 95 % bootstrap intervals." in written
    assert "difference" not in written


def test_the_ensemble_beside_it(done, network, data, pep, folder):
    written = done("evaluate", *ARGUMENTS, "--pep", "pep.json", "--out", "run.json", "--bins", 10, "--seed", 7)
    first, second = json.loads((folder / "run.json").read_text())["methods"]
    expected = pm.evaluate(pep, data("test"), bins=10, seed=7)
    difference = pm.compare(network, pep, data("test"), bins=10, seed=7)
    assert (first["name"], second["name"]) == ("network", "PEP")
    assert second["scores"]["bins"] == 10
    for name in ("nll", "brier", "ece", "error"):
        assert second["scores"]["estimates"][name] == vars(expected.estimates[name])
        assert second["comparison"]["differences"][name] == vars(difference.differences[name])
    assert second["fitted"] == {"sigma": pep.sigma}
    assert second["forward_passes"] == 4
    assert "ECE % (10 bins)" in written
    assert f"σ = {pep.sigma:.3g}" in written
    assert pm.size_curve(pep, data("test"), seed=7).enough(0.001) in written
    assert written.endswith("wrote run.json. Next: peppermill report run.json\n")


def test_noise_makes_this_network_better(done, pep, folder):
    """It is three times as sure of itself as its labels allow."""
    done("evaluate", *ARGUMENTS, "--pep", "pep.json", "--out", "run.json")
    found = json.loads((folder / "run.json").read_text())["methods"][1]["comparison"]["differences"]
    assert found["nll"]["upper"] < 0
    assert found["ece"]["value"] < 0


def test_the_settings_can_be_traced(done, pep, folder):
    done("evaluate", *ARGUMENTS, "--pep", "pep.json", "--out", "run.json")
    content = json.loads((folder / "run.json").read_text())
    traced = {
        "model": "python:my_models:resnet",
        "data": "npz:test.npz",
        "weights": "resnet.safetensors",
        "pep": "pep.json",
        "bins": 20,
    }
    assert traced.items() <= content["settings"].items()
    assert content["settings"]["PEP"]["parameters"] == "kernels"


def test_a_temperature_is_shown(done, network, data):
    both = pm.fit(network, data("validation"), size=2, temperature=True)
    both.save("both.json")
    written = done("evaluate", *ARGUMENTS, "--pep", "both.json")
    assert f"T = {both.temperature:.3g}" in written


def test_a_regression(done, folder):
    with np.load("test.npz") as file:
        np.savez("real.npz", x=file["x"], y=file["x"][:, 0])
    written = done(
        "evaluate", "python:my_models:regression", "npz:real.npz", "--likelihood", "gaussian", "--out", "run.json"
    )
    assert "RMSE" in written
    assert "Brier" not in written
    method = json.loads((folder / "run.json").read_text())["methods"][0]
    assert list(method["scores"]["estimates"]) == ["nll", "rmse"]
    assert method["reliability"] is None


def test_an_npz_file_needs_no_scheme_and_a_gpu_is_named(peppermill):
    found = peppermill("evaluate", ARGUMENTS[0], "test.npz", *ARGUMENTS[2:], "--device", "auto")
    assert found.exit_code == 0, found.stderr
    prefixed = peppermill("evaluate", *ARGUMENTS)
    assert found.stdout.splitlines()[1:] == prefixed.stdout.splitlines()[1:]  # the title repeats what was asked for
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert ("device: running on" in found.stderr) is has_gpu


def test_weights_that_were_forgotten_are_asked_for(peppermill, pep):
    found = peppermill("evaluate", *ARGUMENTS[:2], "--pep", "pep.json")
    assert (found.exit_code, "did you forget `--weights`?" in " ".join(found.stderr.split())) == (2, True)
