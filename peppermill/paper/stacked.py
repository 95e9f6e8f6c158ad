"""Many networks of one design as one network: S of them side by side, so that a GPU is full and a CPU wastes nothing.

Vectors travel as [S, features, batch], where a dense layer is one batched product; images as [batch, S * channels,
height, width], where a convolution of S groups is S convolutions. Batch normalization sees S times the channels and
needs no change. Network s sees its own items, its own kernels and its own dropout masks, and nothing of its neighbours:
together or alone, it becomes the same network up to rounding (a test says so).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peppermill.paper.grouped import convolve_groups, is_suitable
from peppermill.paper.networks import initialize

#: Parameters and buffers of S networks by name, each [S, ...].
State = dict[str, Tensor]

#: The factors of a dropout layer: its name and the shape [S, batch, ...] in, 0 and 1 / (1 - rate) out.
Masks = Callable[[str, tuple[int, ...]], Tensor]

FEW_INPUTS = 4  # channels of a group; a GPU multiplies four numbers at a time


class Convolution(NamedTuple):
    """The arguments of `conv2d`, in its order."""

    images: Tensor
    kernels: Tensor
    bias: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def stack(network: nn.Sequential, seeds: Sequence[int], device: torch.device | str = "cpu") -> State:
    """The state of one network for each seed, freshly initialized."""
    states = [{k: v.clone() for k, v in initialize(network, seed).state_dict().items()} for seed in seeds]
    names = [name for name in states[0] if not name.endswith("num_batches_tracked")]
    return {name: torch.stack([state[name] for state in states]).to(device) for name in names}


def unstack(network: nn.Sequential, state: Mapping[str, Tensor], index: int) -> nn.Sequential:
    """Network number `index` of the stack, in the given module and in evaluation mode."""
    network.load_state_dict({name: value[index] for name, value in state.items()}, strict=False)
    return network.eval()


def forward(
    network: nn.Sequential,
    state: Mapping[str, Tensor],
    images: Tensor,
    *,
    training: bool = False,
    masks: Masks | None = None,
    momentum: float | None = None,
) -> Tensor:
    """Logits [S, classes, batch] of images [batch, S, channels, height, width], or [batch, channels, height, width].

    The latter are shared by all networks. With `training` batch normalization uses the batch and moves its averages in
    `state`, at `momentum` where it is given; with `masks` dropout is active.
    """
    value = entered(images, count_of(state))
    for name, layer in network.named_children():
        value = apply_layer(name, layer, state, value, training=training, masks=masks, momentum=momentum)
    return value


def entered(images: Tensor, count: int) -> Tensor:
    """Images as the first layer takes them: a view, whether each network has its own or all share them."""
    return images if images.ndim == 5 else images.unsqueeze(1).expand(-1, count, -1, -1, -1)


def apply_layer(
    name: str,
    layer: nn.Module,
    state: Mapping[str, Tensor],
    value: Tensor,
    *,
    training: bool = False,
    masks: Masks | None = None,
    momentum: float | None = None,
) -> Tensor:
    """One layer of all networks."""
    if isinstance(layer, nn.Conv2d):
        return _convolved(layer, state[f"{name}.weight"], state[f"{name}.bias"], value)
    if isinstance(layer, nn.Linear):
        return _dense(state[f"{name}.weight"], state[f"{name}.bias"], value)
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return _normalization(name, layer, state, value, training, momentum)
    if isinstance(layer, nn.Flatten):
        return value.reshape(len(value), count_of(state), -1).permute(1, 2, 0)
    if isinstance(layer, nn.Dropout):
        return value if masks is None else _dropout(value, masks, name, count_of(state))
    return layer(value)  # type: ignore[no-any-return]  # ReLU and pooling act on each channel alone


def count_of(state: Mapping[str, Tensor]) -> int:
    """S, the number of networks in the stack."""
    return len(next(iter(state.values())))


def convolution(layer: nn.Conv2d, weight: Tensor, bias: Tensor, value: Tensor) -> Convolution:
    """S convolutions as one."""
    count, _, inputs = weight.shape[:3]
    shared = value.ndim == 5 and value.stride(1) == 0  # all networks look at the same images: one plain convolution
    flat = value[:, 0] if shared else value.reshape(len(value), count * inputs, *value.shape[-2:])
    mixed = not shared and flat.is_cuda and count > 1 and inputs < FEW_INPUTS
    kernels = block_diagonal(weight) if mixed else weight.flatten(0, 1)
    padding, groups = (int(layer.padding[0]), int(layer.padding[1])), 1 if shared or mixed else count
    return Convolution(_form(flat), _form(kernels), bias.flatten(), (1, 1), padding, (1, 1), groups)


def _convolved(layer: nn.Conv2d, weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    if value.ndim == 4 and is_suitable(value, weight):
        found: Tensor = convolve_groups(value, weight, int(layer.padding[0]))
        return found + bias.view(1, -1, 1, 1)
    return F.conv2d(*convolution(layer, weight, bias, value))


def block_diagonal(weight: Tensor) -> Tensor:
    """Kernels [S, outputs, inputs, ...] as those of one convolution, [S * outputs, S * inputs, ...], zero elsewhere.

    On a GPU the products with zeros are cheaper than the kernels for groups of one or three channels.
    """
    own = torch.eye(len(weight), dtype=weight.dtype, device=weight.device).view(len(weight), 1, -1, 1, 1, 1)
    return (weight.unsqueeze(2) * own).flatten(2, 3).flatten(0, 1)


def _form(value: Tensor) -> Tensor:
    """On a GPU channels last, the form that tensor cores take without a copy back and forth."""
    if not value.is_cuda:
        return value
    formed = value.contiguous(memory_format=torch.channels_last)
    height, width = value.shape[2:]  # of gray images torch cannot tell the form, unless their strides say it
    gray = value.shape[1] == 1 and not value.requires_grad
    return formed.as_strided(value.shape, (height * width, 1, width, 1)) if gray else formed


def _dense(weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    if value.stride(0) == 0:  # all networks look at the same vectors: one plain product
        return torch.addmm(bias.view(-1, 1), weight.flatten(0, 1), value[0]).view(*weight.shape[:2], -1)
    return torch.baddbmm(bias.unsqueeze(2), weight, value)


def _normalization(
    name: str,
    layer: nn.BatchNorm1d | nn.BatchNorm2d,
    state: Mapping[str, Tensor],
    value: Tensor,
    training: bool,
    momentum: float | None,
) -> Tensor:
    """Every channel of every network is normalized alone, so S networks are one with S times the channels."""
    speed = layer.momentum if momentum is None else momentum
    assert speed is not None
    mean, variance, weight, bias = (
        state[f"{name}.{part}"].reshape(-1) for part in ("running_mean", "running_var", "weight", "bias")
    )
    channels = value if value.ndim == 4 else value.reshape(1, len(mean), -1)
    if training and value.ndim == 3 and not value.is_cuda and value.shape[2] > 1:
        return _normalized_rows(channels, mean, variance, weight, bias, speed, layer.eps).view(value.shape)
    normal = F.batch_norm(channels, mean, variance, weight, bias, training, speed, layer.eps)
    return normal.view(value.shape)


def _normalized_rows(
    rows: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, speed: float, epsilon: float
) -> Tensor:
    """Batch normalization of [1, channels, batch], which is group normalization with a channel in each group.

    On a CPU the latter takes a quarter of the time: it sums eight or sixteen numbers at once, the former one.
    """
    _, channels, batch = rows.shape
    normal, means, scales = torch.native_group_norm(rows, weight, bias, 1, channels, batch, channels, epsilon)
    with torch.no_grad():
        mean.lerp_(means[0], speed)
        variance.lerp_((scales[0].pow(-2) - epsilon) * (batch / (batch - 1)), speed)
    return normal


def _dropout(value: Tensor, masks: Masks, name: str, count: int) -> Tensor:
    """The factors of an image lie as [S, batch, height, width, channels], those of a vector as [S, batch, features]."""
    if value.ndim == 3:
        factors = masks(name, (count, value.shape[2], value.shape[1])).transpose(1, 2)
        # a CPU multiplies what lies in one order and is of one type several times faster, forth and back
        return value * (factors if value.is_cuda else factors.contiguous().to(value.dtype))
    batch, channels, height, width = value.shape
    factors = masks(name, (count, batch, height, width, channels // count)).permute(1, 2, 3, 0, 4)
    return (value.permute(0, 2, 3, 1) * factors.reshape(batch, height, width, channels)).permute(0, 3, 1, 2)
