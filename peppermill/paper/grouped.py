"""A convolution of S networks with its gradient, which `torch.compile` leaves as it is; see `grouped_kernels.py`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

CHANNELS = (16, 32, 64)  # of a network's images, before and after: the kernels take them all at once
MOST = 2**31  # numbers of the images, before and after: an address in them is a 32-bit integer
TRITON = find_spec("triton") is not None


def is_suitable(images: Tensor, kernels: Tensor) -> bool:
    """Whether these kernels, [S, outputs, inputs, height, width], are ones that we convolve ourselves."""
    count, outputs, inputs, *sides = kernels.shape
    fits = count > 1 and outputs in CHANNELS and inputs in CHANNELS and sides == [3, 3]
    small = images.numel() * max(1, outputs // inputs) < MOST
    return TRITON and fits and small and images.is_cuda and images.dtype == torch.float32


@torch.library.custom_op(
    "peppermill::convolve_groups", mutates_args=(), schema="(Tensor images, Tensor kernels, int padding) -> Tensor"
)
def convolve_groups(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """Images [batch, S * inputs, ...] under kernels [S, outputs, inputs, 3, 3]: [batch, S * outputs, ...]."""
    from peppermill.paper.grouped_kernels import convolved

    return convolved(images, kernels, padding)


@torch.library.custom_op(
    "peppermill::weigh_groups",
    mutates_args=(),
    schema="(Tensor images, Tensor gradient, int count, int padding) -> Tensor",
)
def weigh_groups(images: Tensor, gradient: Tensor, count: int, padding: int) -> Tensor:
    """The gradient of the kernels of S networks, [S, outputs, inputs, 3, 3]."""
    from peppermill.paper.grouped_kernels import weighed

    return weighed(images, gradient, count, padding)


@convolve_groups.register_fake
def _(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    sides = [side + 2 * padding - 2 for side in images.shape[2:]]
    return images.new_empty(len(images), *sides, kernels.shape[0] * kernels.shape[1]).permute(0, 3, 1, 2)


@weigh_groups.register_fake
def _(images: Tensor, gradient: Tensor, count: int, padding: int) -> Tensor:
    return images.new_empty(count, gradient.shape[1] // count, images.shape[1] // count, 3, 3)


def _kept(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.padding = inputs[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
    """Back to the images the kernels are turned round, and inputs and outputs change places."""
    images, kernels = ctx.saved_tensors
    turned = kernels.flip(3, 4).transpose(1, 2)
    back = convolve_groups(gradient, turned, 2 - ctx.padding) if ctx.needs_input_grad[0] else None
    return back, weigh_groups(images, gradient, len(kernels), ctx.padding), None


convolve_groups.register_autograd(_backward, setup_context=_kept)
