"""What is said on the command line prepares pictures as torchvision does."""

import pytest
import torch

from peppermill.sources.preparation import preparation
from peppermill.sources.query import split_query
from tests.sources.pictures import picture


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
    image = picture(3, height, width)
    query = f"size={size}&resize={resize}&mean=0.485,0.456,0.406&std=0.229,0.224,0.225"
    assert torch.equal(prepared(query, image), transforms.Compose(steps)(image))


def test_without_mean_and_std_0_to_1():
    image = picture(1, 8, 8)
    expected = torch.tensor([[[image.getpixel((x, y))[c] / 255 for x in range(8)] for y in range(8)] for c in range(3)])
    assert torch.equal(prepared("size=8", image), expected)


def test_one_mean_makes_one_grey_channel():
    image = picture(1, 8, 8)
    found = prepared("size=8&mean=0.5&std=0.25", image)
    assert found.shape == (1, 8, 8)
    assert float(found[0, 2, 5]) == pytest.approx((image.convert("L").getpixel((5, 2)) / 255 - 0.5) / 0.25)


def test_the_models_own_is_used_where_nothing_is_said_and_what_is_said_wins():
    assert preparation("imagefolder:x", {}, len) is len
    assert prepared("size=4", picture(), own=len).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("mean=0.5", "`size` is missing. Say how, as in `\\?size=224"),
        ("size=0", "`size=0` must be a whole number, at least 1"),
        ("size=large", "`size=large` must be a whole number"),
        ("size=8&resize=7", "`resize=7` is smaller than `size=8`"),
        ("size=8&mean=0.5,0.5", "`mean=0.5,0.5` must be three numbers separated by commas, or one"),
        ("size=8&mean=a,b,c", "`mean=a,b,c` must be three numbers"),
        ("size=8&mean=nan", "`mean=nan` must be three numbers"),
        ("size=8&std=1,1,0", "`std=1,1,0` needs 3 numbers, as `mean` has, and none is 0"),
        ("size=8&mean=0,0,0&std=1", "`std=1` needs 3 numbers"),
        ("size=8&colour=red", "the option 'colour=red' is unknown or empty: after `\\?` may stand size=..., resize="),
        ("size=", "the option 'size=' is unknown or empty"),
        ("size", "the option 'size' is unknown or empty"),
    ],
)
def test_what_cannot_be_is_told_so(query, match):
    with pytest.raises(ValueError, match=match):
        prepared(query, picture())


def test_a_model_without_preparation_needs_one():
    with pytest.raises(
        ValueError, match=r"imagefolder:x: this model does not say how its pictures are prepared\. Say how"
    ):
        preparation("imagefolder:x", {}, None)
