"""Pictures in files, whatever their colours, as Pillow's RGB images; this file alone imports Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from peppermill.plumbing.optional import importing


def picture(file: Path | bytes) -> Any:
    """The picture as an RGB image, decoded to its last pixel; greyscale, palette, CMYK and 16 bits are converted.

    Transparency is left out, and the orientation that a camera may have noted is not applied, as is usual for networks.
    """
    image = library()
    with image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as opened:
        return to_rgb(opened)


def to_rgb(opened: Any) -> Any:
    """Any of Pillow's images as RGB."""
    if opened.mode == "F":
        raise ValueError("its pixels are real numbers of an unknown range")
    if opened.mode.startswith("I"):  # Pillow would cut 16 bits off at 255
        return library().fromarray(_bytes(np.asarray(opened))).convert("RGB")
    if opened.mode == "P" and "transparency" in opened.info:
        opened = opened.convert("RGBA")
    return opened.convert("RGB")


def constant_picture(level: int, height: int, width: int) -> Any:
    """A grey picture of one brightness, 0..255."""
    return library().new("RGB", (width, height), (level, level, level))


def resized(image: Any, shorter: int, size: int) -> Any:
    """The shorter side resized (bilinear, antialiased), then the square in the middle; rounded as torchvision does."""
    width, height = (shorter * side // min(image.size) for side in image.size)
    return _middle(image.resize((width, height), _BILINEAR), size)


def resized_by_the_paper(image: Any, shorter: int, size: int) -> Any:
    """The same by bicubic interpolation, as in Section 3.1; the longer side is rounded down.

    The ratio is rounded before the side: 214 * (256 / 214) is 255.99..., and becomes 255. Table 1 rests on images that
    were prepared so, which is why it stays; but no side becomes less than the square.
    """
    width, height = image.size
    ratio = shorter / min(width, height)
    longer = max(size, int(max(width, height) * ratio))
    return _middle(image.resize((shorter, longer) if width <= height else (longer, shorter), _BICUBIC), size)


def library() -> ModuleType:
    """`PIL.Image`."""
    with importing("pictures need Pillow", "PIL", "images"):
        from PIL import Image
    return Image


_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers for them


def _middle(image: Any, size: int) -> Any:
    left, top = (round((side - size) / 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def _bytes(pixels: np.ndarray) -> np.ndarray:
    """16-bit greyscale as bytes; what has no number above 255 was bytes already."""
    deep = int(pixels.max(initial=0)) > 255
    return np.asarray(np.clip(pixels // 256 if deep else pixels, 0, 255), np.uint8)
