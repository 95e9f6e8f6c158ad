"""Small pictures of items, checked by another library's reader of PNG."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from peppermill.report.thumbnail import SIDE, png, thumbnail


def read(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


@pytest.mark.parametrize("shape", [(5, 7, 1), (5, 7, 3), (1, 1, 3), (64, 2, 1)])
def test_another_reader_finds_the_same_pixels(shape):
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(found.reshape(shape), pixels.numpy())


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (torch.tensor([[[0.0, 1.0], [0.2, 0.6]]]), [[0, 255], [51, 153]]),
        (torch.tensor([[[0, 255], [51, 153]]], dtype=torch.uint8), [[0, 255], [51, 153]]),
        (torch.tensor([[[0.0, 255.0], [51.0, 153.0]]]), [[0, 255], [51, 153]]),
        (torch.tensor([[[-2.0, 3.0], [-1.0, 1.0]]]), [[0, 255], [51, 153]]),
        (torch.tensor([[[-1.0], [-1.0]]]), [[0], [0]]),
    ],
    ids=["0..1", "bytes", "0..255", "normalised", "constant"],
)
def test_every_common_scale_of_pixels_is_shown(item, expected):
    assert read(thumbnail(item)).tolist() == expected


def test_colors_are_found_first_or_last():
    colors = torch.rand(3, 6, 5, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(read(thumbnail(colors)), read(thumbnail(colors.permute(1, 2, 0))))
    assert read(thumbnail(colors))[2, 4].tolist() == (255 * colors[:, 2, 4]).round().tolist()


def test_a_large_image_shrinks_to_the_means_of_its_parts():
    """128 x 256 pixels become 32 x 64, each the mean of a block of 4 x 4."""
    large = torch.rand(1, 128, 256, generator=torch.Generator().manual_seed(2))
    found = read(thumbnail(large))
    assert found.shape == (SIDE // 2, SIDE)
    blocks = (255 * large[0].double()).round().reshape(32, 4, 64, 4).mean(dim=(1, 3))
    assert np.abs(found - blocks.numpy()).max() <= 0.5 + 1e-4


@pytest.mark.parametrize(
    "item",
    [torch.rand(8), torch.rand(8, 8), torch.rand(4, 8, 8), torch.full((1, 4, 4), torch.nan), torch.rand(1, 0, 4)],
    ids=["vector", "matrix", "four channels", "nan", "empty"],
)
def test_what_is_no_image_has_no_picture(item):
    assert thumbnail(item) is None
