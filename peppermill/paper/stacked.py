"""Many networks of one design as one network: S of them side by side, so that a GPU is full and a CPU wastes nothing.

Vectors travel as [S, features, batch], where a dense layer is one batched product. Images travel in one of two forms:

- grouped: [batch, S * channels, height, width], where a convolution of S groups is S convolutions;
- unfolded: [S, channels, batch, height, width], where a convolution is one batched product with all patches: more
  memory, but no grouped kernel is needed.

In both, batch normalization sees S times the channels and needs no change. Network s sees its own items, its own
kernels and its own dropout masks, and nothing of its neighbours: together or alone, it becomes the same network up to
rounding (a test says so).
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
    value = entered(images, count_of(state), unfold)
    for name, layer in network.named_children():
        value = apply_layer(name, layer, state, value, training=training, masks=masks, momentum=momentum, unfold=unfold)
    return value


def entered(images: Tensor, count: int, unfold: bool) -> Tensor:
    """Images as the first layer takes them: a view, whether each network has its own or all share them."""
    own = images if images.ndim == 5 else images.unsqueeze(1).expand(-1, count, -1, -1, -1)
    return own.permute(1, 2, 0, 3, 4) if unfold else own


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
        convolve = _unfolded_convolution if unfold else _grouped_convolution
        return convolve(layer, state[f"{name}.weight"], state[f"{name}.bias"], value)
    if isinstance(layer, nn.Linear):
        return _dense(state[f"{name}.weight"], state[f"{name}.bias"], value)
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return _normalization(name, layer, state, value, training, momentum)
    if isinstance(layer, nn.MaxPool2d):
        return layer(value.flatten(0, 1)).unflatten(0, value.shape[:2]) if unfold else layer(value)  # type: ignore[no-any-return]
    if isinstance(layer, nn.Flatten):
        return _flatten(value, count_of(state), unfold)
    if isinstance(layer, nn.Dropout):
        return value if masks is None else _dropout(value, masks, name, count_of(state), unfold)
    return layer(value)  # type: ignore[no-any-return]  # ReLU acts on each number alone


def count_of(state: Mapping[str, Tensor]) -> int:
    """S, the number of networks in the stack."""
    return len(next(iter(state.values())))


def _grouped_convolution(layer: nn.Conv2d, weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    count, outputs, inputs = weight.shape[:3]
    kernels, padding = weight.reshape(count * outputs, inputs, *weight.shape[3:]), _padding(layer)
    if value.ndim == 5 and value.stride(1) == 0:  # all networks look at the same images: one plain convolution
        return F.conv2d(value[:, 0], kernels, bias.reshape(-1), padding=padding)
    flat = value.reshape(len(value), count * inputs, *value.shape[-2:])
    if count == 1:  # channels last: the form that tensor cores take without a copy back and forth
        flat, kernels = (t.contiguous(memory_format=torch.channels_last) for t in (flat, kernels))
    return F.conv2d(flat, kernels, bias.reshape(-1), padding=padding, groups=count)


def _unfolded_convolution(layer: nn.Conv2d, weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    shared = value.stride(0) == 0
    (above, beside), side = _padding(layer), weight.shape[-1]
    padded = F.pad(value[:1] if shared else value, (beside, beside, above, above))
    windows = padded.unfold(3, side, 1).unfold(4, side, 1)  # [S, channels, batch, height, width, side, side]
    patches = windows.permute(0, 1, 5, 6, 2, 3, 4).flatten(4).flatten(1, 3)
    product = _dense(weight.flatten(2), bias, patches.expand(len(weight), -1, -1) if shared else patches)
    return product.view(*weight.shape[:2], *windows.shape[2:5])


def _dense(weight: Tensor, bias: Tensor, value: Tensor) -> Tensor:
    if value.stride(0) == 0:  # all networks look at the same vectors: one plain product
        return (weight.flatten(0, 1) @ value[0]).view(*weight.shape[:2], -1) + bias.unsqueeze(2)
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
    normal = F.batch_norm(channels, mean, variance, weight, bias, training, speed, layer.eps)
    return normal.view(value.shape)


def _flatten(value: Tensor, count: int, unfold: bool) -> Tensor:
    """Images as vectors [S, features, batch]."""
    if unfold:
        return value.permute(0, 1, 3, 4, 2).flatten(1, 3)
    return value.reshape(len(value), count, -1).permute(1, 2, 0)


def _dropout(value: Tensor, masks: Masks, name: str, count: int, unfold: bool) -> Tensor:
    if value.ndim == 3:
        return value * masks(name, (count, value.shape[2], value.shape[1])).transpose(1, 2)
    if unfold:
        _, channels, batch, height, width = value.shape
        return value * masks(name, (count, batch, channels, height, width)).transpose(1, 2)
    batch, channels, height, width = value.shape
    factors = masks(name, (count, batch, channels // count, height, width)).transpose(0, 1)
    return (value.view(batch, count, -1, height, width) * factors).view(value.shape)


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    return int(layer.padding[0]), int(layer.padding[1])
