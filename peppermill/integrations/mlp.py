"""A small network, trained on the spot, for those who bring none to `PepClassifier`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

BATCH = 200  # items in a step of the optimizer
LEARNING_RATE = 0.003  # of Adam: a network this small learns standardized features in a few hundred steps


class Standardize(nn.Module):
    """Features with the mean and deviation that they have in the training data taken out; not a parameter."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        deviation = inputs.std(dim=0, correction=0)
        self.register_buffer("mean", inputs.mean(dim=0))
        self.register_buffer("deviation", torch.where(deviation > 0, deviation, 1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.deviation


def train_mlp(
    inputs: Tensor, labels: Tensor, classes: int, *, hidden: Sequence[int], epochs: int, seed: int
) -> nn.Sequential:
    """ReLU layers on standardized features, trained by Adam with cross-entropy; in evaluation mode, in float64.

    It is trained to the end, without early stopping or weight decay, and so becomes too sure of itself: that is what
    the tuning afterwards is for. The global generator is left as it was.
    """
    _check(hidden, epochs)
    inputs = inputs.double()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        network = _layers(inputs, classes, hidden)
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        for _ in range(epochs):
            for chosen in torch.split(torch.randperm(len(inputs)), BATCH):
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(network(inputs[chosen]), labels[chosen]))
                optimizer.step()
    network.zero_grad()
    return network.eval()


def kept_for_tuning(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Which items are not trained on, [N] of bool: of every class the same share, at least one but never all."""
    if not 0 < share < 1:
        raise ValueError(f"`validation={share}` must be a share of the items between 0 and 1, as in 0.2.")
    kept, generator = np.zeros(len(labels), dtype=bool), np.random.default_rng(seed)
    for label in np.unique(labels):
        of_class = generator.permutation(np.flatnonzero(labels == label))
        kept[of_class[: min(max(1, round(share * len(of_class))), len(of_class) - 1)]] = True
    if not kept.any():
        raise ValueError(
            f"{len(labels)} samples with as many classes leave none to tune on: each class needs two, one to train on "
            "and one to tune on."
        )
    return kept


def _layers(inputs: Tensor, classes: int, hidden: Sequence[int]) -> nn.Sequential:
    widths = [inputs[0].numel(), *hidden]
    layers: list[nn.Module] = [Standardize(inputs)]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, dtype=inputs.dtype), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes, dtype=inputs.dtype))


def _check(hidden: Sequence[int], epochs: int) -> None:
    widths = hidden if isinstance(hidden, (tuple, list)) else [0]
    if not all(isinstance(width, (int, np.integer)) and width > 0 for width in widths):
        raise ValueError(f"`hidden={hidden!r}` must be the widths of the hidden layers, as in (64,) or (64, 32).")
    if not isinstance(epochs, (int, np.integer)) or epochs < 1:
        raise ValueError(f"`epochs={epochs!r}` must be a whole number, at least 1.")
