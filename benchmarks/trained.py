"""Trained networks to measure on: those of Table 2, one seed each, and a ResNet-56 that others trained.

The networks of Table 2 are trained once, as the paper trained them but on fewer images where 15 epochs of all of them
take a CPU too long, and kept in `.local/trained/`. `python -m benchmarks.trained` trains them all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.paper.machine import Machine
from peppermill.paper.rows import EPOCHS, ROWS, SEEDS, row_data
from peppermill.paper.stacked import unstack
from peppermill.paper.trainer import Schedule
from peppermill.paper.training import train_together
from peppermill.sources.small_images import VARIABLE, data

FOLDER = Path(__file__).resolve().parent.parent / ".local" / "trained"
IMAGES = {"mnist-mlp": 50_000, "mnist-cnn": 12_000, "fashion-mnist": 12_000, "cifar10": 20_000, "cifar100": 20_000}
RESNET_FILE = "cifar10-resnets/resnet56-4bfd9763.th"  # github akamaster/pytorch_resnet_cifar10
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of that network's inputs

#: A network in evaluation mode and the validation data on which to tune it.
Trained = tuple[nn.Module, tuple[Tensor, Tensor]]


def table2(name: str) -> Trained:
    """The network of a row of Table 2, seed 17, and the row's validation images."""
    row = ROWS[name]
    found = row_data(row, None, "cpu")
    network, count = row.build(), IMAGES[name]
    trained = train_together(
        network,
        found.train.images[:count],
        found.train.labels[:count],
        SEEDS[:1],
        Schedule((row.learning_rate,) * EPOCHS),
        Machine(),
        checkpoint=FOLDER / f"{name}.safetensors",
        settings={"row": name},
        say=lambda text: print(f"{name}: {text}", flush=True),
    )
    return unstack(row.build(), trained.state, 0), (found.validation.images, found.validation.labels)


def resnet56(images: int = 1000) -> Trained:
    """ResNet-56 on CIFAR-10 and images of the test set: its training saw all others."""
    state = _state(Path(os.environ[VARIABLE]) / RESNET_FILE)
    network = ResNet(blocks=9)
    network.load_state_dict(state)
    inputs, labels = data("cifar10", "test")
    normal = (inputs[:images] - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
    return network.eval(), (normal, labels[:images])


class ResNet(nn.Module):
    """A ResNet of 6 n + 2 layers for 32x32 images (He et al., 2016), under the names of the published weights."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(width if k else before, width) for k in range(blocks)))
            for before, width in ((16, 16), (16, 32), (32, 64))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        value = torch.relu(self.bn1(self.conv1(images)))
        value = self.layer3(self.layer2(self.layer1(value)))
        logits: Tensor = self.linear(value.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.added = outputs // inputs, outputs - inputs
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, value: Tensor) -> Tensor:
        skip = nn.functional.pad(value[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0) + 2 * (self.added // 2,))
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(value))))) + skip)


def _state(path: Path) -> Mapping[str, Any]:
    published = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("module."): value for name, value in published.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(IMAGES))
    for name in parser.parse_args().names:
        table2(name)


if __name__ == "__main__":
    main()
