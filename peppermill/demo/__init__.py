"""The embedded default: a small trained network with its validation and test data."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from peppermill.demo.network import CLASS_NAMES, DemoNetwork
from peppermill.sources.small_images import read_idx

__all__ = ["CLASS_NAMES", "DemoNetwork", "data", "network", "test", "validation"]

FOLDER = files(__name__)
SPLIT_SEED = 0


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
