"""The ImageNet validation images, in whatever form they lie in a folder, decoded once and kept as bytes on the disk.

The official order of the images is that of their names, ILSVRC2012_val_00000001 to 00050000: the paper's tuning images
are the first of them. It is no order by class, whatever the folders are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.paper.pictures import prepared
from peppermill.plumbing.files import write_atomically
from peppermill.sources.items import cores

CHUNK = 256  # pictures between two notes of how far the work is
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
LABEL_FILES = ("val.txt", "labels.txt", "imagenet_2012_validation_synset_labels.txt")


@dataclass(frozen=True)
class Listing:
    """Image files in the official order, and the class of each."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]

    @property
    def digest(self) -> str:
        """What tells one listing from another: names, lengths and classes."""
        rows = [
            f"{path.name} {path.stat().st_size} {label}" for path, label in zip(self.files, self.labels, strict=True)
        ]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()


@dataclass(frozen=True)
class Pictures:
    """Bytes [N, 3, height, width], classes [N], names in the official order, and what tells these data from others."""

    pixels: Tensor
    labels: Tensor
    names: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.labels)


def listing(folder: Path, classes: int, label_file: Path | None = None) -> Listing:
    """The images of folders named by class number or by WordNet id, or of one flat folder with a file of labels."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the folder of the validation images as `--imagenet`.")
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    found = _in_folders(folder, folders, classes) if folders else _flat(folder, classes, label_file)
    if not found:
        raise ValueError(f"{folder} holds no image ({', '.join(SUFFIXES)}).")
    found.sort(key=lambda pair: (pair[0].name, pair[1]))
    return Listing(*(tuple(column) for column in zip(*found, strict=True)))


def pictures(source: Listing, short: int, crop: int, cache: Path, say: Callable[[str], None]) -> Pictures:
    """The listed images, prepared; decoded once, and continued where a killed run left off."""
    digest = hashlib.sha256(f"{source.digest} {short} {crop}".encode()).hexdigest()[:16]
    path = cache / f"imagenet-{digest}.npy"
    note, shape = path.with_suffix(".json"), (len(source.files), crop, crop, 3)
    done = json.loads(note.read_text())["done"] if note.is_file() and path.is_file() else 0
    if done < len(source.files):
        path.parent.mkdir(parents=True, exist_ok=True)
        say(f"decoding {len(source.files) - done:,} images into {path}")
        target = np.lib.format.open_memmap(path, "r+" if done else "w+", np.uint8, shape)
        _decode(source, target, done, short, lambda count: _note(note, target, count))
    names = tuple(file.name for file in source.files)
    return kept_pictures(path, source.labels, names, digest)


def kept_pictures(path: Path, labels: Iterable[int], names: tuple[str, ...], digest: str) -> Pictures:
    """Pictures of an npy file, which stays on the disk and is read as it is needed."""
    pixels = torch.from_numpy(np.load(path, mmap_mode="r+", allow_pickle=False)).permute(0, 3, 1, 2)
    return Pictures(pixels, torch.tensor(list(labels)), names, digest)


def _decode(source: Listing, target: np.ndarray, done: int, short: int, note: Callable[[int], None]) -> None:
    bad: list[str] = []

    def one(place: int) -> None:
        try:
            target[place] = prepared(source.files[place], short, target.shape[1])
        except (OSError, ValueError, SyntaxError) as error:
            bad.append(f"{source.files[place]} ({error})")

    with ThreadPoolExecutor(cores()) as pool:
        for start in range(done, len(source.files), CHUNK):
            end = min(start + CHUNK, len(source.files))
            list(pool.map(one, range(start, end)))
            if bad:
                raise ValueError(
                    f"{len(bad)} of the images {start} to {end} cannot be read: {'; '.join(sorted(bad)[:3])}."
                )
            note(end)


def _note(path: Path, target: np.memmap[Any, Any], done: int) -> None:
    target.flush()
    write_atomically(path, json.dumps({"done": done}))


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
        raise ValueError(f"{folder} has no folders of classes, and no file of labels came with it: give `--labels`.")
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
    return [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
