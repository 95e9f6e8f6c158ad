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

import csv
import difflib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.plumbing.warnings import warn_user
from peppermill.sources.items import Items, reading
from peppermill.sources.pictures import OPTIONS, library, picture, preparation
from peppermill.sources.source import split_query

BLOCK_NAMES = 2**16  # that are Python objects at one time
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
HEADERS = ("file", "filename", "file_name", "image", "image_id", "img", "name", "path", "id")  # of a file of labels


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
        **reading(options),
    )


class Names(Sequence[str]):
    """Sorted names without a Python object for each: rows of bytes, as long as the longest name."""

    def __init__(self, blocks: list[np.ndarray]) -> None:
        self.rows = np.concatenate([np.zeros(0, "S1"), *blocks])
        self.rows.sort()

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
    words = [name.partition("/")[0] for name in names]
    labels, classes = numbered(f"{origin}: the sub-folder", words, class_names, named_by_user, folders)
    labels, order = labels.sort(stable=True)
    return labels, classes, [names[k] for k in order.tolist()]


def _beside(folder: Path, name: str) -> Path:
    """A file in the folder of pictures, else the path as it is."""
    return folder / name if (folder / name).is_file() else Path(name)


def read_labels(
    path: Path, names: Sequence[str], class_names: tuple[str, ...] | None, named_by_user: bool
) -> tuple[Tensor, tuple[str, ...] | None]:
    """The labels of the pictures, in their order, and the names of the classes if the labels are words.

    `a.jpg,3` or `a.jpg,cat`, also with a tab or a space for the comma; a first line `file,label` is skipped. Whole
    numbers are class numbers, other numbers are values; words are classes, in the order of `class_names` or sorted.
    """
    rows = _rows(path)
    known = set(names)
    missing, unlabelled = [name for name in rows if name not in known], [name for name in names if name not in rows]
    wrong = missing or unlabelled
    named = f"{wrong[0]} and {len(wrong) - 1:,} more" if len(wrong) > 1 else "".join(wrong)
    if missing:
        raise ValueError(f"{path} has labels for {named}, but the folder has no such picture: remove the lines.")
    if unlabelled:
        raise ValueError(f"{path} has no label for {named} of {len(names):,} pictures: add the lines.")
    texts = [rows[name] for name in names]
    for kind, dtype in ((int, torch.int64), (float, torch.float32)):
        with suppress(ValueError):
            return torch.tensor([kind(text) for text in texts], dtype=dtype), None
    numbers = [text for text in texts if text.lstrip("-").isdecimal()]
    if numbers:
        words = next(text for text in texts if text not in numbers)
        raise ValueError(f"{path} has numbers ({numbers[0]}) and words ({words}) for labels: use one of them.")
    return numbered(f"{path}: the label", texts, class_names, named_by_user)


def read_classes(path: Path) -> tuple[str, ...]:
    """The network's classes in their order, one on each line."""
    names = [line.strip() for line in lines_of(path, "a file of classes", "the name of a class") if line.strip()]
    if not names:
        raise ValueError(f"{path} names no class: write the network's classes in their order, one on each line.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{path} names the class {twice} twice: each class needs its own line.")
    return tuple(names)


def numbered(
    what: str, words: list[str], class_names: tuple[str, ...] | None, named_by_user: bool, others: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """The number of each word among the classes, and the classes, to which words may belong that label no picture.

    They are the model's; if none of the words is one of them, the words, sorted; as numbers if all are numbers. If only
    some of the words are the model's, one is misspelled, and sorting them would give other numbers.
    """
    different = {*words, *others}
    strange = sorted(different - set(class_names or ()))
    if not class_names or (len(strange) == len(different) and not named_by_user):
        by_number = all(map(str.isdecimal, different))
        class_names = tuple(sorted(different, key=(lambda word: (int(word), word)) if by_number else None))
    elif strange:
        near = difflib.get_close_matches(strange[0], class_names, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"{what} {strange[0]} is not among the {len(class_names):,} classes{meant}: rename it, or name all classes "
            "in the network's order in a file, one on each line, with `?classes=FILE`."
        )
    place = {name: k for k, name in enumerate(class_names)}
    return torch.tensor([place[word] for word in words]), class_names


def lines_of(path: Path, what: str, content: str) -> list[str]:
    """The lines of a text file in UTF-8, with or without a byte order mark."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: expected {what}, with {content} on each line.")
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: expected {content} on each line.") from error


def _rows(path: Path) -> dict[str, str]:
    rows: dict[str, str] = {}
    for number, line in enumerate(lines_of(path, "a file of labels", "a name and a label, as in `a.jpg,3`,"), start=1):
        mark = next((mark for mark in "\t," if mark in line), None)
        cells = next(csv.reader([line], delimiter=mark)) if mark else line.rsplit(maxsplit=1)
        cells = [cell.strip() for cell in cells] or [""]
        if not line.strip() or (number == 1 and cells[0].lower() in HEADERS):
            continue
        if len(cells) != 2 or not all(cells):
            raise ValueError(f"{path}, line {number}: {line!r} is not a name and a label, as in `a.jpg,3`.")
        if cells[0] in rows:
            raise ValueError(f"{path}, line {number}: {cells[0]} has a label already: keep one of its lines.")
        rows[cells[0]] = cells[1]
    return rows
