"""Every kind of picture becomes red, green and blue bytes, and then what the options say."""

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from peppermill.sources import image_folder
from peppermill.sources.pictures import picture, preparation, resized_by_the_paper, to_rgb
from peppermill.sources.source import split_query
from tests.sources.pictures import picture as noise

GREYS = np.arange(256, dtype=np.uint8).reshape(16, 16)


def saved(image, form, **options):
    """The bytes of a picture file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pixels(content):
    found = picture(content)
    assert found.mode == "RGB"
    return np.asarray(found)


def test_colours_stay_what_they_were():
    assert np.array_equal(pixels(saved(noise(3), "PNG")), np.asarray(noise(3)))


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "GIF"])
def test_greys_are_three_times_the_same(form):
    assert np.array_equal(pixels(saved(Image.fromarray(GREYS), form)), np.stack([GREYS] * 3, axis=2))


def test_black_and_white_are_0_and_255():
    found = pixels(saved(Image.fromarray(GREYS > 100), "PNG"))
    assert np.array_equal(found[..., 1], np.where(GREYS > 100, 255, 0))


def test_a_palette_is_looked_up():
    palette = Image.fromarray(GREYS, mode=None).convert("P")
    palette.putpalette([value for level in range(256) for value in (level, 255 - level, 7)])
    found = pixels(saved(palette, "PNG"))
    assert np.array_equal(found, np.stack([GREYS, 255 - GREYS, np.full_like(GREYS, 7)], axis=2))


def test_a_palette_with_transparency_is_looked_up_without_a_warning():
    palette = Image.fromarray(GREYS).convert("P")
    palette.putpalette([value for level in range(256) for value in (level, 0, 0)])
    found = pixels(saved(palette, "PNG", transparency=bytes(range(256))))
    assert np.array_equal(found[..., 0], GREYS)


def test_transparency_is_left_out():
    clear = noise(5).convert("RGBA")
    clear.putalpha(Image.fromarray(np.arange(192, dtype=np.uint8).reshape(12, 16)))
    assert np.array_equal(pixels(saved(clear, "PNG")), np.asarray(noise(5)))


def test_sixteen_bits_lose_the_lower_eight():
    """Pillow's own conversion would make everything above 255 white."""
    deep = GREYS.astype(np.uint16) * 256 + 99
    assert np.array_equal(pixels(saved(Image.fromarray(deep), "PNG"))[..., 2], GREYS)


@pytest.mark.parametrize(("brightest", "expected"), [(255, 255), (256, 1), (65535, 255), (70000, 255)])
def test_whole_numbers_above_255_have_sixteen_bits(brightest, expected):
    """What fits into a byte is one already; what is beyond sixteen bits is white."""
    deep = np.full((4, 4), brightest, np.int32 if brightest > 65535 else np.uint16)
    found = np.asarray(to_rgb(Image.fromarray(deep)))
    assert (found == expected).all()


def test_cmyk_is_light_left_over_by_ink():
    """No ink is white; full cyan leaves green and blue; full black leaves nothing (up to the loss of JPEG)."""
    inks = np.zeros((16, 48, 4), np.uint8)
    inks[:, 16:32, 0] = 255
    inks[:, 32:, 3] = 255
    found = pixels(saved(Image.fromarray(inks, mode="CMYK"), "JPEG", quality=100)).astype(int)
    for column, expected in ((4, (255, 255, 255)), (24, (0, 255, 255)), (44, (0, 0, 0))):
        assert np.abs(found[8, column] - expected).max() <= 4


def test_the_orientation_of_the_camera_is_not_applied():
    turned = Image.Exif()
    turned[0x0112] = 6
    assert pixels(saved(noise(1), "JPEG", exif=turned)).shape == (12, 16, 3)


def test_real_numbers_of_an_unknown_range_are_refused():
    with pytest.raises(ValueError, match="its pixels are real numbers of an unknown range"):
        picture(saved(Image.fromarray(GREYS.astype(np.float32)), "TIFF"))


@pytest.mark.parametrize(
    ("size", "resized", "corner"),
    [
        ((40, 20), (28, 14), (8, 1)),  # 40 * 14 / 20
        ((21, 50), (14, 33), (1, 10)),  # 33.3 is rounded down, half of 33 - 12 to the even 10
        ((50, 21), (33, 14), (10, 1)),
        ((16, 12), (18, 14), (3, 1)),  # 18.7 is rounded down
        ((14, 14), (14, 14), (1, 1)),
    ],
)
def test_the_paper_s_square_is_pillow_s_bicubic_resize_and_crop(size, resized, corner):
    image = noise(4).resize(size)
    expected = image.resize(resized, Image.Resampling.BICUBIC).crop((*corner, corner[0] + 12, corner[1] + 12))
    assert np.array_equal(np.asarray(resized_by_the_paper(image, 14, 12)), np.asarray(expected))


def test_no_square_reaches_beyond_the_picture():
    """550 * (299 / 550) is 298.99...: rounded down, a line of InceptionV3's input would be missing."""
    assert int(550 * (299 / 550)) == 298
    found = np.asarray(resized_by_the_paper(Image.new("RGB", (550, 550), (200, 200, 200)), 299, 299))
    assert found.shape == (299, 299, 3)
    assert (found == 200).all()


def test_images_prepared_before_stay_what_they_were():
    """214 * (256 / 214) is 255.99..., so that the numbers of Table 1 rest on 256 x 255 pixels of a square image."""
    image = noise(6).resize((214, 214))
    expected = image.resize((256, 255), Image.Resampling.BICUBIC).crop((16, 16, 240, 240))
    assert np.array_equal(np.asarray(resized_by_the_paper(image, 256, 224)), np.asarray(expected))


def test_without_pillow_the_cure_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pictures need Pillow: `pip install "peppermill\[images\]"`'):
        image_folder.data(f"{tmp_path}?size=4")


def test_a_program_is_no_picture(tmp_path):
    """Pillow would hand an EPS file to Ghostscript."""
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(OSError, match="cannot identify image file"):
        picture(tmp_path / "a.jpg")


def prepared(query, image, own=None):
    return preparation(
        "imagefolder:x", split_query(f"x?{query}", "imagefolder", ("size", "resize", "mean", "std"))[1], own
    )(image)


@pytest.mark.parametrize(("height", "width"), [(40, 60), (61, 40), (33, 33), (9, 100)])
@pytest.mark.parametrize(("size", "resize"), [(24, 24), (24, 29), (7, 32)])
def test_the_same_numbers_as_torchvision(height, width, size, resize):
    transforms = pytest.importorskip("torchvision.transforms")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    steps = [
        transforms.Resize(resize),
        transforms.CenterCrop(size),
        transforms.ToTensor(),
        transforms.Normalize(mean, std),
    ]
    image = noise(3, height, width)
    query = f"size={size}&resize={resize}&mean=0.485,0.456,0.406&std=0.229,0.224,0.225"
    assert torch.equal(prepared(query, image), transforms.Compose(steps)(image))


def test_without_mean_and_std_0_to_1():
    image = noise(1, 8, 8)
    expected = torch.tensor([[[image.getpixel((x, y))[c] / 255 for x in range(8)] for y in range(8)] for c in range(3)])
    assert torch.equal(prepared("size=8", image), expected)


def test_one_mean_makes_one_grey_channel():
    image = noise(1, 8, 8)
    found = prepared("size=8&mean=0.5&std=0.25", image)
    assert found.shape == (1, 8, 8)
    assert float(found[0, 2, 5]) == pytest.approx((image.convert("L").getpixel((5, 2)) / 255 - 0.5) / 0.25)


class Mixing:
    """A preparation with a mean and a std that blurs after the bytes: they cannot stand for its numbers."""

    mean, std = [0.5] * 3, [0.25] * 3

    def __call__(self, image):
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return ((pixels + pixels.roll(1, 2)) / 2 - 0.5) / 0.25


def test_the_models_own_is_used_where_nothing_is_said_and_what_is_said_wins():
    assert preparation("imagefolder:x", {}, len) is len
    assert preparation("imagefolder:x", {}, Mixing()).__class__ is Mixing
    assert prepared("size=4", noise(), own=len).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("mean=0.5", "`size` is missing. Say how, as in `\\?size=224"),
        ("size=0", "`size=0` must be a whole number, at least 1"),
        ("size=large", "`size=large` must be a whole number"),
        ("size=8&resize=7", "`resize=7` is smaller than `size=8`"),
        ("size=8&mean=0.5,0.5", "`mean=0.5,0.5` must be 3 or 1 numbers, separated by commas"),
        ("size=8&mean=a,b,c", "`mean=a,b,c` must be 3 or 1 numbers"),
        ("size=8&mean=nan", "`mean=nan` must be 3 or 1 numbers"),
        ("size=8&std=1,1,0", "`std=1,1,0` must be 3 numbers, none of them 0"),
        ("size=8&mean=0,0,0&std=1", "`std=1` must be 3 numbers"),
        ("size=8&colour=red", "the option 'colour=red' is unknown or empty: after `\\?` may stand size=..., resize="),
        ("size=", "the option 'size=' is unknown or empty"),
        ("size", "the option 'size' is unknown or empty"),
    ],
)
def test_what_cannot_be_is_told_so(query, match):
    with pytest.raises(ValueError, match=match):
        prepared(query, noise())


def test_a_model_without_preparation_needs_one():
    with pytest.raises(
        ValueError, match=r"imagefolder:x: this model does not say how its pictures are prepared\. Say how"
    ):
        preparation("imagefolder:x", {}, None)
