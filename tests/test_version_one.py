"""Files that version one wrote are read, and give version one's numbers."""

from __future__ import annotations

import json

import pytest
import torch
import version_one
from version_one import FIXTURES

import peppermill as pm

EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
RUNS = ("record", "evaluate", "sweep", "size", "curvature", "probe")


@pytest.mark.parametrize("name", version_one.ENSEMBLES)
def test_an_ensemble_of_version_one_predicts_what_it_predicted_then(name):
    network, _, options = version_one.ENSEMBLES[name]
    expected = EXPECTED[name]
    pep = pm.load(FIXTURES / f"{name}.pep.json", network())
    assert (pep.sigma, pep.temperature, pep.size) == (expected["sigma"], expected["temperature"], options["size"])
    assert pep.search.gain == pytest.approx(expected["gain"], rel=1e-6)
    assert pep.search.passes == expected["passes"]
    with torch.no_grad():
        outputs = pep(version_one.probe_inputs())
    assert torch.allclose(outputs, torch.tensor(expected["outputs"]), atol=1e-5, rtol=1e-5)
    if expected["nll"] is not None:
        nll = -pm.predict(pep, version_one.test_items()).log_likelihoods.mean()
        assert float(nll) == pytest.approx(expected["nll"], abs=1e-5)


@pytest.mark.parametrize("name", version_one.ENSEMBLES)
def test_a_file_of_version_one_is_written_again_with_all_it_held(name, tmp_path):
    """In the new form: T is a calibrator's, there are views, and a checksum; the libraries have other versions."""
    network, _, _ = version_one.ENSEMBLES[name]
    pm.load(FIXTURES / f"{name}.pep.json", network()).save(tmp_path / "again.json")
    before, after = (json.loads(p.read_text()) for p in (FIXTURES / f"{name}.pep.json", tmp_path / "again.json"))
    assert after.pop("calibrator") == {"name": "temperature", "temperature": before.pop("temperature")}
    assert after.pop("views") == []
    assert len(after.pop("checksum")) == 16
    assert {**before, "versions": 0} == {**after, "versions": 0, "version": 1}


def test_a_split_of_version_one_is_known_again():
    pep = pm.load(FIXTURES / "split.pep.json", version_one.network())
    split = pep.recipe.split
    assert (split.items, split.validation, split.seed, split.data) == (120, 70, 0, "python:version_one:items")
    assert pep.search.items == 70


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_version_one_is_read_and_makes_a_report(name, tmp_path):
    path = FIXTURES / f"{name}.run.json"
    run, content = pm.read_run(path), json.loads(path.read_text())
    for part in ("title", "settings", "methods", "sweep", "curvature", "overfitting", "sizes", "effects"):
        assert run.get(part) == content.get(part)
    page = pm.write_report(path, tmp_path / "report.html").read_text()
    for method in content["methods"]:
        assert method["name"] in page


def test_the_runs_hold_every_panel_that_version_one_had():
    contents = [json.loads((FIXTURES / f"{name}.run.json").read_text()) for name in RUNS]
    for part in ("methods", "sweep", "curvature", "overfitting", "sizes", "effects"):
        assert any(content.get(part) for content in contents), part
    record = contents[0]
    assert [method["name"] for method in record["methods"] if method["comparison"]] == [
        "temperature scaling",
        "PEP",
        "PEP with temperature",
    ]
