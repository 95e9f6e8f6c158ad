"""The convolutions of S networks as Triton kernels, forth and back; and the pooling.

cuDNN runs groups one after another, or turns their images round in memory first. Here the blocks of all networks are in
one grid, and images are read where they lie: [batch, height, width, S, channels].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from peppermill.engines.kernels import convolve_into

PIECES = 4096  # numbers of the images that a block takes at a time
SUMMED = 32  # positions at a time, on the way back to the kernels
PARTS = 10  # of the positions, each summed by a block of its own
BLOCK = 1024  # numbers that a block of the pooling writes


@triton.jit
def _seen(images, at, column, column_stride, width, known, channel):  # type: ignore[no-untyped-def]
    """The images at some positions, zero in the padding."""
    inside = known & (column >= 0) & (column < width)
    return tl.load(images + (at + column * column_stride)[:, None] + channel[None, :], mask=inside[:, None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(  # type: ignore[no-untyped-def]
    images, gradients, sums,
    positions, part, height, width, out_height, out_width,
    member_stride, item_stride, row_stride, column_stride, gradient_member_stride, gradient_position_stride,
    PADDING: tl.constexpr, PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """One block: the gradient of one row of one network's kernels, three wide, over a part of the positions."""
    kernel_row, member = tl.program_id(0), tl.program_id(2)
    output, channel = tl.arange(0, OUTPUTS), tl.arange(0, CHANNELS)
    images += member * member_stride
    gradients += member * gradient_member_stride
    left = tl.zeros((OUTPUTS, CHANNELS), dtype=tl.float32)
    middle = tl.zeros((OUTPUTS, CHANNELS), dtype=tl.float32)
    right = tl.zeros((OUTPUTS, CHANNELS), dtype=tl.float32)
    for start in range(0, part, SUMMED):
        position = tl.program_id(1) * part + start + tl.arange(0, SUMMED)
        item, within = position // (out_height * out_width), position % (out_height * out_width)
        row, column = within // out_width + kernel_row - PADDING, within % out_width - PADDING
        given = tl.load(
            gradients + position[:, None] * gradient_position_stride + output[None, :],
            mask=(position < positions)[:, None],
            other=0.0,
        )
        turned = tl.trans(given)
        known = (position < positions) & (row >= 0) & (row < height)
        at = item * item_stride + row * row_stride
        seen = _seen(images, at, column, column_stride, width, known, channel)
        left = tl.dot(turned, seen, left, input_precision=PRECISION)
        seen = _seen(images, at, column + 1, column_stride, width, known, channel)
        middle = tl.dot(turned, seen, middle, input_precision=PRECISION)
        seen = _seen(images, at, column + 2, column_stride, width, known, channel)
        right = tl.dot(turned, seen, right, input_precision=PRECISION)
    own = tl.program_id(1) * tl.num_programs(2) + member
    place = ((own * OUTPUTS + output[:, None]) * 3 + kernel_row) * 3 * CHANNELS + channel[None, :]
    tl.store(sums + place, left)
    tl.store(sums + place + CHANNELS, middle)
    tl.store(sums + place + 2 * CHANNELS, right)


@triton.jit  # type: ignore[untyped-decorator]
def _pool(images, outputs, size, width, channels, out_height, out_width, item_stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest of two by two pixels, for some numbers of [batch, height, width, channels]."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known, channel, pixel = place < size, place % channels, place // channels
    column, row = pixel % out_width, pixel // out_width % out_height
    first = (pixel // (out_width * out_height)) * item_stride + (2 * row * width + 2 * column) * channels + channel
    upper = tl.maximum(tl.load(images + first, mask=known), tl.load(images + first + channels, mask=known))
    first += width * channels
    lower = tl.maximum(tl.load(images + first, mask=known), tl.load(images + first + channels, mask=known))
    tl.store(outputs + place, tl.maximum(upper, lower), mask=known)


def pooled(images: Tensor) -> Tensor:
    """The largest of each two by two pixels of images [batch, channels, height, width], channels last."""
    items, channels, height, width = images.shape
    outputs = images.new_empty(items, height // 2, width // 2, channels)
    _pool[(triton.cdiv(outputs.numel(), BLOCK),)](
        images, outputs, outputs.numel(), width, channels, height // 2, width // 2, height * width * channels, BLOCK
    )
    return outputs.permute(0, 3, 1, 2)


def convolved(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """Images [batch, S * inputs, height, width] under kernels [S, outputs, inputs, 3, 3], channels last."""
    count, outputs, inputs = kernels.shape[:3]
    seen = members_apart(images, count)
    sides = [side + 2 * padding - 2 for side in images.shape[2:]]
    found = images.new_empty(len(images), *sides, count * outputs).permute(0, 3, 1, 2)
    read = kernels.permute(0, 1, 3, 4, 2).contiguous()
    blocks = (min(128, PIECES // inputs), outputs, inputs)
    convolve_into(members_apart(found, count), seen, read, None, None, 1, padding, False, _precision(), blocks)
    return found


def weighed(images: Tensor, gradient: Tensor, count: int, padding: int) -> Tensor:
    """The gradient of the kernels, [S, outputs, inputs, 3, 3], from that of the convolved images."""
    seen, given = members_apart(images, count), members_apart(gradient, count)
    _, items, height, width, channels = seen.shape
    out_height, out_width, outputs = given.shape[2:]
    positions = items * out_height * out_width
    part = triton.cdiv(triton.cdiv(positions, PARTS), SUMMED) * SUMMED
    parts = triton.cdiv(positions, part)
    sums = images.new_empty(parts, count, outputs, 3, 3, channels)
    _weigh[3, parts, count](
        seen, given, sums, positions, part, height, width, out_height, out_width, *seen.stride()[:4],
        given.stride(0), given.stride(3), padding, _precision(), outputs, channels, SUMMED, num_warps=4, num_stages=3,
    )  # fmt: skip
    return sums.sum(dim=0).permute(0, 1, 4, 2, 3).contiguous()


def members_apart(images: Tensor, count: int) -> Tensor:
    """Images [batch, S * channels, height, width] as [S, batch, height, width, channels], where they lie."""
    last = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    return torch.unflatten(last, 3, (count, -1)).permute(3, 0, 1, 2, 4)


def _precision() -> str:
    """As cuDNN may compute: with TF32, or with three products of TF32 for one of float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
