"""Corrupted images and images of other data sets: tiny runs, and the page that is written from results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

import peppermill as pm
from experiments import shift, unknown_images
from experiments.image_sets import read_image_set
from experiments.page.shift_page import page_of, write_page
from experiments.table1.cifar_resnet import CifarResNet
from experiments.unknown_images import intervals
from tests.experiments.conftest import drawn, write_idx

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder with the test images of MNIST and notMNIST, nothing else."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("mnist", "notmnist")):
        pixels, labels = drawn(40, 10, (28, 28), seed)
        (tmp_path / "data" / name).mkdir(parents=True)
        write_idx(tmp_path / "data" / name / "t10k-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / "data" / name / "t10k-labels-idx1-ubyte.gz", labels)
    return {"data": tmp_path / "data", "out": tmp_path / "results", "checkpoints": tmp_path / "work", "say": str}


def test_test_images_are_read_without_training_images(here: dict[str, Any]) -> None:
    assert read_image_set("notmnist", here["data"], test_only=True).test[0].shape == (40, 1, 28, 28)
    with pytest.raises(ValueError, match=r"notmnist in .* is damaged or incomplete"):
        read_image_set("notmnist", here["data"])


def test_strange_images_are_scored_by_every_method(here: dict[str, Any]) -> None:
    """The network's AUROC by confidence is scikit-learn's; only members that differ have mutual information."""
    asked = unknown_images.Settings(**here, images=40, size=2, resamples=5)
    found = unknown_images.main(asked)["demo"]["models"][0]["outside"]
    assert set(found) == {"mnist", "notmnist"}
    model, (_, test) = pm.demo.network(), pm.demo.data()
    strange = read_image_set("mnist", here["data"], test_only=True).test[0].float() / 255
    with torch.no_grad():
        confidence = [model(images).softmax(1).amax(1) for images in (test[0][:40], strange)]
    truth = np.repeat([0, 1], 40)
    expected = roc_auc_score(truth, 1 - torch.cat(confidence).double().numpy())
    assert found["mnist"]["network"]["confidence"]["auroc"]["value"] == pytest.approx(expected, abs=1e-6)
    assert "mutual information" not in found["mnist"]["network"]
    assert "mutual information" not in found["mnist"]["temperature scaling"]
    assert "mutual information" in found["mnist"]["PEP"]
    assert "### The demo network" in Path("docs/shift.md").read_text()
    assert unknown_images.main(asked)["demo"]["models"][0]["outside"] == found


def test_differences_are_paired() -> None:
    """The same score twice: its difference from itself is 0 in every resample, whatever the spread of its AUROC."""
    generator = np.random.default_rng(0)
    known, strange = ({"network": {"confidence": generator.normal(mean, 1, 50)}} for mean in (0.0, 1.0))
    for part in (known, strange):
        part["PEP"] = {"confidence": part["network"]["confidence"] * 2}
    found = intervals(known, strange, 20)["PEP"]["confidence"]["auroc"]
    assert (found["difference"], found["difference interval"]) == (0.0, [0.0, 0.0])
    low, high = found["interval"]
    assert low < found["value"] < high


def scored(value: float) -> dict[str, Any]:
    return {
        "value": value,
        "interval": [value - 0.1, value + 0.1],
        "difference": value - 0.5,
        "difference interval": [0.05, 0.2],
    }


def test_several_networks_have_an_interval_over_networks() -> None:
    """AUROCs of .6, .7 and .8: Student's t by scipy; FPR95 is better below, so a positive difference is a loss."""
    values = [0.6, 0.7, 0.8]
    models = [{"outside": {"mnist": {"PEP": {"entropy": {"auroc": scored(v), "fpr95": scored(v)}}}}} for v in values]
    result = {"network": "fashion-mnist", "models": models, "provenance": {"command": "run", "commit": "abc"}}
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=stats.sem(values))
    assert f"| 0.700 [{low:.3f}, {high:.3f}] | 70.0 [{100 * low:.1f}, {100 * high:.1f}] |" in page_of([], [result])
    alone = page_of([], [result | {"models": models[:1]}])
    assert "| 0.600 [0.500, 0.700] ✓ | 60.0 [50.0, 70.0] ✗ |" in alone


def test_corruptions_are_shown_by_their_quartiles() -> None:
    """Three corruptions of one severity with NLL 1, 2 and 4: median 2, quartiles 1.5 and 3."""
    cells = {
        f"{name} 1": {"network": dict.fromkeys(shift.SCORES, nll)} for name, nll in (("a", 1.0), ("b", 2.0), ("c", 4.0))
    }
    cells["none 0"] = {"network": dict.fromkeys(shift.SCORES, 0.5)}
    made = {"command": "run", "commit": "abc"}
    result = {"network": "x", "title": "X", "cells": cells, "items": 7, "provenance": made}
    found = page_of([result], [])
    assert "| clean | network | 0.500 | 0.500 | 50.0 | 50.0 | 50.00 |" in found
    assert "| 1 | network | 2.000 [1.500, 3.000] |" in found


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    write_page(ROOT / "results/shift", tmp_path / "shift.md")
    assert (tmp_path / "shift.md").read_text() == (ROOT / "docs/shift.md").read_text()


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(ImportError, match=r"`shift` needs imagecorruptions .*pip install imagecorruptions==1\.1\.2"):
        shift.corruptions()


@pytest.mark.slow
def test_a_tiny_run_under_every_corruption(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """15 corruptions change the images, twice in the same way."""
    pytest.importorskip("imagecorruptions")
    monkeypatch.chdir(tmp_path)
    corrupt, names = shift.corruptions()
    images = read_image_set("cifar10", data_folder).test[0][:3]
    assert len(names) == 15
    for name in names:
        changed = corrupt(images, name, 3)
        assert changed.shape == images.shape
        assert not torch.equal(changed, images)
        assert torch.equal(changed, corrupt(images, name, 3))
    torch.manual_seed(0)
    torch.save({"state_dict": CifarResNet(20).state_dict()}, tmp_path / "ResNet20-CIFAR10.th")
    found = shift.main(shift.Settings(
        data=data_folder, out=tmp_path / "results", checkpoints=tmp_path / "work", weights=tmp_path, say=str,
        networks=("ResNet20-CIFAR10",), corruptions=("contrast",), severities=(1,), tuning=60, images=30, size=2,
    ))["ResNet20-CIFAR10"]  # fmt: skip
    assert set(found["cells"]) == {"none 0", "contrast 1"}
    assert found["cells"]["none 0"]["network"]["nll"] != found["cells"]["contrast 1"]["network"]["nll"]
