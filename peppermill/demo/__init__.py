"""The embedded default: a small trained network with its validation and test data."""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from peppermill.demo.network import CLASS_NAMES, DemoNetwork

__all__ = ["CLASS_NAMES", "DemoNetwork", "data", "network", "test", "validation"]

_SPLIT_SEED = 0


def network() -> DemoNetwork:
    """The trained network, in evaluation mode; `scripts/train_demo_network.py` made its weights."""
    model = DemoNetwork()
    model.load_state_dict(load(_read("network.safetensors")))
    return model.eval()


def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(validation, test).

    Fashion-MNIST's 10,000 test images, which the network has never seen, in a fixed split of two halves.
    """
    images, labels = _idx("t10k-images-idx3-ubyte.gz"), _idx("t10k-labels-idx1-ubyte.gz")
    inputs = torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1)
    order = torch.from_numpy(np.random.RandomState(_SPLIT_SEED).permutation(len(labels)))
    targets = torch.from_numpy(labels.astype(np.int64))
    validation, test = order[:5000].sort().values, order[5000:].sort().values
    return (inputs[validation], targets[validation]), (inputs[test], targets[test])


def validation() -> tuple[Tensor, Tensor]:
    """The first half alone, for the command line: `python:peppermill.demo:validation`."""
    return data()[0]


def test() -> tuple[Tensor, Tensor]:
    """The second half alone."""
    return data()[1]


def _idx(name: str) -> np.ndarray:
    """An idx file of unsigned bytes as an array of its own shape."""
    raw = gzip.decompress(_read(name))
    shape = np.frombuffer(raw, ">i4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _read(name: str) -> bytes:
    return files(__name__).joinpath(name).read_bytes()
