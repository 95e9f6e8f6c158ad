"""Prepared pictures as bytes, a quarter of the room, where nothing is lost by it.

Most preparations end by mapping each channel's 256 brightnesses to 256 real numbers. Which ones is found by preparing
256 grey pictures; that a picture has no other number in it is checked bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peppermill.sources.pictures import constant_picture


@dataclass(frozen=True)
class Levels:
    """The number that each brightness becomes in each channel, [channels, 256]."""

    table: Tensor

    def encode(self, picture: Tensor) -> Tensor | None:
        """The brightnesses [channels, height, width] as bytes; nothing where a number is not in the table."""
        if picture.dtype != self.table.dtype or len(picture) != len(self.table):
            return None
        values = picture.flatten(1)
        low, high = self.table[:, :1], self.table[:, 255:]
        codes = ((values - low) * (255 / (high - low))).round().clamp(0, 255).nan_to_num(0).to(torch.uint8)
        return codes.view(picture.shape) if torch.equal(self.decode(codes), values) else None

    def decode(self, codes: Tensor) -> Tensor:
        """The numbers behind the bytes of one picture, [channels, ...]."""
        return self.table.gather(1, codes.flatten(1).long()).view(codes.shape)


def levels_of(prepare: Callable[[Any], Any], key: str | None, example: Tensor) -> Levels | None:
    """The table of a preparation (of its output `key`, where it gives a dict), if it has one and the example obeys it.

    None where the example is no picture of float32, [channels, height, width].
    """
    if example.ndim != 3 or example.dtype != torch.float32 or len(example) not in (1, 3):
        return None
    columns = []
    for level in range(256):
        grey = prepare(constant_picture(level, *example.shape[1:]))
        column = (grey if key is None else grey[key]).flatten(1)
        if not bool((column == column[:, :1]).all()):
            return None
        columns.append(column[:, 0])
    levels = Levels(torch.stack(columns, dim=1))
    return None if levels.encode(example) is None else levels
