"""Many networks of one design as one network: S of them side by side, so that a GPU is full and a CPU wastes nothing.

Images travel as [batch, S * channels, height, width], where a convolution of S groups is S convolutions and batch
normalization needs no change; vectors travel as [S, features, batch], where a dense layer is one batched product.
Network s sees its own items, its own kernels and its own dropout masks, and nothing of its neighbours: together or
alone, it becomes the same network up to rounding (a test says so).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peppermill.paper.networks import initialize

#: Parameters and buffers of S networks by name, each [S, ...].
State = dict[str, Tensor]

#: The factors of a dropout layer: its name and the shape [S, batch, ...] in, 0 and 1 / (1 - rate) out.
Masks = Callable[[str, tuple[int, ...]], Tensor]


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
    unfold: bool = False,
) -> Tensor:
    """Logits [S, classes, batch] of images [batch, S, channels, height, width], or [batch, channels, height, width].

    The latter are shared by all networks. With `training` batch normalization uses the batch and moves its averages in
    `state`, at `momentum` where it is given; with `masks` dropout is active.
    """
    value = images if images.ndim == 5 else images.unsqueeze(1).expand(-1, count_of(state), -1, -1, -1)
    for name, layer in network.named_children():
        value = apply_layer(name, layer, state, value, training=training, masks=masks, momentum=momentum, unfold=unfold)
    return value


def apply_layer(
    name: str,
    layer: nn.Module,
    state: Mapping[str, Tensor],
    value: Tensor,
    *,
    training: bool = False,
    masks: Masks | None = None,
    momentum: float | None = None,
    unfold: bool = False,
) -> Tensor:
    """One layer of all networks."""
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer, state[f"{name}.weight"], state[f"{name}.bias"], value, unfold)
    if isinstance(layer, nn.Linear):
        return _dense(state[f"{name}.weight"], state[f"{name}.bias"], value)
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return _normalization(name, layer, state, value, training, momentum)
    if isinstance(layer, nn.Flatten):
        return value.reshape(len(value), count_of(state), -1).permute(1, 2, 0)
    if isinstance(layer, nn.Dropout):
        return value if masks is None else _dropout(value, masks, name, count_of(state))
    return layer(value)  # type: ignore[no-any-return]  # ReLU and pooling act on each number or channel alone


def count_of(state: Mapping[str, Tensor]) -> int:
    """S, the number of networks in the stack."""
    return len(next(iter(state.values())))


def _convolution(layer: nn.Conv2d, weight: Tensor, bias: Tensor, value: Tensor, unfold: bool) -> Tensor:
    count, outputs, inputs = weight.shape[:3]
    padding = (int(layer.padding[0]), int(layer.padding[1]))
    kernels = weight.reshape(count * outputs, inputs, *weight.shape[3:])
    if value.ndim == 5 and value.stride(1) == 0:  # all networks look at the same images: one plain convolution
        return F.conv2d(value[:, 0], kernels, bias.reshape(-1), padding=padding)
    if unfold:
        return _unfolded_convolution(weight, bias, value.reshape(len(value), count, inputs, *value.shape[-2:]), padding)
    flat = value.reshape(len(value), count * inputs, *value.shape[-2:])
    return F.conv2d(flat, kernels, bias.reshape(-1), padding=padding, groups=count)


def _dense(weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    if value.stride(0) == 0:  # all networks look at the same vectors: one plain product
        return (weight.flatten(0, 1) @ value[0]).view(*weight.shape[:2], -1) + bias.unsqueeze(2)
    return torch.baddbmm(bias.unsqueeze(2), weight, value)


def _unfolded_convolution(weight: Tensor, bias: Tensor, value: Tensor, padding: tuple[int, int]) -> Tensor:
    """The convolution as one batched product of patches: more memory, but no grouped kernel is needed."""
    batch, count, inputs, height, width = value.shape
    outputs, side = weight.shape[1], weight.shape[-1]
    patches = F.unfold(value.reshape(batch * count, inputs, height, width), side, padding=padding)
    product = weight.reshape(count, outputs, -1) @ patches.view(batch, count, *patches.shape[1:])
    rows, columns = height + 2 * padding[0] - side + 1, width + 2 * padding[1] - side + 1
    return (product + bias.unsqueeze(2)).reshape(batch, count * outputs, rows, columns)


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
    channels = value if isinstance(layer, nn.BatchNorm2d) else value.reshape(1, -1, value.shape[-1])
    normal = F.batch_norm(channels, mean, variance, weight, bias, training, speed, layer.eps)
    return normal.view(value.shape)


def _dropout(value: Tensor, masks: Masks, name: str, count: int) -> Tensor:
    if value.ndim == 3:
        return value * masks(name, (count, value.shape[2], value.shape[1])).transpose(1, 2)
    batch, channels, height, width = value.shape
    factors = masks(name, (count, batch, channels // count, height, width)).transpose(0, 1)
    return (value.view(batch, count, -1, height, width) * factors).view(value.shape)
