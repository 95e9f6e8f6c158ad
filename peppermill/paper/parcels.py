"""Prepared images in parcels: zip files of lossless pictures, for a machine that can be reached in small parts.

Each parcel is whole in itself: `<class>/<name>.webp`, and a note of how the images were prepared and how many there
are in all. Together they give back every byte.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from peppermill.paper.imagenet import Pictures, kept_pictures
from peppermill.paper.pictures import unpacked, webp
from peppermill.sources.items import cores

NOTE = "parcel.json"
PATTERN = "**/parcel-*.zip"


def pack(source: Pictures, short: int, folder: Path, limit: int) -> list[Path]:
    """Write the images into `part-00/parcel-00.zip`, `part-01/parcel-01.zip`, ..., each of at most `limit` bytes."""
    crop = source.pixels.shape[-1]
    note = {"short": short, "crop": crop, "images": len(source), "digest": source.digest}
    paths: list[Path] = []
    for group in _groups(source, limit):
        path = folder / f"part-{len(paths):02d}" / f"parcel-{len(paths):02d}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as parcel:
            parcel.writestr(NOTE, json.dumps(note))
            for name, content in group:
                parcel.writestr(name, content)
        paths.append(path)
    return paths


def is_parcelled(folder: Path) -> bool:
    """Whether a folder holds parcels, directly or one folder down."""
    return folder.is_dir() and next(folder.glob(PATTERN), None) is not None


def unpacked_pictures(folder: Path, short: int, crop: int, cache: Path) -> Pictures:
    """The images of all parcels of a folder, in the official order."""
    note, entries = _contents(folder, short, crop)
    labels = [int(name.split("/")[0]) for name in entries]
    names = tuple(Path(name).stem for name in entries)
    path = cache / f"parcels-{note['digest']}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part.npy")
        target = np.lib.format.open_memmap(unfinished, "w+", np.uint8, (len(entries), crop, crop, 3))
        _fill(target, entries)
        target.flush()
        unfinished.rename(path)
    return kept_pictures(path, labels, names, note["digest"])


def _groups(source: Pictures, limit: int) -> Iterator[list[tuple[str, bytes]]]:
    group: list[tuple[str, bytes]] = []
    size = 0
    for name, content in _packed(source):
        if group and size + len(content) > limit:
            yield group
            group, size = [], 0
        group.append((name, content))
        size += len(content) + 200  # what a zip file notes of each entry
    yield group


def _packed(source: Pictures) -> Iterator[tuple[str, bytes]]:
    for pixels, label, name in zip(source.pixels, source.labels.tolist(), source.names, strict=True):
        yield f"{label}/{name}.webp", webp(pixels.permute(1, 2, 0).contiguous().numpy())


def _contents(folder: Path, short: int, crop: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The note, and every entry's bytes by name, sorted by the name of the image."""
    found: dict[str, bytes] = {}
    notes = []
    for path in sorted(folder.glob(PATTERN)):
        with zipfile.ZipFile(path) as parcel:
            notes.append(json.loads(parcel.read(NOTE)))
            found |= {name: parcel.read(name) for name in parcel.namelist() if name != NOTE}
    if any(note != notes[0] for note in notes):
        raise ValueError(f"the parcels of {folder} were not packed together: keep those of one packing.")
    if (notes[0]["short"], notes[0]["crop"]) != (short, crop):
        raise ValueError(
            f"the parcels of {folder} hold images of short side {notes[0]['short']} and crop {notes[0]['crop']}, but "
            f"this network needs {short} and {crop}: pack them again."
        )
    if len(found) != notes[0]["images"]:
        raise ValueError(
            f"{folder} holds {len(found):,} of {notes[0]['images']:,} images: a parcel is missing. Copy all of them."
        )
    return notes[0], dict(sorted(found.items(), key=lambda pair: pair[0].split("/")[1]))


def _fill(target: np.ndarray, entries: dict[str, bytes]) -> None:
    with ThreadPoolExecutor(cores()) as pool:
        for place, pixels in enumerate(pool.map(unpacked, entries.values())):
            target[place] = pixels
