"""Corrupted images and images of other data sets: tiny runs, and the page that is written from results."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
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
from experiments.resume import fingerprint
from experiments.table1.cifar_resnet import CifarResNet
from experiments.table1.imagenet_networks import NETWORKS, cifar_resnet
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


def test_the_page_says_in_short_what_the_results_show() -> None:
    """The sentence was typed: from severity 2 on, T alone or with noise is best, and the mirror image does not help."""
    for path in sorted((ROOT / "results" / "shift").glob("shift-*.json")):
        cells = json.loads(path.read_text())["cells"]
        for severity in "2345":
            shown = [scores for name, scores in cells.items() if name.endswith(f" {severity}")]
            nll = {method: np.median([one[method]["nll"] for one in shown]) for method in shown[0]}
            assert min(nll, key=nll.__getitem__) in ("temperature scaling", "PEP with temperature")
            assert nll["mirror image, T"] > nll["temperature scaling"]


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(ImportError, match=r"`shift` needs imagecorruptions .*pip install imagecorruptions==1\.1\.2"):
        shift.corrupt(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 1)


def test_the_names_are_those_of_the_package() -> None:
    package = pytest.importorskip("imagecorruptions")
    assert tuple(package.get_corruption_names()) == shift.CORRUPTIONS


def silent(text: str) -> None:
    """Nothing is printed."""


@pytest.fixture
def small_run(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> shift.Settings:
    """One corruption of 30 images, for random weights of a network with 8 layers in place of 20."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    small = replace(NETWORKS["ResNet20-CIFAR10"], build=partial(cifar_resnet, 8))
    monkeypatch.setitem(NETWORKS, "ResNet20-CIFAR10", small)
    torch.save({"state_dict": CifarResNet(8).state_dict()}, tmp_path / "ResNet20-CIFAR10.th")
    return shift.Settings(
        data=data_folder, out=tmp_path / "results", checkpoints=tmp_path / "work", weights=tmp_path, say=silent,
        networks=("ResNet20-CIFAR10",), corruptions=("contrast",), severities=(1,), tuning=60, images=30, size=2,
    )  # fmt: skip


@pytest.fixture
def kept(small_run: shift.Settings) -> Path:
    """A file of that run's images, inverted: no package makes such images, so whoever has them has read the file."""
    pixels = read_image_set("cifar10", small_run.data).test[0][60:90]
    path = small_run.checkpoints / "corrupted" / "contrast-1.npz"
    path.parent.mkdir(parents=True)
    made_of = {"clean": fingerprint(pixels), "corruption": "contrast", "severity": 1, "images": 30}
    np.savez_compressed(path, images=(255 - pixels).numpy(), made_of=np.array(json.dumps(made_of)))
    return path


def test_images_that_were_kept_are_read(small_run: shift.Settings, kept: Path) -> None:
    pixels = read_image_set("cifar10", small_run.data).test[0][60:90]
    assert torch.equal(shift.corrupted(pixels, kept.parent, silent, "contrast", 1), 255 - pixels)


@pytest.mark.slow
def test_a_run_with_images_that_were_kept_needs_no_package(
    small_run: shift.Settings, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network's NLL under the corruption is that of the images in the file, by a plain loop."""
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    found = shift.main(small_run)["ResNet20-CIFAR10"]["cells"]
    assert set(found) == {"none 0", "contrast 1"}
    pixels, labels = (part[60:90] for part in read_image_set("cifar10", small_run.data).test)
    network = NETWORKS["ResNet20-CIFAR10"]
    model = network.build(small_run.weights / "ResNet20-CIFAR10.th")  # type: ignore[operator]
    for cell, images in (("none 0", pixels), ("contrast 1", 255 - pixels)):
        with torch.no_grad():
            expected = torch.nn.functional.cross_entropy(model(network.prepare(images)), labels)
        assert found[cell]["network"]["nll"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("changes", [{"tuning": 61}, {"images": 29}, {"severities": (1, 2)}])
def test_images_of_another_run_are_refused_before_anything_is_tuned(
    small_run: shift.Settings, kept: Path, changes: dict[str, Any]
) -> None:
    if "severities" in changes:  # the file of severity 1 under the name of severity 2
        shutil.copy(kept, kept.with_name("contrast-2.npz"))
    said: list[str] = []
    with pytest.raises(ValueError, match=r"contrast-\d\.npz was made from other images"):
        shift.main(replace(small_run, say=said.append, **changes))
    assert said == []


def test_a_damaged_file_of_images_is_named(small_run: shift.Settings, kept: Path) -> None:
    whole = kept.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:400] + bytes(200) + whole[600:]):
        kept.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"contrast-1\.npz is damaged .*: delete it to make it again"):
            shift.main(small_run)
    np.savez_compressed(kept, images=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match=r"contrast-1\.npz is damaged"):
        shift.main(small_run)


@pytest.mark.slow
def test_a_tiny_run_under_every_corruption(small_run: shift.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """15 corruptions change the images, twice in the same way; the run keeps them, and reads them later."""
    pytest.importorskip("imagecorruptions")
    images = read_image_set("cifar10", small_run.data).test[0]
    for name in shift.CORRUPTIONS:
        changed = shift.corrupt(images[:3], name, 3)
        assert changed.shape == images[:3].shape
        assert not torch.equal(changed, images[:3])
        assert torch.equal(changed, shift.corrupt(images[:3], name, 3))
    found = shift.main(small_run)["ResNet20-CIFAR10"]
    assert set(found["cells"]) == {"none 0", "contrast 1"}
    assert found["cells"]["none 0"]["network"]["nll"] != found["cells"]["contrast 1"]["network"]["nll"]
    assert [path.name for path in (small_run.checkpoints / "corrupted").iterdir()] == ["contrast-1.npz"]
    made = shift.corrupt(images[60:90], "contrast", 1)
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    assert torch.equal(shift.corrupted(images[60:90], small_run.checkpoints / "corrupted", silent, "contrast", 1), made)
