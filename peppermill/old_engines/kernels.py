"""A convolution of every member on its own images as one Triton kernel, with what follows it: bias, sum, ReLU.

For one item a member's convolution is too small for a GPU, and ten of them cost ten starts. Here the blocks of all
members are in one grid. Images lie as [members, batch, height, width, channels], kernels as [members, outputs, height,
width, channels], so that both are read along the channels, and a convolution is a product of matrices whose rows are
gathered on the way.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PROCESSORS = 100  # fewer blocks than these leave a large GPU idle: cut them smaller


@triton.jit  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]
    images, kernels, biases, others, outputs,
    positions, height, width, channels, out_height, out_width, out_channels,
    member_stride, item_stride, row_stride, column_stride, out_member_stride, out_position_stride,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BIAS: tl.constexpr, OTHER: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    POSITIONS: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One block: some output channels at some positions of one member."""
    member = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    item, within = position // (out_height * out_width), position % (out_height * out_width)
    top, left = (within // out_width) * STRIDE - PADDING, (within % out_width) * STRIDE - PADDING
    images += member * member_stride
    depth = KERNEL_HEIGHT * KERNEL_WIDTH * channels
    kernels += member * out_channels * depth
    channel_blocks = tl.cdiv(channels, CHANNELS)
    total = tl.zeros((POSITIONS, OUTPUTS), dtype=tl.float32)
    for step in range(KERNEL_HEIGHT * KERNEL_WIDTH * channel_blocks):
        tap = step // channel_blocks
        channel = (step % channel_blocks) * CHANNELS + tl.arange(0, CHANNELS)
        row, column = top + tap // KERNEL_WIDTH, left + tap % KERNEL_WIDTH
        inside = (position < positions) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        at = item * item_stride + row * row_stride + column * column_stride
        seen = tl.load(
            images + at[:, None] + channel[None, :], mask=inside[:, None] & (channel < channels)[None, :], other=0.0
        )
        weights = tl.load(
            kernels + output[None, :] * depth + (tap * channels + channel)[:, None],
            mask=(output < out_channels)[None, :] & (channel < channels)[:, None],
            other=0.0,
        )
        total = tl.dot(seen, weights, total, input_precision=PRECISION)
    if BIAS:
        added = tl.load(biases + member * out_channels + output, mask=output < out_channels, other=0.0)
        total += added[None, :]
    place = member * out_member_stride + position[:, None] * out_position_stride + output[None, :]
    known = (position < positions)[:, None] & (output < out_channels)[None, :]
    if OTHER:
        total += tl.load(others + place, mask=known, other=0.0)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(outputs + place, total, mask=known)


def convolve(
    images: Tensor,
    kernels: Tensor,
    biases: Tensor | None,
    others: Tensor | None,
    stride: int,
    padding: int,
    relu: bool,
    precision: str,
) -> Tensor:
    """Images [m, batch, height, width, channels], kernels [m, outputs, height, width, channels], biases [m, outputs].

    `others`, of the shape of the result [m, batch, height, width, outputs], is added; `precision` is tf32 or ieee.
    """
    members, items, *sides, channels = images.shape
    _, out_channels, *kernel_sides, _ = kernels.shape
    out_sides = [(side + 2 * padding - kernel) // stride + 1 for side, kernel in zip(sides, kernel_sides, strict=True)]
    outputs = images.new_empty(members, items, *out_sides, out_channels)
    blocks = _blocks(members, items * out_sides[0] * out_sides[1], out_channels, channels)
    convolve_into(outputs, images, kernels, biases, others, stride, padding, relu, precision, blocks)
    return outputs


def convolve_into(
    outputs: Tensor,
    images: Tensor,
    kernels: Tensor,
    biases: Tensor | None,
    others: Tensor | None,
    stride: int,
    padding: int,
    relu: bool,
    precision: str,
    blocks: tuple[int, int, int],
) -> None:
    """The same into a given tensor, which may lie between others, but each member's positions in one row; `blocks` are
    the positions, outputs and channels that a block takes at a time."""
    members, items, height, width, channels = images.shape
    out_height, out_width, out_channels = outputs.shape[2:]
    positions = items * out_height * out_width
    grid = (triton.cdiv(positions, blocks[0]), triton.cdiv(out_channels, blocks[1]), members)
    _convolve[grid](
        images, kernels, biases, others, outputs,
        positions, height, width, channels, out_height, out_width, out_channels,
        *images.stride()[:4], outputs.stride(0), outputs.stride(3),
        *kernels.shape[2:4], stride, padding, biases is not None, others is not None, relu, precision,
        *blocks, num_warps=4, num_stages=3,
    )  # fmt: skip


def _blocks(members: int, positions: int, outputs: int, channels: int) -> tuple[int, int, int]:
    """How many positions, outputs and channels a block takes at a time: powers of two from 16 to 64."""
    rows, columns = (max(16, min(64, triton.next_power_of_2(count))) for count in (positions, outputs))
    if members * triton.cdiv(positions, rows) * triton.cdiv(outputs, columns) < PROCESSORS:
        columns = max(16, columns // 2)
    return rows, columns, 64 if channels % 64 == 0 else 32 if channels > 16 else 16
