"""Pictures seen in a mirror."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from peppermill.plumbing.nested import map_tensors, shapes_of
from peppermill.types import Inputs

CHANNELS = (1, 3, 4)  # of a picture as it is stored


@dataclass(frozen=True)
class Flip:
    """A mirror: `dimension` is -1 for left to right, -2 for top to bottom."""

    dimension: int

    def __call__(self, inputs: Inputs) -> Inputs:
        """The inputs with every picture [B, C, H, W] in them mirrored."""
        picture_shapes(inputs)
        flipped: Inputs = map_tensors(lambda t: t.flip(self.dimension) if t.ndim == 4 else t, inputs)
        return flipped

    def undo(self, outputs: Tensor, inputs: Inputs) -> Tensor:
        """Outputs for every pixel, [members, B, H, W] with classes somewhere, mirrored back; for a picture, as is."""
        size, sizes = picture_shapes(inputs)[0][2:], list(outputs.shape[2:])
        places = [k for k in range(len(sizes) - 1) if sizes[k : k + 2] == size]
        if places:  # of two, the later one: classes come before the pixels
            return outputs.flip(2 + places[-1] + 2 + self.dimension)
        if sum(length > 1 for length in sizes) > 1:
            raise ValueError(
                f"outputs of shape {list(outputs.shape[1:])} for pictures of {size} pixels are neither for pictures "
                "nor for pixels, so they cannot be flipped back: leave `views` out, or give a function of a batch that "
                "has a method `undo(outputs, inputs)`."
            )
        return outputs


def picture_shapes(inputs: Inputs) -> list[list[int]]:
    """The shapes of the pictures in the inputs, at least one."""
    shapes = shapes_of(inputs)
    pictures = [shape for shape in shapes if len(shape) == 4]
    if not pictures or any(shape[-1] in CHANNELS and shape[1] not in CHANNELS for shape in pictures):
        raise ValueError(
            f"inputs of shapes {shapes} hold no pictures [batch, channels, height, width] to flip: leave `views` out, "
            "or give a function of a batch, such as `lambda x: x.flip(2)` for [batch, height, width, channels]."
        )
    return pictures
