"""Layers of m members at once: products with m sets of weights, as few and as large as they can be.

Each takes the place of a layer of torch in a shell of the network (`borrowed.py`), inside `torch.func.vmap`, and is
used where the layer's weight differs between members.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Product:
    """What a layer with its own weight for each member knows: theta*, half of the steps theta_j - theta*, and more.

    A layer is linear in its weight: layer(theta* + d) = layer(theta*) + layer(d). Where all members see the same
    inputs (the first layer), antithetic members theta* +- d need one product for theta* and one for each pair.
    """

    def __init__(self, center: Tensor) -> None:
        self.center = center
        self.steps: Tensor | None = None  # [pairs, ...]
        self.shared = False  # whether it was seen that all members have the same inputs


class MemberLinear(nn.Linear):
    """`nn.Linear` of all members."""

    product: Product

    def forward(self, inputs: Tensor) -> Tensor:
        return _members(self, inputs) if "product" in self.__dict__ else super().forward(inputs)

    def many(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """All members on the same inputs: weight [m, out, in] -> [m, ..., out]."""
        flat = F.linear(inputs, weight.flatten(0, 1))
        outputs: Tensor = flat.unflatten(-1, weight.shape[:2]).movedim(-2, 0)  # type: ignore[no-untyped-call]
        return outputs if bias is None else outputs + bias

    def one(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(inputs, weight, bias)

    def each(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Every member on its own inputs [m, ..., in]."""
        flat = inputs if inputs.ndim == 3 else inputs.reshape(len(weight), -1, weight.shape[2])
        transposed = weight.transpose(1, 2)
        outputs = torch.bmm(flat, transposed) if bias is None else torch.baddbmm(bias, flat, transposed)
        return outputs if inputs.ndim == 3 else outputs.view(*inputs.shape[:-1], weight.shape[1])

    def placed(self, bias: Tensor, outputs: Tensor) -> Tensor:
        """A bias of each member's own, [m, out], arranged as the outputs are."""
        return bias.view(len(bias), *[1] * (outputs.ndim - 2), -1)


class _MemberConvolution(nn.modules.conv._ConvNd):
    product: Product

    def forward(self, inputs: Tensor) -> Tensor:
        usable = "product" in self.__dict__ and self.groups == 1
        return _members(self, inputs) if usable else super().forward(inputs)

    def many(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """All members on the same images: weight [m, out, in, ...] -> [m, batch, out, ...]."""
        channels = -(weight.ndim - 2)
        flat = self.one(inputs, weight.flatten(0, 1), None)
        outputs: Tensor = flat.unflatten(channels, weight.shape[:2]).movedim(channels - 1, 0)  # type: ignore[no-untyped-call]
        return outputs if bias is None else outputs + bias.view(-1, *[1] * (weight.ndim - 3))

    def one(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = self._conv_forward(inputs, weight, bias)
        return outputs

    def each(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Every member on its own images, one product each: grouped convolutions are slower."""
        return torch.stack([self.one(*own, bias) for own in zip(inputs, weight, strict=True)])

    def placed(self, bias: Tensor, outputs: Tensor) -> Tensor:
        dimensions = len(self.kernel_size)
        return bias.view(len(bias), *[1] * (outputs.ndim - 2 - dimensions), -1, *[1] * dimensions)


class MemberConv1d(_MemberConvolution, nn.Conv1d):
    """`nn.Conv1d` of all members."""


class MemberConv2d(_MemberConvolution, nn.Conv2d):
    """`nn.Conv2d` of all members."""


class MemberConv3d(_MemberConvolution, nn.Conv3d):
    """`nn.Conv3d` of all members."""


class MemberNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization in evaluation is a scale and a shift of each channel, the same for all members."""

    scale_and_shift: tuple[Tensor, Tensor]

    def forward(self, input: Tensor) -> Tensor:
        if "scale_and_shift" not in self.__dict__:
            return super().forward(input)
        scale, shift = (value.view(-1, *[1] * (input.ndim - 2)) for value in self.scale_and_shift)
        return torch.addcmul(shift, input, scale)

    def prepare(self) -> None:
        """Compute scale and shift once."""
        if self.running_mean is not None and self.running_var is not None:
            scale = (self.running_var + self.eps).rsqrt()
            scale = scale if self.weight is None else scale * self.weight.detach()
            shift = -self.running_mean * scale
            shift = shift if self.bias is None else shift + self.bias.detach()
            self.__dict__["scale_and_shift"] = scale, shift


class MemberNorm1d(MemberNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` of all members."""


class MemberNorm2d(MemberNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` of all members."""


class MemberNorm3d(MemberNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` of all members."""


#: What takes the place of what.
PRODUCTS: dict[type, type] = {
    nn.Linear: MemberLinear,
    nn.Conv1d: MemberConv1d,
    nn.Conv2d: MemberConv2d,
    nn.Conv3d: MemberConv3d,
}
NORMS: dict[type, type] = {
    nn.BatchNorm1d: MemberNorm1d,
    nn.BatchNorm2d: MemberNorm2d,
    nn.BatchNorm3d: MemberNorm3d,
}


def _members(layer: Any, inputs: Tensor) -> Tensor:
    outputs: Tensor = _Members.apply(inputs, layer.weight, layer.bias, layer)  # type: ignore[no-untyped-call]
    return outputs


class _Members(torch.autograd.Function):
    """A layer's product, with a rule for vmap that knows all members."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: Any) -> Tensor:
        outputs: Tensor = layer.one(inputs, weight, bias)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor | None, layer: Any
    ) -> tuple[Tensor, int]:
        own_bias = bias if bias is not None and in_dims[2] is not None else None
        common = bias if own_bias is None else None
        if in_dims[0] is not None:
            outputs = layer.each(inputs.movedim(in_dims[0], 0) if in_dims[0] else inputs, weight, common)
        else:
            outputs = _on_shared_inputs(layer, inputs, weight, common)
        return (outputs if own_bias is None else outputs + layer.placed(own_bias, outputs)), 0


def _on_shared_inputs(layer: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Product = layer.product
    product.shared = True
    if product.steps is None:
        outputs: Tensor = layer.many(inputs, weight, bias)
        return outputs
    center, steps = layer.one(inputs, product.center, bias), layer.many(inputs, product.steps, None)
    outputs = torch.stack([center + steps, center - steps], dim=1).flatten(0, 1)
    return outputs if len(outputs) == len(weight) else outputs[: len(weight)]
