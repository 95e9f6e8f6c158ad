"""The report's panel on uncertainty, against numpy, scikit-learn and the ensemble's own `uncertainty`."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import nn

import peppermill as pm
from peppermill.report.thumbnail import thumbnail

from .small_runs import CLASS_NAMES, images_and_labels, overconfident_network
from .test_page import Reader, squeezed


@pytest.fixture(scope="module")
def pep():
    return pm.fit(overconfident_network(), images_and_labels(300, 0), size=4)


@pytest.fixture(scope="module")
def data():
    return images_and_labels(250, 1)


@pytest.fixture(scope="module")
def run(pep, data):
    return pm.record_run({"network": pep.model, "PEP": pep}, data, title="a run", class_names=CLASS_NAMES)


def test_each_measure_has_the_counts_of_numpy_and_the_auroc_of_scikit_learn(run, pep, data):
    inputs, labels = data
    found, panel = pep.uncertainty(inputs), run.uncertainty
    wrong = (pep(inputs).argmax(dim=1) != labels).numpy()
    assert (panel["method"], panel["items"], panel["wrong"]) == ("PEP", 250, int(wrong.sum()))
    assert [measure["name"] for measure in panel["measures"]] == list(found.values)
    for measure in panel["measures"]:
        value = found.values[measure["name"]].numpy()
        upper = 1.0 if measure["name"] in ("confidence", "disagreement") else value.max()
        for kind, rows in (("right", ~wrong), ("wrong", wrong)):
            expected, _ = np.histogram(value[rows], bins=20, range=(0, upper))
            off = np.abs(np.array(measure[kind]) - expected).sum()  # a value on an edge may fall on either side
            assert (sum(measure[kind]), off <= 4) == (rows.sum(), True), measure["name"]
        uncertain = -value if measure["name"] == "confidence" else value
        assert measure["auroc"] == pytest.approx(roc_auc_score(wrong, uncertain), abs=1e-6)


def test_the_cards_are_the_items_of_largest_mutual_information(run, pep, data):
    inputs, labels = data
    found = pep.uncertainty(inputs)
    order = found.mutual_information.argsort(descending=True)[:6].tolist()
    assert [card["item"] for card in run.uncertainty["shown"]] == order
    for card in run.uncertainty["shown"]:
        k = card["item"]
        assert card["value"] == pytest.approx(float(found.mutual_information[k]), rel=1e-5)
        assert card["confidence"] == pytest.approx(float(found.confidence[k]), rel=1e-5)
        assert (card["label"], card["predicted"]) == (int(labels[k]), int(pep(inputs[k : k + 1]).argmax()))
        assert card["image"] == thumbnail(inputs[k])


def test_the_page_shows_them(run, tmp_path):
    found = Reader(pm.write_report(run, tmp_path / "one.html").read_text(encoding="utf-8"))
    text = squeezed(found.text)
    assert "Is it unsure where it is wrong?" in text
    assert "mutual information" in text
    [auroc] = [m["auroc"] for m in run.uncertainty["measures"] if m["name"] == "entropy"]
    assert f"entropyAUROC {100 * auroc:.1f} %" in text
    drawn = json.loads(found.scripts[0])["runs"][0]["uncertainty"]
    assert drawn[1]["wrong"] == run.uncertainty["measures"][1]["wrong"]
    assert sum(attrs.get("data-figure") == "uncertainty" for _, attrs in found.elements) == 6


def test_a_network_alone_has_confidence_and_entropy(pep, data):
    run = pm.record_run({"network": pep.model}, data, title="alone", images=False)
    assert [measure["name"] for measure in run.uncertainty["measures"]] == ["confidence", "entropy"]
    assert run.uncertainty["ranked"] == "entropy"
    assert not any("image" in card for card in run.uncertainty["shown"])


def test_a_segmentation_has_maps_over_its_most_uncertain_pictures(tmp_path):
    torch.manual_seed(0)
    network = nn.Conv2d(3, 4, 1).eval()
    with torch.no_grad():
        network.weight.mul_(9)
    data = torch.rand(5, 3, 6, 8), torch.randint(4, (5, 6, 8))
    pep = pm.fit(network, data, size=4)
    assert pep.sigma > 0
    run = pm.record_run({"network": network, "PEP": pep}, data, title="pixels")
    means = pep.uncertainty(data[0]).mutual_information.mean(dim=(1, 2))
    shown = run.uncertainty["shown"]
    assert [one["item"] for one in shown] == means.argsort(descending=True)[:3].tolist()
    for one in shown:
        k = one["item"]
        assert one["value"] == pytest.approx(float(means[k]), rel=1e-4)
        assert one["image"] == thumbnail(data[0][k])
        layer = np.asarray(Image.open(io.BytesIO(base64.b64decode(one["heat"]))))
        values = pep.uncertainty(data[0][k : k + 1]).mutual_information[0]
        assert layer.shape == (6, 8, 4)
        assert layer[0, 0, :3].tolist() == [213, 94, 0]
        assert np.abs(layer[..., 3] - (230 * values / values.max()).numpy()).max() <= 0.51
    assert {effect.image for effect in (*run.effects.helped, *run.effects.hurt)} == {None}
    page = pm.write_report(run, tmp_path / "pixels.html").read_text(encoding="utf-8")
    assert "Most uncertain pictures" in page
    assert page.count("its map of mutual information") == 3


def test_a_regression_has_no_such_panel(tmp_path):
    torch.manual_seed(0)
    network = nn.Linear(3, 2).eval()
    inputs = torch.randn(40, 3)
    run = pm.record_run({"network": network}, (inputs, torch.randn(40)), title="r", likelihood="gaussian")
    assert run.uncertainty is None
    assert "Is it unsure" not in pm.write_report(run, tmp_path / "r.html").read_text(encoding="utf-8")
