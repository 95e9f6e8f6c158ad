"""Layers of m members at once, inside `torch.func.vmap`: each takes the place of a layer of torch in a shell of the
network (`borrowed.py`), and is used where the layer's weight differs between members.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from peppermill.old_engines.products import Product, normalized, product, shared_product
from peppermill.old_engines.recorded import as_one


class MemberLinear(nn.Linear):
    """`nn.Linear` of all members."""

    how: Product

    def forward(self, inputs: Tensor) -> Tensor:
        return _members(self, inputs) if "how" in self.__dict__ else super().forward(inputs)


class _MemberConvolution(nn.modules.conv._ConvNd):
    how: Product

    def forward(self, inputs: Tensor) -> Tensor:
        usable = "how" in self.__dict__ and self.groups == 1
        return _members(self, inputs) if usable else super().forward(inputs)


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
        outputs: Tensor = _Normalized.apply(input, scale, shift)  # type: ignore[no-untyped-call]
        return outputs

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
    outputs: Tensor = _Members.apply(inputs, layer.weight, layer.bias, layer.how)  # type: ignore[no-untyped-call]
    return outputs


class _Members(torch.autograd.Function):
    """A layer's product, with a rule for vmap that knows all members."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, how: Product) -> Tensor:
        layer = how.layer
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(inputs, weight, bias)
        outputs: Tensor = layer._conv_forward(inputs, weight, bias)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor | None, how: Product
    ) -> tuple[Tensor, int]:
        biases = (bias, None) if in_dims[2] is None else (None, bias)
        if in_dims[0] is None:
            return as_one(shared_product, inputs, weight, *biases, how), 0
        return as_one(product, _members_first(inputs, in_dims[0]), weight, *biases, None, None, how), 0


class _Normalized(torch.autograd.Function):
    """A scale and a shift, with a rule for vmap that says what it is."""

    @staticmethod
    def forward(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return normalized(inputs, scale, shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return as_one(normalized, _members_first(inputs, in_dims[0]), scale, shift), 0


def _members_first(inputs: Tensor, dimension: int) -> Tensor:
    return inputs.movedim(dimension, 0) if dimension else inputs
