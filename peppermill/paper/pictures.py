"""Pictures as bytes [height, width, 3]: read, resized and cropped as Section 3.1 did, and packed without loss."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from peppermill.sources import pictures as pillow


def prepared(source: Path | bytes, short: int, crop: int) -> np.ndarray:
    """The short side resized to `short` by bicubic interpolation, then the centre of `crop` by `crop` pixels."""
    return np.asarray(pillow.resized_by_the_paper(pillow.picture(source), short, crop))


def webp(pixels: np.ndarray) -> bytes:
    """The picture as a WebP file from which `unpacked` gives back every byte."""
    packed = io.BytesIO()
    pillow.library().fromarray(pixels).save(packed, "WEBP", lossless=True, quality=50, method=3)
    return packed.getvalue()


def unpacked(content: bytes) -> np.ndarray:
    """The pixels of a picture that needs no resizing."""
    return np.asarray(pillow.picture(content))
