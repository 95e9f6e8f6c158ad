"""Pictures seen in a mirror."""

from __future__ import annotations

from torch import Tensor

from peppermill.plumbing.nested import map_tensors
from peppermill.types import Inputs


def horizontal_flip(inputs: Inputs) -> Inputs:
    """Every picture [B, C, H, W] in the inputs, left to right."""
    return _flip(inputs, -1)


def vertical_flip(inputs: Inputs) -> Inputs:
    """Every picture [B, C, H, W] in the inputs, top to bottom."""
    return _flip(inputs, -2)


def _flip(inputs: Inputs, dimension: int) -> Inputs:
    shapes: list[list[int]] = []

    def flip(tensor: Tensor) -> Tensor:
        shapes.append(list(tensor.shape))
        return tensor.flip(dimension) if tensor.ndim == 4 else tensor

    flipped = map_tensors(flip, inputs)
    if not any(len(shape) == 4 for shape in shapes):
        raise ValueError(
            f"inputs of shapes {shapes} hold no pictures [batch, channels, height, width], so there is nothing to "
            "flip: leave `views` out, or give a function of a batch."
        )
    return flipped
