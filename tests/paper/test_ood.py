"""The WideResNet of the out-of-distribution experiment, its data and its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from peppermill.paper import ood
from peppermill.paper.machine import Machine
from peppermill.paper.wide_resnet import WideResNet, initialize


def settings(folder: Path, out: Path) -> ood.Settings:
    return ood.tiny(ood.Settings(data=folder, out=out, checkpoints=out / "work", say=lambda text: None))


def test_a_wide_resnet_28_10_has_the_published_size() -> None:
    """36.5 million parameters and 28 layers with weights (Zagoruyko and Komodakis, table 4)."""
    with torch.device("meta"):
        network = WideResNet(10)
    parameters = sum(p.numel() for p in network.parameters())
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    deep = [m for m in convolutions if m.kernel_size == (3, 3)]
    assert round(parameters / 1e6, 1) == 36.5
    assert len(deep) == 25  # the stem and two for each of 12 blocks
    assert len(convolutions) == 28  # and the three projections
    assert {m.out_channels for m in deep} == {16, 160, 320, 640}


def test_a_wide_resnet_halves_the_image_twice() -> None:
    network = initialize(WideResNet(5, depth=10, width=1), 17).eval()
    seen: list[tuple[int, ...]] = []
    for block in network.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[1:])))
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert seen == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    with pytest.raises(ValueError, match="`depth=12` must be 6 n \\+ 4"):
        WideResNet(5, depth=12)


def test_the_five_classes_are_numbered_anew_and_the_others_are_unknown(data_folder: Path, tmp_path: Path) -> None:
    data = ood.five_classes(settings(data_folder, tmp_path))
    everything = ood.images("cifar10", data_folder)
    held = everything.test[1]
    assert len(data.outside) == sum(int((held == k).sum()) for k in (3, 4, 5, 6, 7))
    first = int((held == 8).nonzero()[0])  # ship, the fourth of the known classes
    place = int(torch.isin(held[:first], torch.tensor([0, 1, 2, 8, 9])).sum())
    assert data.inside[1][place] == 3
    assert torch.equal(data.inside[0][place], everything.test[0][first].float() / 255)
    assert len(data.train[1]) + len(data.validation[1]) == int(
        torch.isin(everything.train[1], torch.tensor([0, 1, 2, 8, 9])).sum()
    )


def test_shifted_images_are_windows_of_the_padded_image_or_of_its_mirror() -> None:
    images = torch.rand(6, 3, 8, 8, generator=Generator().manual_seed(0))
    moved = ood.shifted_and_mirrored(images, Generator().manual_seed(1))
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = 0
    for image, both in zip(moved, padded, strict=True):
        windows = [both[:, y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
        plain = any(torch.equal(image, window) for window in windows)
        assert plain or any(torch.equal(image, window.flip(2)) for window in windows)
        mirrored += not plain
    assert 0 < mirrored < 6


def test_a_killed_training_goes_on_to_the_same_network(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ood, "PATIENCE", 0.0)
    small = replace(settings(data_folder, tmp_path), epochs=2, machine=Machine(precision="float32"))
    data = ood.five_classes(small)
    whole = ood.train(replace(small, checkpoints=tmp_path / "other"), data)

    def say(text: str) -> None:
        if "epoch  2" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ood.train(replace(small, say=say), data)
    said: list[str] = []
    continued = ood.train(replace(small, say=said.append), data)
    assert len(said) == 1
    for name, value in whole.state_dict().items():
        assert torch.equal(continued.state_dict()[name], value)
