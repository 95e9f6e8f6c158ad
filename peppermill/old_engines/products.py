"""Products of m members at once, as few and as large as they can be; with what stands before and after them.

A product is recorded as one operation (`recorded.py`), so that a norm before or after it and the ReLU behind it can
become a part of it (`fused.py`); then it is taken apart, and what depends on weights alone is computed once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peppermill.old_engines import packed

WIDE = 64  # outputs of a layer from which on a CPU has its weights rather transposed
NARROW = 16  # outputs of a layer below which it rather takes many rows at once


class Product(NamedTuple):
    """How a layer multiplies: theta* and +-1 where members are antithetic pairs, and whether weights are packed."""

    layer: Any
    center: Tensor | None
    signs: Tensor | None
    packs: bool


def product(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    own_bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    how: Product,
) -> Tensor:
    """Every member on its own inputs [m, ...]: its weight, the bias of all or its own; a norm may stand before it."""
    return _each(inputs, weight, bias, own_bias, scale, shift, how, activation="none")


def product_with_relu(*given: Any) -> Tensor:
    """The same with a ReLU behind it."""
    return _each(*given, activation="relu")


def shared_product(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, own_bias: Tensor | None, how: Product
) -> Tensor:
    """All members on the same inputs.

    A layer is linear in its weight: layer(theta* + d) = layer(theta*) + layer(d). So antithetic members theta* +- d
    need one product for theta* and one for each pair, all of them in one.
    """
    linear = isinstance(how.layer, nn.Linear)
    if how.center is None:
        outputs = _many(inputs, weight, None if bias is None else bias.expand(len(weight), -1), how)
    else:
        steps = weight[::2] - how.center
        biases = None if bias is None else torch.stack([bias, *[torch.zeros_like(bias)] * len(steps)])
        outputs = _many(inputs, torch.cat([how.center[None], steps]), biases, how)
        outputs = (_both_beside if linear else _both_apart)(outputs, how)
        outputs = outputs.narrow(-2 if linear else 0, 0, len(weight))
    outputs = outputs.movedim(-2, 0) if linear else outputs
    return outputs if own_bias is None else outputs + _placed(own_bias, outputs, how.layer)


def shared_product_with_relu(*given: Any) -> Tensor:
    """The same with a ReLU behind it."""
    return shared_product(*given).relu_()


def normalized(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch normalization in evaluation: a scale and a shift, arranged as the inputs are."""
    return torch.addcmul(shift, inputs, scale)


def folds(layer: Any) -> bool:
    """Whether a scale and a shift of what goes in can be a part of the weights: zeros at the border are not shifted."""
    return isinstance(layer, nn.Linear) or (isinstance(layer.padding, tuple) and not any(layer.padding))


def _each(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    own_bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    how: Product,
    *,
    activation: str,
) -> Tensor:
    biases = own_bias if bias is None else bias.expand(len(weight), -1)
    if scale is not None and shift is not None:
        shift, scale = (value.flatten().view(-1, *[1] * (weight.ndim - 3)) for value in (shift, scale))
        shifted = (weight * shift).flatten(2).sum(dim=2)
        biases, weight = shifted if biases is None else biases + shifted, weight * scale
    function = _linear_of_each if isinstance(how.layer, nn.Linear) else _convolution_of_each
    return function(inputs, weight, biases, how, activation)


def _linear_of_each(inputs: Tensor, weight: Tensor, biases: Tensor | None, how: Product, activation: str) -> Tensor:
    """[m, ..., in] and [m, out, in] -> [m, ..., out]."""
    members, width, rows = len(weight), weight.shape[1], inputs.numel() // (len(weight) * weight.shape[2])
    together = inputs.movedim(0, -2)
    if how.packs and rows >= packed.ENOUGH_ROWS and width < NARROW:
        return _narrow(inputs, weight, biases, activation)
    if how.packs and together.is_contiguous() and rows >= packed.ENOUGH_ROWS:
        biases = weight.new_zeros(members, width) if biases is None else biases
        found = packed.linear_of_each(together.flatten(0, -3), weight, biases, activation)
        return found.view(*together.shape[:-1], width).movedim(-2, 0)
    flat = inputs if inputs.ndim == 3 else inputs.reshape(members, rows, weight.shape[2])
    turned = weight.transpose(1, 2)
    turned = turned.contiguous() if how.packs and width >= WIDE else turned
    outputs = torch.bmm(flat, turned) if biases is None else torch.baddbmm(biases[:, None], flat, turned)
    outputs = outputs.relu_() if activation == "relu" else outputs
    return outputs if inputs.ndim == 3 else outputs.view(*inputs.shape[:-1], width)


def _narrow(inputs: Tensor, weight: Tensor, biases: Tensor | None, activation: str) -> Tensor:
    """The same, made as [m, out, rows]: many rows at once, and not the few outputs."""
    turned = inputs.flatten(1, -2).transpose(1, 2)
    outputs = torch.bmm(weight, turned) if biases is None else torch.baddbmm(biases[:, :, None], weight, turned)
    outputs = outputs.relu_() if activation == "relu" else outputs
    outputs = outputs.transpose(1, 2)
    return outputs if inputs.ndim == 3 else outputs.reshape(*inputs.shape[:-1], -1)


def _convolution_of_each(
    inputs: Tensor, weight: Tensor, biases: Tensor | None, how: Product, activation: str
) -> Tensor:
    """One product for each member: grouped convolutions are slower."""
    own = [None] * len(weight) if biases is None else biases
    outputs = torch.stack([how.layer._conv_forward(*one) for one in zip(inputs, weight, own, strict=True)])
    return outputs.relu_() if activation == "relu" else outputs


def _many(inputs: Tensor, weight: Tensor, biases: Tensor | None, how: Product) -> Tensor:
    """One product for all weights [n, out, ...] -> [..., n, out] of a linear layer, [n, batch, out, ...] of another."""
    flat, bias = weight.flatten(0, 1), None if biases is None else biases.flatten()
    if isinstance(how.layer, nn.Linear):
        packs = how.packs and flat.numel() >= packed.ENOUGH_WEIGHTS
        outputs = packed.linear(inputs, flat, bias, "none") if packs else F.linear(inputs, flat, bias)
        return outputs.view(*inputs.shape[:-1], *weight.shape[:2])
    channels = 2 - weight.ndim
    outputs = how.layer._conv_forward(inputs, flat, bias)
    found: Tensor = outputs.unflatten(channels, weight.shape[:2]).movedim(channels - 1, 0)
    return found


def _both_beside(outputs: Tensor, how: Product) -> Tensor:
    """layer(theta* + d), layer(theta* - d) of each pair, [..., m, out], from layer(theta*) and each layer(d)."""
    center, steps = outputs[..., :1, :].unsqueeze(-3), outputs[..., 1:, :].unsqueeze(-2)
    assert how.signs is not None
    return torch.addcmul(center, steps, how.signs).flatten(-3, -2)


def _both_apart(outputs: Tensor, how: Product) -> Tensor:
    """The same as [m, ...], every member's outputs in one piece: the next layer takes them one by one."""
    steps = outputs[1:]
    both = steps.new_empty(len(steps), 2, *steps.shape[1:])
    torch.add(outputs[:1], steps, out=both[:, 0])
    torch.sub(outputs[:1], steps, out=both[:, 1])
    return both.flatten(0, 1)


def _placed(bias: Tensor, outputs: Tensor, layer: Any) -> Tensor:
    """A bias of each member's own, [m, out], arranged as the outputs [m, ..., out, ...] are."""
    behind = 0 if isinstance(layer, nn.Linear) else len(layer.kernel_size)
    return bias.view(len(bias), *[1] * (outputs.ndim - 2 - behind), -1, *[1] * behind)
