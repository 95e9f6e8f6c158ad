"""Pictures in files as Pillow's RGB images, and as the tensors that a network takes; this file alone imports Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.plumbing.optional import importing
from peppermill.sources.source import whole_number

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")  # no EPS: it is a program
MAX_ELONGATION = 100  # longer by shorter side: every preparation resizes the shorter one, and the longer one with it
OPTIONS = ("size", "resize", "mean", "std")
EXAMPLE = "size=224&resize=256&mean=0.485,0.456,0.406&std=0.229,0.224,0.225"

_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers for them


@dataclass(frozen=True)
class Preparation:
    """The bytes of a picture, [channels, height, width], and (x / 255 - mean) / std of them, for each channel.

    A cache keeps the bytes, in a quarter of the room.
    """

    pixels: Callable[[Any], Tensor]
    mean: Tensor  # [channels, 1, 1]
    std: Tensor
    channels_last: bool = False

    def __call__(self, picture: Any) -> Tensor:
        return self.scale(self.pixels(picture))

    def scale(self, pixels: Tensor) -> Tensor:
        """The network's input."""
        scaled = (pixels.float() / 255 - self.mean) / self.std
        return (scaled.permute(1, 2, 0) if self.channels_last else scaled).contiguous()


def preparation(origin: str, options: dict[str, str], own: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """The preparation that the options describe, else the model's own."""
    given = [name for name in OPTIONS if name in options]
    if not given and own is not None:
        return in_two_steps(own)
    if "size" not in options:
        why = "`size` is missing" if given else "this model does not say how its pictures are prepared"
        raise ValueError(f"{origin}: {why}. Say how, as in `?{EXAMPLE}` (without mean and std: 0..1).")
    size = whole_number(options, "size", 0)
    resize = whole_number(options, "resize", size)
    if resize < size:
        raise ValueError(
            f"{origin}: `resize={resize}` is smaller than `size={size}`, the square that is cut out: make it larger."
        )
    mean, std = mean_and_std(origin, options)  # one mean makes one channel, of greys
    return Preparation(partial(square, resize=resize, size=size, grey=len(mean) == 1), mean, std)


def in_two_steps(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same preparation by way of bytes, if it is known to end in (x - mean) / std and loses nothing of noise."""
    last = getattr(own, "transforms", [own])[-1]
    if not (hasattr(last, "mean") and hasattr(last, "std")):
        return own
    mean, std = (torch.as_tensor(numbers).float().view(-1, 1, 1) for numbers in (last.mean, last.std))
    found = Preparation(lambda picture: ((own(picture) * std + mean) * 255).round().byte(), mean, std)
    noise = library().fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    return found if torch.equal(found(noise), own(noise)) else own


def mean_and_std(origin: str, options: dict[str, str], counts: tuple[int, ...] = (3, 1)) -> tuple[Tensor, Tensor]:
    """`mean=0.5,0.5,0.5&std=0.2,0.2,0.2` as [channels, 1, 1]: three numbers, or one for greys; by default 0 and 1."""
    found: list[Tensor] = []
    for name, default in (("mean", 0.0), ("std", 1.0)):
        counts = (len(found[0]),) if found else counts
        try:
            numbers = [float(part) for part in options[name].split(",")] if name in options else [default] * counts[0]
        except ValueError:
            numbers = []
        if len(numbers) not in counts or not np.isfinite(numbers).all() or (name == "std" and 0 in numbers):
            expected = " or ".join(map(str, counts)) + (" numbers, none of them 0" if name == "std" else " numbers")
            raise ValueError(f"{origin}: `{name}={options[name]}` must be {expected}, separated by commas.")
        found.append(torch.tensor(numbers).view(-1, 1, 1))
    return found[0], found[1]


def picture(file: Path | bytes) -> Any:
    """The picture as an RGB image, decoded to its last pixel; greyscale, palette, CMYK and 16 bits are converted.

    Transparency is left out, and the orientation that a camera may have noted is not applied, as is usual for networks.
    """
    image = library()
    known = [name for name in FORMATS if name in image.OPEN]
    with image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=known) as opened:
        width, height = opened.size
        if max(width, height) > MAX_ELONGATION * min(width, height):
            raise ValueError(f"{width} x {height} pixels are a line: its shorter side cannot be resized")
        return to_rgb(opened)


def to_rgb(opened: Any) -> Any:
    """Any of Pillow's images as RGB."""
    if opened.mode == "F":
        raise ValueError("its pixels are real numbers of an unknown range")
    if opened.mode.startswith("I"):  # Pillow would cut 16 bits off at 255; without a number above 255 it was bytes
        pixels = np.asarray(opened)
        deep = int(pixels.max(initial=0)) > 255
        grey = np.clip(pixels // 256 if deep else pixels, 0, 255).astype(np.uint8)
        return library().fromarray(grey).convert("RGB")
    if opened.mode == "P" and "transparency" in opened.info:
        opened = opened.convert("RGBA")
    return opened.convert("RGB")


def square(image: Any, resize: int, size: int, grey: bool = False) -> Tensor:
    """Shorter side to `resize` (bilinear, antialiased, rounded as torchvision does), then the middle square, in bytes.

    [3, size, size], or [1, size, size] of greys.
    """
    image = image.convert("L") if grey else image
    width, height = (resize * side // min(image.size) for side in image.size)
    middle = np.array(_middle(image.resize((width, height), _BILINEAR), size))
    return torch.from_numpy(middle.reshape(size, size, -1)).permute(2, 0, 1).contiguous()


def resized_by_the_paper(image: Any, shorter: int, size: int) -> Any:
    """The square in the middle by bicubic interpolation, as in Section 3.1; the longer side is rounded down.

    The ratio is rounded before the side: 214 * (256 / 214) is 255.99..., and becomes 255. Table 1 used images that
    were prepared so, which is why it stays; but no side becomes smaller than the square.
    """
    width, height = image.size
    ratio = shorter / min(width, height)
    longer = max(size, int(max(width, height) * ratio))
    return _middle(image.resize((shorter, longer) if width <= height else (longer, shorter), _BICUBIC), size)


def library() -> ModuleType:
    """`PIL.Image`."""
    with importing("pictures need Pillow", "PIL", "images"):
        from PIL import Image
    Image.init()
    return Image


def _middle(image: Any, size: int) -> Any:
    left, top = (round((side - size) / 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))
