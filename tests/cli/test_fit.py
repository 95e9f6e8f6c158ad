"""`peppermill fit` finds what the library finds, and says so."""

import json

import networks
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import peppermill as pm

ARGUMENTS = ("fit", "python:my_models:resnet", "npz:validation.npz", "--weights", "resnet.safetensors")


def test_the_file_holds_what_the_library_finds(done, network, data, folder):
    pep = pm.fit(network, data("validation"), size=4, noise=pm.Noise(seed=3))
    written = done(*ARGUMENTS, "--size", 4, "--seed", 3)
    loaded = pm.load("pep.json", network)
    assert (loaded.sigma, loaded.size, loaded.seed) == (pep.sigma, 4, 3)
    assert np.array(loaded.search.points) == pytest.approx(np.array(pep.search.points))
    assert f"sigma = {pep.sigma:.4g}, found with {len(pep.search.evaluations)} values of sigma on 300 items" in written
    passes = pep.search.passes
    assert f"on 300 items and {passes:.1f} forward passes ({passes / 4:.1f} of all 4 members)" in written
    base, best = (-value / 300 for value in (pep.search.baseline.log_likelihood, pep.search.best.log_likelihood))
    assert f"validation NLL {base:.4f} -> {best:.4f}" in written
    assert best < base
    assert f"wrote pep.json ({(folder / 'pep.json').stat().st_size:,} bytes)" in written
    alone = pm.fit_temperature(network, data("validation"))
    assert loaded.one_pass.temperature == pytest.approx(alone.temperature, rel=1e-6)  # what `evaluate` shows beside it
    assert loaded.temperature == 1


def test_the_next_step_it_names_can_be_taken(done, folder):
    line = done(*ARGUMENTS, "--size", 2).splitlines()[-1]
    assert line == ("peppermill evaluate python:my_models:resnet TEST-DATA --weights resnet.safetensors --pep pep.json")
    done(*line.replace("TEST-DATA", "npz:test.npz").split()[1:])


def test_a_temperature_is_tuned_and_saved(done, network, data):
    written = done(*ARGUMENTS, "--size", 2, "--temperature")
    loaded = pm.load("pep.json", network)
    expected = pm.fit(network, data("validation"), size=2, temperature=True)
    assert (loaded.sigma, loaded.temperature) == (expected.sigma, expected.temperature)
    assert expected.temperature > 1
    assert f", T = {expected.temperature:.4g}, found with" in written


def test_another_calibrator_is_fitted_and_saved(done, network, data):
    written = done(*ARGUMENTS, "--size", 2, "--calibrator", "vector")
    expected, loaded = pm.fit(network, data("validation"), size=2, calibrator="vector"), pm.load("pep.json", network)
    assert loaded.calibrator.arrays()["bias"].tolist() == expected.calibrator.arrays()["bias"].tolist()
    before = expected.search.best.tempered_log_likelihood / -300
    assert f"-> {before:.4f}, before vector scaling" in written


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (("--parameters", "last_layer"), {"parameters": "last_layer"}),
        (("--parameters", r"^0\.weight"), {"parameters": r"^0\.weight"}),
        (("--noise", "uniform"), {"noise": "uniform"}),
        (("--independent",), {"noise": pm.Noise(antithetic=False)}),
        (("--lower", "0.01", "--upper", "2", "--iterations", "3"), {"search": pm.Golden(3, 0.01, 2.0)}),
        (("--search", "golden"), {"search": "golden"}),
        (("--scale", "layer", "--temperature"), {"scale": "layer", "temperature": True}),
        (("--pool", "6"), {"pool": 6}),
        (("--batch-size", "7"), {"batch_size": 7}),
        (("--engine", "vmap"), {"engine": "vmap"}),
        (("--precision", "bfloat16"), {"engine": "auto:bfloat16"}),
    ],
)
def test_every_option_is_that_of_the_library(done, network, data, options, keywords):
    done(*ARGUMENTS, "--size", 3, *options)
    expected = pm.fit(network, data("validation"), size=3, **keywords)
    found = pm.load("pep.json", network)
    assert found.sigma == expected.sigma
    assert found.recipe.selected == expected.recipe.selected
    assert found.recipe.noise == expected.recipe.noise


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize(
    "given",
    [("--views", "horizontal_flip,vertical_flip"), ("--views", "horizontal_flip", "--views", "vertical_flip")],
)
def test_views_are_given_by_name_and_saved(done, folder, given):
    inputs, labels = np.random.default_rng(0).normal(size=(30, 1, 4, 4)).astype("float32"), np.arange(30) % 3
    np.savez("pictures.npz", x=inputs, y=labels)
    save_file(networks.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3))).state_dict(), "flat.safetensors")
    done("fit", "python:my_models:flat", "npz:pictures.npz", "--weights", "flat.safetensors", "--size", 3, *given)
    content = json.loads((folder / "pep.json").read_text())
    assert content["views"] == ["horizontal_flip", "vertical_flip"]
    assert "views: horizontal_flip, vertical_flip" in done("info", "pep.json")
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    model.load_state_dict(load_file("flat.safetensors"))
    names = ["horizontal_flip", "vertical_flip"]
    expected = pm.fit(model, (torch.from_numpy(inputs), torch.from_numpy(labels)), size=3, views=names)
    assert content["sigma"] == expected.sigma


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--calibrator", "platt"), "`calibrator='platt'` is unknown: choose one of temperature, vector, matrix."),
        (("--scale", "array"), "`scale='array'` is unknown"),
        (("--pool", 10), "`pool=10` must be a whole number above `size=10`."),
    ],
)
def test_a_wrong_setting_of_the_ensemble_is_one_line(peppermill, option, message):
    found = peppermill(*ARGUMENTS, *option)
    assert (found.exit_code, message in found.stderr, "Traceback" in found.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("view", "message"),
    [("mirror", "`views='mirror'` is unknown: choose from horizontal_flip"), ("vertical_flip", "hold no pictures")],
)
def test_a_view_that_cannot_be_is_one_line(peppermill, view, message):
    found = peppermill(*ARGUMENTS, "--views", view)
    assert found.exit_code == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_data_may_come_from_a_function(done):
    assert "on 50 items" in done(*ARGUMENTS[:2], "python:my_models:validation", *ARGUMENTS[3:], "--size", 2)


def test_a_yes_or_no_network(done, folder):
    with np.load("validation.npz") as file:
        np.savez("binary.npz", x=file["x"], y=file["y"] % 2)
    done("fit", "python:my_models:single", "npz:binary.npz", "--likelihood", "bernoulli", "--size", 2)
    assert json.loads((folder / "pep.json").read_text())["likelihood"]["name"] == "bernoulli"


def test_a_half_precision_model_works_and_says_so(peppermill, folder):
    found = peppermill("fit", "python:my_models:half", *ARGUMENTS[2:], "--size", 2)
    assert found.exit_code == 0
    assert found.stderr.startswith("note: the weights are torch.bfloat16")
    assert "noise is drawn and added in float32" in found.stderr
    assert "sigma = " in found.stdout


def test_what_a_careful_user_wants_to_know_is_a_note_on_stderr(peppermill):
    found = peppermill(*ARGUMENTS, "--size", 2, "--upper", 0.01, "--iterations", 2)
    assert found.exit_code == 0
    assert "note: the best sigma, 0.01, sits at `upper=0.01`: widen the interval" in found.stderr
    assert "note" not in found.stdout


def test_no_global_generator_is_touched(done):
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    done("fit", "python:my_models:quiet", *ARGUMENTS[2:], "--size", 2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_folders_are_made_for_the_file(done, folder):
    done(*ARGUMENTS, "--size", 2, "--out", "results/today/pep.json")
    assert (folder / "results" / "today" / "pep.json").is_file()
