"""From a picture to the network's input, where the model brings no preparation of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.sources.pictures import resized
from peppermill.sources.query import whole_number

OPTIONS = ("size", "resize", "mean", "std")
EXAMPLE = "size=224&resize=256&mean=0.485,0.456,0.406&std=0.229,0.224,0.225"


@dataclass(frozen=True)
class Preparation:
    """Shorter side to `resize`, the middle square of `size`, 0..1, then (x - mean) / std for each channel.

    One channel, of greys, where there is one mean.
    """

    size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels_last: bool = False

    def __call__(self, picture: Any) -> Tensor:
        """[channels, size, size] of float32, or [size, size, channels]."""
        image = picture.convert("L") if len(self.mean) == 1 else picture
        pixels = np.array(resized(image, self.resize, self.size)).reshape(self.size, self.size, -1)
        planes = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (self.mean, self.std))
        scaled = (planes - mean) / std
        return (scaled.permute(1, 2, 0) if self.channels_last else scaled).contiguous()


def preparation(origin: str, options: dict[str, str], own: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """What the options say, else the model's own."""
    said = [name for name in OPTIONS if name in options]
    if not said and own is not None:
        return own
    if "size" not in options:
        why = "`size` is missing" if said else "this model does not say how its pictures are prepared"
        raise ValueError(f"{origin}: {why}. Say how, as in `?{EXAMPLE}` (without mean and std: 0..1).")
    size = whole_number(options, "size", 0)
    resize = whole_number(options, "resize", size)
    if resize < size:
        raise ValueError(
            f"{origin}: `resize={resize}` is smaller than `size={size}`, the square that is cut out: make it larger."
        )
    mean = _numbers(origin, options, "mean", (0.0, 0.0, 0.0))
    std = _numbers(origin, options, "std", (1.0,) * len(mean))
    if len(std) != len(mean) or 0 in std:
        raise ValueError(f"{origin}: `std={options['std']}` needs {len(mean)} numbers, as `mean` has, and none is 0.")
    return Preparation(size, resize, mean, std)


def _numbers(origin: str, options: dict[str, str], name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in options[name].split(",")) if name in options else default
    except ValueError:
        found = ()
    if len(found) not in (1, 3) or not np.isfinite(found).all():
        raise ValueError(f"{origin}: `{name}={options[name]}` must be three numbers separated by commas, or one.")
    return found
