"""`imagefolder:PATH`: pictures in one sub-folder for each class, or in one folder with a file of labels.

imagefolder:/data/val
imagefolder:/data/val?bad=skip                   leave out damaged pictures, with a warning that counts them
imagefolder:/data/val?classes=classes.txt        the network's classes, one on a line, if the folder has some of them
imagefolder:/data/pictures?labels=labels.csv     a flat folder; `name,label` on each line
imagefolder:/data/new?labels=none                pictures without labels, for `predict`; a flat folder needs no option
imagefolder:/data/val?size=224&resize=256&mean=0.485,0.456,0.406&std=0.229,0.224,0.225
                                                 for a model that does not say how its pictures are prepared
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.plumbing.warnings import warn_user
from peppermill.sources.items import Items
from peppermill.sources.label_file import classes_in_order, read_classes, read_labels
from peppermill.sources.pictures import OPTIONS, library, picture, preparation
from peppermill.sources.source import one_of, split_query, whole_number

BLOCK_NAMES = 2**16  # that are Python objects at one time
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")


def data(
    text: str,
    prepare: Callable[[Any], Any] | None = None,
    class_names: tuple[str, ...] | None = None,
    needs_labels: bool = True,
) -> Items:
    """The pictures of a folder, not read yet; `prepare` and `class_names` are the model's own, if it has them."""
    rest, options = split_query(text, "imagefolder", ("labels", "classes", "bad", "workers", *OPTIONS))
    origin, folder = f"imagefolder:{rest}", Path(rest)
    if not folder.is_dir():
        raise ValueError(f"{origin}: there is no folder {folder}: name the one that holds the pictures.")
    library()
    prepared = preparation(origin, options, prepare)
    named_by_user = "classes" in options
    if named_by_user:
        class_names = read_classes(_beside(folder, options["classes"]))
    names, others = _files(folder)
    if options.get("labels") == "none" and needs_labels:
        raise ValueError(f"{origin}?labels=none has no labels, which only `predict` does without: leave it out.")
    is_flat = not any("/" in name for name in names)
    labelled = needs_labels or options.get("labels", "none" if is_flat else "") != "none"
    labels, classes = torch.zeros(1, dtype=torch.long).expand(len(names)), None
    if labelled and "labels" in options:
        labels, classes = read_labels(_beside(folder, options["labels"]), names, class_names, named_by_user)
    elif labelled:
        labels, classes, names = _by_folder(origin, folder, names, class_names, named_by_user)
    if not names:
        raise ValueError(f"{origin} has no picture in it: expected files that end in {', '.join(ENDINGS[:4])}, ...")
    others = sorted({*others} - {*options.values()})
    if others:
        one = f"1 file is not a picture by its name and is not read ({others[0]})."
        many = f"{len(others):,} files are not pictures by their names and are not read ({others[0]}, ...)."
        warn_user(f"{origin}: {one if len(others) == 1 else many}")
    present = set(labels.tolist()) if classes else set()
    empty = [name for k, name in enumerate(classes or ()) if k not in present]
    if empty:
        warn_user(f"{origin}: {len(empty):,} of {len(classes or ()):,} classes have no picture ({empty[0]}, ...).")
    return Items(
        origin=origin,
        names=names,
        labels=labels,
        load=lambda row: picture(folder / names[row]),
        prepare=prepared,
        class_names=classes,
        labelled=labelled,
        skip_bad=one_of(options, "bad", ("error", "skip"), "error") == "skip",
        workers=whole_number(options, "workers", 0),
    )


data_or_inputs = partial(data, needs_labels=False)


class Names(Sequence[str]):
    """Sorted names without a Python object for each: rows of bytes, as long as the longest name."""

    def __init__(self, blocks: list[np.ndarray]) -> None:
        self.rows = np.sort(np.concatenate([np.zeros(0, "S1"), *blocks]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: Any) -> Any:
        return os.fsdecode(self.rows[item])


def _files(folder: Path) -> tuple[Sequence[str], list[str]]:
    """Names of the pictures in the folder at any depth, and of the other files; those that begin with a dot, and pipes,
    are left out.

    Every folder is visited once, under its own name if that is inside: a link that leads back adds nothing.
    """
    blocks, found, others, visited = list[np.ndarray](), list[bytes](), list[str](), set()
    folders, links = [folder], list[Path]()
    while folders or links:
        here = (folders or links).pop()
        status = here.stat()
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        above = "" if here == folder else f"{here.relative_to(folder).as_posix()}/"
        for entry in os.scandir(here):
            if not entry.name.startswith(".") and entry.is_dir():
                (links if entry.is_symlink() else folders).append(Path(entry))
            elif not entry.name.startswith(".") and entry.is_file():
                if not entry.name.lower().endswith(ENDINGS):
                    others.append(above + entry.name)
                    continue
                found.append(os.fsencode(above + entry.name))
                if len(found) == BLOCK_NAMES:
                    blocks, found = [*blocks, np.array(found)], []
    return Names([*blocks, np.array(found, "S")]), others


def _by_folder(
    origin: str, folder: Path, names: Sequence[str], class_names: tuple[str, ...] | None, named_by_user: bool
) -> tuple[Tensor, tuple[str, ...], list[str]]:
    """Labels by the first folder of each name, the classes, and the names in the order of the classes."""
    folders = [entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    loose = [name for name in names if "/" not in name]
    if not folders or loose:
        what = f"{len(loose):,} pictures that are in none ({loose[0]}, ...)" if folders else "no sub-folder"
        raise ValueError(
            f"{origin} has {what}: expected one sub-folder for each class, or a file of labels, as in "
            f"`{origin}?labels=labels.csv`."
        )
    classes = classes_in_order(f"{origin}: the sub-folder", folders, class_names, named_by_user)
    place = {name: k for k, name in enumerate(classes)}
    ordered = sorted(names, key=lambda name: (place[name.partition("/")[0]], name))
    return torch.tensor([place[name.partition("/")[0]] for name in ordered]), classes, ordered


def _beside(folder: Path, name: str) -> Path:
    """A file in the folder of pictures, else the path as it is."""
    return folder / name if (folder / name).is_file() else Path(name)
