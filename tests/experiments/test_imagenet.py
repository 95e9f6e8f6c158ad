"""ImageNet's validation images in every form that is known, decoded once."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.table1.imagenet import OUR_IMAGES, Listing, Pictures, compare_with_ours, listing, pictures, prepared

CLASSES = 3
LABELS = (2, 0, 1, 0, 2, 1, 0)  # of the images 1, 2, ... in the official order
IDS = ("n01440764", "n01443537", "n15075141")


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def write_image(path: Path, number: int, size: tuple[int, int] = (20, 15)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")


def by_folder(folder: Path, names: tuple[str, ...]) -> Path:
    for number, label in enumerate(LABELS, start=1):
        write_image(folder / names[label] / name(number), number)
    return folder


def flat(folder: Path, labels: str, file: str = "val.txt") -> Path:
    for number in range(1, len(LABELS) + 1):
        write_image(folder / name(number), number)
    (folder / file).write_text(labels)
    return folder


def kept(source: Listing, cache: Path) -> Pictures:
    return pictures(source, 14, 12, cache, lambda text: None)


@pytest.mark.parametrize("form", ["numbers", "ids", "named labels", "ids a line", "numbers a line"])
def test_every_form_gives_the_same_images_in_the_official_order(tmp_path: Path, form: str) -> None:
    folder = {
        "numbers": lambda: by_folder(tmp_path / "a", ("0", "1", "2")),
        "ids": lambda: by_folder(tmp_path / "a", IDS),
        "named labels": lambda: flat(
            tmp_path / "a", "".join(f"{name(n)} {label}\n" for n, label in reversed([*enumerate(LABELS, 1)]))
        ),
        "ids a line": lambda: flat(tmp_path / "a", "\n".join(IDS[label] for label in LABELS), "labels.txt"),
        "numbers a line": lambda: flat(tmp_path / "a", "\n".join(map(str, LABELS))),
    }[form]()
    found = listing(folder, CLASSES)
    assert [path.name for path in found.files] == [name(number) for number in range(1, 8)]
    assert found.labels == LABELS


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("nothing", "there is no folder"),
        ("cats", r"the 2 folders of .* \(cats, dogs ...\) are neither class numbers 0 to 2 nor 3 WordNet ids"),
        ("two ids", "are neither class numbers"),
        ("number 3", "are neither class numbers"),
        ("no labels", "no file of labels is in it: name one with `--labels`"),
        ("short", "does not fit .*: 6 labels, 7 images"),
        ("unnamed", "7 labels, 7 images; ILSVRC2012_val_00000001.JPEG has none"),
        ("development kit", "must be class numbers 0 to 2 .* The numbers 1 to 1000 of the development kit"),
        ("two ids a line", "names 2 WordNet ids, but there are 3 classes"),
        ("empty", "holds no image"),
    ],
)
def test_what_cannot_be_read_without_guessing_is_refused(tmp_path: Path, form: str, message: str) -> None:
    folder = tmp_path / "a"
    if form == "cats":
        (folder / "cats").mkdir(parents=True)
        (folder / "dogs").mkdir()
    elif form in ("two ids", "number 3", "empty"):
        for one in {"two ids": IDS[:2], "number 3": ("0", "3"), "empty": ("0", "1")}[form]:
            (folder / one).mkdir(parents=True)
    elif form != "nothing":
        labels = {
            "no labels": "",
            "short": "\n".join(map(str, LABELS[1:])),
            "unnamed": "".join(f"other_{n} 0\n" for n in range(7)),
            "development kit": "\n".join(str(label + 1) for label in LABELS),
            "two ids a line": "\n".join(IDS[label % 2] for label in LABELS),
        }[form]
        flat(folder, labels, "other.txt" if form == "no labels" else "val.txt")
    with pytest.raises(ValueError, match=message):
        listing(folder, CLASSES)


def test_the_short_side_is_resized_and_the_centre_cropped(tmp_path: Path) -> None:
    """Against Pillow's own steps, for a wide and for a tall picture; a grey one has three equal channels."""
    for size, resized, corner in (((40, 20), (28, 14), (8, 1)), ((21, 50), (14, 33), (1, 10))):
        write_image(tmp_path / "one.JPEG", 1, size)
        picture = Image.open(tmp_path / "one.JPEG").resize(resized, Image.Resampling.BICUBIC)
        expected = np.asarray(picture.crop((*corner, corner[0] + 12, corner[1] + 12)))
        np.testing.assert_array_equal(prepared(tmp_path / "one.JPEG", 14, 12), expected)
    Image.fromarray(np.arange(0, 240, dtype=np.uint8).reshape(15, 16)).save(tmp_path / "grey.png")
    grey = prepared(tmp_path / "grey.png", 14, 12)
    assert grey.shape == (12, 12, 3)
    assert (grey[..., 0] == grey[..., 2]).all()


def test_images_are_decoded_once(tmp_path: Path) -> None:
    source = listing(by_folder(tmp_path / "a", ("0", "1", "2")), CLASSES)
    said: list[str] = []
    first = pictures(source, 14, 12, tmp_path / "cache", said.append)
    again = pictures(source, 14, 12, tmp_path / "cache", said.append)
    assert len(said) == 1
    assert "decoding 7 images" in said[0]
    assert torch.equal(first.pixels, again.pixels)
    assert first.labels.tolist() == list(LABELS)
    for place, path in enumerate(source.files):
        np.testing.assert_array_equal(first.pixels[place].permute(1, 2, 0).numpy(), prepared(path, 14, 12))


def test_a_broken_image_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    source = listing(by_folder(tmp_path / "a", ("0", "1", "2")), CLASSES)
    whole = source.files[5].read_bytes()
    source.files[5].write_bytes(b"x" * len(whole))  # the same length: the listing is the same
    with pytest.raises(ValueError, match=r"1 of 7 images cannot be read: .*val_00000006\.JPEG"):
        kept(source, tmp_path / "cache")
    source.files[5].write_bytes(whole)
    found = kept(source, tmp_path / "cache")
    np.testing.assert_array_equal(found.pixels[5].permute(1, 2, 0).numpy(), prepared(source.files[5], 14, 12))


def test_other_images_have_a_cache_of_their_own(tmp_path: Path) -> None:
    folder = by_folder(tmp_path / "a", ("0", "1", "2"))
    before = kept(listing(folder, CLASSES), tmp_path / "cache")
    write_image(folder / "0" / name(8), 8)
    after = kept(listing(folder, CLASSES), tmp_path / "cache")
    assert (len(before.labels), len(after.labels)) == (7, 8)
    assert before.digest != after.digest


def test_a_folder_is_compared_with_the_images_of_our_rows(tmp_path: Path) -> None:
    """Three images in a list of their own; then one has other bytes, one is gone and one is new."""
    for label, name in ((0, "a.png"), (0, "b.png"), (7, "c.png")):
        (tmp_path / "val" / str(label)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "val" / str(label) / name).write_bytes(name.encode())
    rows = [
        f"{hashlib.sha256(n.encode()).hexdigest()[:32]} {y}/{n}" for y, n in ((0, "a.png"), (0, "b.png"), (7, "c.png"))
    ]
    (tmp_path / "list.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    assert "holds the 3 images of our rows, byte for byte" in compare_with_ours(tmp_path / "val", tmp_path / "list.gz")
    (tmp_path / "val/0/a.png").write_bytes(b"other")
    (tmp_path / "val/7/c.png").rename(tmp_path / "val/7/d.png")
    found = compare_with_ours(tmp_path / "val", tmp_path / "list.gz")
    assert "lacks 1 of the 3 images of our rows, has 1 more and 1 with other bytes: 0/a.png, 7/c.png, 7/d.png" in found


def test_the_list_names_five_images_of_each_class() -> None:
    names = [line.split()[1] for line in gzip.decompress(OUR_IMAGES.read_bytes()).decode().splitlines()]
    assert len(set(names)) == 5000
    assert set(Counter(name.split("/")[0] for name in names).values()) == {5}
