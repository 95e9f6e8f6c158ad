"""Small pictures of items that are images: PNG in base64, for the run file."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

SIDE = 64  # pixels of the longer side: enough to recognise a garment or a dog, a few kilobytes at most
ORANGE = (213, 94, 0)


def thumbnail(item: Tensor, side: int = SIDE) -> str | None:
    """The picture of one item, [channels, height, width] or [height, width, channels]; None if it is not an image."""
    if item.ndim != 3 or item.is_complex() or not item.numel() or not bool(item.isfinite().all()):
        return None
    pixels = item.detach().cpu().double()
    pixels = pixels.permute(1, 2, 0) if pixels.shape[0] in (1, 3) else pixels
    if pixels.shape[2] not in (1, 3):
        return None
    # Values in 0..1 and 0..255 stay as they are; others were normalised and are stretched to the full range.
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 255:
        pixels = (pixels - low) / max(high - low, 1e-12)
    elif high > 1:
        pixels = pixels / 255
    return base64.b64encode(png(_shrunk((pixels * 255).round().to(torch.uint8), side))).decode()


def heat(values: Tensor, side: int = SIDE) -> str:
    """Values in 0..1, [height, width], as an orange layer to lay over a picture: the larger, the less transparent."""
    color = torch.tensor(ORANGE, dtype=torch.float64).expand(*values.shape, 3)
    layer = torch.cat([color, 230 * values.double().cpu().clamp(0, 1)[..., None]], dim=-1).round().to(torch.uint8)
    return base64.b64encode(png(_shrunk(layer, side))).decode()


def png(pixels: Tensor) -> bytes:
    """Bytes [height, width, 1, 3 or 4] as a PNG file (ISO/IEC 15948: header, one compressed block of rows, end)."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.numpy().tobytes() for row in pixels.contiguous())
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _shrunk(pixels: Tensor, longest: int) -> Tensor:
    """No side longer than `longest`; each new pixel is the mean of the pixels that it covers."""
    height, width, _ = pixels.shape
    factor = min(1.0, longest / max(height, width))
    if factor == 1:
        return pixels
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    planes = torch.nn.functional.interpolate(pixels.permute(2, 0, 1)[None].float(), size=size, mode="area")
    return planes[0].permute(1, 2, 0).round().to(torch.uint8)
