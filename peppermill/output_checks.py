"""Outputs and labels that cannot be what they should be, told before a wrong number comes of them."""

from __future__ import annotations

import torch
from torch import Tensor


def check_integers(labels: Tensor) -> None:
    """Class numbers, and not shares, scores or yes and no."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"labels have type {labels.dtype}, but class numbers are integers: pass `labels.long()`, or for one-hot "
            "or soft labels `labels.argmax(dim=1)`."
        )


def refuse_probabilities(outputs: Tensor) -> None:
    """Rows of non-negative numbers that sum to one: a softmax of those is a wrong, timid prediction."""
    sums_to_one = (outputs.float().sum(dim=-1) - 1).abs() < max(1e-3, torch.finfo(outputs.dtype).eps)
    if len(outputs) and bool((outputs >= 0).all()) and bool(sums_to_one.all()):
        raise ValueError(
            "the network's outputs look like probabilities (every row sums to 1), not logits. Remove the last softmax "
            "(Keras: `model.layers[-1].activation = keras.activations.linear`), or return `probabilities.log()`."
        )
