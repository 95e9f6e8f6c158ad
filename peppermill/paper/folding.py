"""Layers in evaluation, with less work: a batch norm is done by the product after it, a ReLU by the convolution before.

In evaluation a batch norm is a scale and a shift of each channel, which the next kernel can do as well. Padding must
not come between them, for it is not scaled and shifted; a pooling may, where no scale is negative, and a flattening.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peppermill.paper.pooling import max_pool
from peppermill.paper.stacked import State, apply_layer, convolution, count_of

#: Some of a network's layers, in order, by name.
Layers = list[tuple[str, nn.Module]]

_BETWEEN = (nn.MaxPool2d, nn.Flatten, nn.Dropout)


class Fold(NamedTuple):
    """A batch norm whose work the product after it does."""

    norm: str
    epsilon: float
    product: str


class Folded:
    """Layers of S networks for evaluation: images go through one network after another, vectors through all at once.

    A GPU is full of one network's images, and has better kernels for one network than for S groups. There images lie
    with their channels last, and become vectors in that order: the next kernel is turned instead of all of them.
    """

    def __init__(self, layers: Layers, state: State, channels_last: bool | None = None) -> None:
        self.folds = list(_folds(layers, state))
        gone = {one.norm for one in self.folds}
        kept = [(name, layer) for name, layer in layers if name not in gone]
        self.activated = {
            name
            for (name, layer), (_, after) in pairwise(kept)
            if isinstance(layer, nn.Conv2d) and isinstance(after, nn.ReLU)
        }
        self.layers = [one for k, one in enumerate(kept) if not (k and kept[k - 1][0] in self.activated)]
        flat = next((k for k, (_, layer) in enumerate(self.layers) if isinstance(layer, nn.Flatten)), 0)
        self.of_images = flat + 2 if flat else 0  # so many layers: up to the product after the flattening
        wanted = next(iter(state.values())).is_cuda if channels_last is None else channels_last
        self.turned = self._turned(flat) if wanted else None

    @torch.no_grad()
    def run(self, state: State, inputs: Iterable[Tensor]) -> Iterator[Tensor]:
        """What the layers make of each input, with the kernels of this state."""
        folded = folded_state(state, self.folds)
        if self.turned:
            name, channels = self.turned
            folded[name] = torch.unflatten(folded[name], 2, (channels, -1)).transpose(2, 3).flatten(2)
        each = [{name: value[s : s + 1] for name, value in folded.items()} for s in range(count_of(state))]
        for value in inputs:
            if self.of_images:
                images = value if value.ndim == 5 else torch.unflatten(value, 1, (len(each), -1))
                parts = [self._through(self.layers[: self.of_images], one, images[:, s]) for s, one in enumerate(each)]
                value = torch.cat(parts)
            yield self._through(self.layers[self.of_images :], folded, value)

    def _through(self, layers: Layers, state: State, value: Tensor) -> Tensor:
        for name, layer in layers:
            if name in self.activated:
                assert isinstance(layer, nn.Conv2d)
                value = _convolution_and_relu(layer, state[f"{name}.weight"], state[f"{name}.bias"], value)
            elif isinstance(layer, nn.ReLU):
                value = F.relu_(value)  # what goes into it is nobody else's
            elif isinstance(layer, nn.MaxPool2d):
                value = max_pool(layer, value)
            elif isinstance(layer, nn.Flatten) and self.turned:
                value = value.permute(0, 2, 3, 1).flatten(1).T.unsqueeze(0)
            else:
                value = apply_layer(name, layer, state, value)
        return value

    def _turned(self, flat: int) -> tuple[str, int] | None:
        """The kernel after the flattening, and how many channels the images before it have, where that is known."""
        channels = [layer.out_channels for _, layer in self.layers[:flat] if isinstance(layer, nn.Conv2d)]
        return (f"{self.layers[flat + 1][0]}.weight", channels[-1]) if channels else None


def folded_state(state: State, folds: Sequence[Fold]) -> State:
    """The state in which each product does the work of the batch norm before it."""
    folded = dict(state)
    for one in folds:
        scale, shift = _scale_and_shift(state, one.norm, one.epsilon)
        kernel = state[f"{one.product}.weight"]
        each = kernel.shape[2] // scale.shape[1]  # after a flattening, so many inputs of one channel
        shape = (len(kernel), 1, -1, *[1] * (kernel.ndim - 3))
        scale, shift = (value.repeat_interleave(each, dim=1).view(shape) for value in (scale, shift))
        folded[f"{one.product}.weight"] = kernel * scale
        folded[f"{one.product}.bias"] = state[f"{one.product}.bias"] + (kernel * shift).flatten(2).sum(dim=2)
    return folded


def _folds(layers: Layers, state: State) -> Iterator[Fold]:
    for k, (name, norm) in enumerate(layers):
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
            after = next((j for j in range(k + 1, len(layers)) if not isinstance(layers[j][1], _BETWEEN)), None)
            pooled = any(isinstance(layer, nn.MaxPool2d) for _, layer in layers[k + 1 : after])
            turns = pooled and bool((state[f"{name}.weight"] < 0).any())  # the largest would become the smallest
            if after is not None and _unpadded(layers[after][1]) and not turns:
                yield Fold(name, norm.eps, layers[after][0])


def _scale_and_shift(state: Mapping[str, Tensor], norm: str, epsilon: float) -> tuple[Tensor, Tensor]:
    """A batch norm in evaluation: scale * value + shift, each [S, channels]."""
    mean, variance, weight, bias = (
        state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    scale = weight / (variance + epsilon).sqrt()
    return scale, bias - mean * scale


def _convolution_and_relu(layer: nn.Conv2d, weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    arguments = convolution(layer, weight, bias, value)
    return torch.cudnn_convolution_relu(*arguments) if value.is_cuda else F.relu_(F.conv2d(*arguments))


def _unpadded(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.padding == (0, 0))
