"""Pictures as bytes [height, width, 3]: read, resized and cropped as Section 3.1 did, and packed without loss."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from peppermill.sources import pillow


def prepared(source: Path | bytes, short: int, crop: int) -> np.ndarray:
    """The short side resized to `short` by bicubic interpolation, then the centre of `crop` by `crop` pixels.

    The long side and the corner of the crop are rounded down and to the nearest pixel, as torchvision does.
    """
    library = pillow.library()
    with library.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
        width, height = picture.size
        scale = short / min(width, height)
        size = (short, int(height * scale)) if width <= height else (int(width * scale), short)
        pixels = np.asarray(picture.convert("RGB").resize(size, library.Resampling.BICUBIC))
    top, left = (round((side - crop) / 2) for side in pixels.shape[:2])
    return pixels[top : top + crop, left : left + crop]


def webp(pixels: np.ndarray) -> bytes:
    """The picture as a WebP file from which `unpacked` gives back every byte."""
    packed = io.BytesIO()
    pillow.library().fromarray(pixels).save(packed, "WEBP", lossless=True, quality=50, method=3)
    return packed.getvalue()


def unpacked(content: bytes) -> np.ndarray:
    """The pixels of a picture that needs no resizing."""
    with pillow.library().open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))
