"""`peppermill info`: what a file holds, without model or data."""

import json

import pytest

import peppermill as pm

MODEL, DATA = "python:my_models:resnet", "npz:validation.npz"
WEIGHTS = ("--weights", "resnet.safetensors")


def test_an_ensemble(done, network, data, folder):
    pep = pm.fit(network, data("validation"), size=4, noise=pm.Noise("uniform", antithetic=False, seed=9))
    pep.save("pep.json")
    (folder / "resnet.safetensors").unlink()
    (folder / "my_models.py").unlink()
    written = done("info", "pep.json")
    assert "an ensemble of 4 members, uniform noise, independent members, seed 9" in written
    assert f"sigma = {pep.sigma:.6g}; perturbs 2 arrays" in written
    assert "calibrator: temperature, temperature = 1" in written
    assert "perturbs 2 arrays (kernels) of a network with 323 numbers" in written
    assert "likelihood: categorical" in written
    assert (
        f"found on 300 items with {len(pep.search.evaluations)} values of sigma and "
        f"{pep.search.passes:.1f} forward passes"
    ) in written
    [best] = [line for line in written.splitlines() if line.endswith("<- best")]
    assert best.split()[:2] == [f"{pep.sigma:.4g}", f"{pep.search.best.log_likelihood / 300:.5f}"]
    assert "written by peppermill " in written


def test_a_search_that_met_members_that_broke_down(done, network, data):
    with pytest.warns(pm.PepWarning, match="noise does not help here"):
        pm.fit(network, data("validation"), size=2, search=pm.Golden(upper=1e38, iterations=1)).save("pep.json")
    assert any(line.endswith("not finite") for line in done("info", "pep.json").splitlines())


def test_the_table_of_a_run_is_the_one_that_evaluate_showed(done, network, data):
    pm.fit(network, data("validation"), size=2).save("pep.json")
    shown = done("evaluate", MODEL, DATA, *WEIGHTS, "--pep", "pep.json", "--out", "run.json")
    again = done("info", "run.json")
    table, _, rest = shown.partition("all 2 members are needed")
    assert rest.endswith("wrote run.json. Next: peppermill report run.json\n")
    assert again.startswith(table)
    rest = json.loads(again[again.index("\n{") :])
    assert rest["settings"]["pep"] == "pep.json"
    assert rest["provenance"]["seed"] == 0


def test_the_table_of_a_sweep_is_the_one_that_sweep_showed(done):
    shown = done("sweep", MODEL, DATA, *WEIGHTS, "--size", 2, "--sigmas", "0.1", "--out", "run.json")
    assert done("info", "run.json").startswith(shown.removesuffix("wrote run.json\n"))
