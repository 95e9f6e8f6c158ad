"""The embedded default: a small trained network with its validation and test data."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn

from peppermill.sources.small_images import read_idx

__all__ = ["CLASS_NAMES", "DemoNetwork", "data", "network", "test", "validation"]

FOLDER = files(__name__)
SPLIT_SEED = 0
CLASS_NAMES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EPSILON = 1e-3  # of batch normalization, as in Keras and so in the paper: tames channels that are almost never active


class DemoNetwork(nn.Module):
    """Logits of the ten garments, [batch, 10], from images [batch, 1, 28, 28] scaled to 0..1.

    Two convolutions and one dense layer, each followed by ReLU and then batch normalization, as in Section 3.2;
    narrower than the paper's network and with a stride in place of its first pooling, so that its weights fit in half
    a megabyte and the demo in a minute.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(16, EPSILON),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.BatchNorm2d(32, EPSILON),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(800, 128),
            nn.ReLU(),
            nn.BatchNorm1d(128, EPSILON),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def network() -> DemoNetwork:
    """The trained network, in evaluation mode; `scripts/train_demo_network.py` made its weights."""
    model = DemoNetwork()
    model.load_state_dict(load((FOLDER / "network.safetensors").read_bytes()))
    return model.eval()


def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(validation, test).

    Fashion-MNIST's 10,000 test images, which the network has never seen, in a fixed split of two halves.
    """
    images, labels = (read_idx(FOLDER / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    inputs = torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1)
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(len(labels)))
    targets = torch.from_numpy(labels.astype(np.int64))
    validation, test = order[:5000].sort().values, order[5000:].sort().values
    return (inputs[validation], targets[validation]), (inputs[test], targets[test])


def validation() -> tuple[Tensor, Tensor]:
    """The first half alone, for the command line: `python:peppermill.demo:validation`."""
    return data()[0]


def test() -> tuple[Tensor, Tensor]:
    """The second half alone."""
    return data()[1]
