"""The ImageNet validation images: found in a folder, decoded once, and kept as bytes on the disk.

The official order of the images is that of their names, ILSVRC2012_val_00000001 to 00050000: the paper's tuning images
are the first of them. It is not an order by class. `python -m experiments images --imagenet FOLDER` says whether
a folder holds the 5,000 images of our rows.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.settings import Machine

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
OUR_IMAGES = Path(__file__).with_name("imagenet_5000.txt.gz")  # half of the SHA-256, class and name of each
LABEL_FILES = ("val.txt", "labels.txt", "imagenet_2012_validation_synset_labels.txt")


@dataclass(frozen=True)
class Listing:
    """Image files in the official order, and the class of each."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Of the names, lengths and classes."""
        rows = [
            f"{path.name} {path.stat().st_size} {label}" for path, label in zip(self.files, self.labels, strict=True)
        ]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()


@dataclass(frozen=True)
class Pictures:
    """Bytes [N, 3, height, width], classes [N], and a digest of both."""

    pixels: Tensor
    labels: Tensor
    digest: str


def listing(folder: Path, classes: int, label_file: Path | None = None) -> Listing:
    """The images of folders named by class number or by WordNet id, or of one flat folder with a file of labels."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name the folder of the validation images with `--imagenet`.")
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    found = _in_folders(folder, folders, classes) if folders else _flat(folder, classes, label_file)
    if not found:
        raise ValueError(f"{folder} holds no image ({', '.join(SUFFIXES)}).")
    found.sort(key=lambda pair: (pair[0].name, pair[1]))
    return Listing(*(tuple(column) for column in zip(*found, strict=True)))


def pictures(
    source: Listing, short: int, crop: int, cache: Path, say: Callable[[str], None], way: str = "bicubic"
) -> Pictures:
    """The listed images, prepared in one of the `WAYS`; decoded once and kept in `cache`."""
    named = f"{source.digest} {short} {crop}" + f" {way}" * (way != "bicubic")
    digest = hashlib.sha256(named.encode()).hexdigest()[:16]
    path, count = cache / f"imagenet-{digest}.npy", len(source.files)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        say(f"decoding {count:,} images into {path}")
        unfinished = path.with_suffix(".part.npy")
        target = np.lib.format.open_memmap(unfinished, "w+", np.uint8, (count, crop, crop, 3))

        def decode(place: int) -> str | None:
            try:
                target[place] = prepared(source.files[place], short, crop, way)
            except (OSError, ValueError, SyntaxError) as error:
                return f"{source.files[place]} ({error})"
            return None

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            bad = [text for text in pool.map(decode, range(count)) if text]
        if bad:
            raise ValueError(f"{len(bad)} of {count:,} images cannot be read: {'; '.join(bad[:3])}.")
        target.flush()
        unfinished.rename(path)
    pixels = torch.from_numpy(np.load(path, mmap_mode="r+", allow_pickle=False)).permute(0, 3, 1, 2)
    return Pictures(pixels, torch.tensor(source.labels), digest)


#: How images may be prepared: ours, and what might explain the distance to the paper.
WAYS = (
    "bicubic",  # Pillow's resize with antialiasing, centre crop
    "bicubic without antialiasing",  # OpenCV's resize, as in the authors' scripts
    "squashed",  # the whole image resized to the crop, whatever its proportions
    "JPEG 75",  # compressed once more with quality 75, after the resize
)


def prepared(path: Path, short: int, crop: int, way: str = "bicubic") -> np.ndarray:
    """The short side resized to `short` by bicubic interpolation, then the centre of `crop` by `crop` pixels.

    The ratio is rounded before the longer side, as in the images that the results of Table 1 rest on.
    """
    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    longer = max(crop, int(max(width, height) * (short / min(width, height))))
    size = (short, longer) if width <= height else (longer, short)
    if way == "squashed":
        size = crop, crop
    if way == "bicubic without antialiasing":  # torch's bicubic has OpenCV's kernel, and Pillow's has another
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        resized = torch.nn.functional.interpolate(pixels, size[::-1], mode="bicubic", align_corners=False)
        image = Image.fromarray(resized[0].round().clamp(0, 255).byte().permute(1, 2, 0).numpy())
    else:
        image = image.resize(size, Image.Resampling.BICUBIC)
    if way == "JPEG 75":
        compressed = io.BytesIO()
        image.save(compressed, "JPEG", quality=75)
        image = Image.open(compressed)
    left, top = (round((side - crop) / 2) for side in image.size)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))


def compare_with_ours(folder: Path, list_file: Path = OUR_IMAGES) -> str:
    """How the images of a folder differ from those of the list: a sentence."""
    expected = dict(line.split()[::-1] for line in gzip.decompress(list_file.read_bytes()).decode().splitlines())
    found = listing(folder, 1000)
    names = {f"{label}/{path.name}": path for path, label in zip(found.files, found.labels, strict=True)}
    absent, further = expected.keys() - names.keys(), names.keys() - expected.keys()
    other = [
        name
        for name in sorted(expected.keys() & names.keys())
        if hashlib.sha256(names[name].read_bytes()).hexdigest()[:32] != expected[name]
    ]
    if not absent and not further and not other:
        return f"{folder} holds the {len(expected):,} images of our rows, byte for byte."
    shown = sorted([*absent, *further, *other])[:3]
    return (
        f"{folder} lacks {len(absent):,} of the {len(expected):,} images of our rows, has {len(further):,} more and "
        f"{len(other):,} with other bytes: {', '.join(shown)} ..."
    )


def _in_folders(folder: Path, names: list[str], classes: int) -> list[tuple[Path, int]]:
    numbers = {name: int(name) for name in names if name.isdecimal() and int(name) < classes}
    ids = {name: place for place, name in enumerate(names) if re.fullmatch(r"n\d{8}", name)}
    if len(numbers) == len(names):
        known = numbers
    elif len(ids) == len(names) == classes:
        known = ids
    else:
        raise ValueError(
            f"the {len(names)} folders of {folder} ({', '.join(names[:3])} ...) are neither class numbers 0 to "
            f"{classes - 1} nor {classes} WordNet ids such as n01440764, whose sorted order is that of the classes."
        )
    return [(path, label) for name, label in known.items() for path in _images(folder / name)]


def _flat(folder: Path, classes: int, label_file: Path | None) -> list[tuple[Path, int]]:
    files = sorted(_images(folder), key=lambda path: path.name)
    known = label_file or next((folder / name for name in LABEL_FILES if (folder / name).is_file()), None)
    if known is None:
        raise ValueError(
            f"{folder} has no folders of classes, and no file of labels is in it: name one with `--labels`."
        )
    if not known.is_file():
        raise ValueError(f"there is no file {known}: `--labels` names the file with the class of each image.")
    rows = [line.split() for line in known.read_text().splitlines() if line.strip()]
    named = {row[0]: row[-1] for row in rows} if rows and len(rows[0]) > 1 else {}
    labels = [named.get(file.name) for file in files] if named else [row[0] for row in rows]
    if len(labels) != len(files) or None in labels:
        absent = next((file.name for file, label in zip(files, labels, strict=False) if label is None), None)
        raise ValueError(
            f"{known} does not fit {folder}: {len(rows):,} labels, {len(files):,} images"
            + (f"; {absent} has none." if absent else ".")
        )
    return list(zip(files, _numbers([label for label in labels if label], classes, known), strict=True))


def _numbers(labels: list[str], classes: int, path: Path) -> list[int]:
    """Class numbers; WordNet ids count in their sorted order."""
    if all(re.fullmatch(r"n\d{8}", label) for label in labels):
        places = {name: place for place, name in enumerate(sorted(set(labels)))}
        if len(places) != classes:
            raise ValueError(f"{path} names {len(places)} WordNet ids, but there are {classes} classes.")
        return [places[label] for label in labels]
    numbers = [int(label) if label.isdecimal() else -1 for label in labels]
    if min(numbers) < 0 or max(numbers) >= classes:
        raise ValueError(
            f"the labels of {path} must be class numbers 0 to {classes - 1} in the order of the WordNet ids, or those "
            "ids. The numbers 1 to 1000 of the development kit are in another order, and cannot be used."
        )
    return numbers


def _images(folder: Path) -> list[Path]:
    """The image files of a folder."""
    return [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]


@dataclass(frozen=True)
class Settings(Machine):
    """What to check."""

    imagenet: Path | None = None  # the folder of the validation images


def main(settings: Settings) -> str:
    """Say whether the folder holds the images of our rows."""
    if settings.imagenet is None:
        raise ValueError("`imagenet` is missing: name the folder of the validation images with `--imagenet`.")
    found = compare_with_ours(settings.imagenet)
    settings.say(found)
    return found
