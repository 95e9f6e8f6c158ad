"""Text files beside the pictures: a name and a label on each line, or the classes in their order."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

HEADERS = ("file", "filename", "file_name", "image", "image_id", "img", "name", "path", "id")


def read_labels(
    path: Path, names: Sequence[str], class_names: tuple[str, ...] | None, named_by_user: bool = False
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
        try:
            return torch.tensor([kind(text) for text in texts], dtype=dtype), None
        except ValueError:
            continue
    numbers = [text for text in texts if text.lstrip("-").isdecimal()]
    if numbers:
        words = next(text for text in texts if text not in numbers)
        raise ValueError(f"{path} has numbers ({numbers[0]}) and words ({words}) for labels: use one of them.")
    classes = classes_in_order(f"{path}: the label", texts, class_names, named_by_user)
    place = {name: k for k, name in enumerate(classes)}
    return torch.tensor([place[text] for text in texts]), classes


def read_classes(path: Path) -> tuple[str, ...]:
    """The network's classes in their order, one on each line."""
    names = [line.strip() for line in lines_of(path, "a file of classes", "the name of a class") if line.strip()]
    if not names:
        raise ValueError(f"{path} names no class: write the network's classes in their order, one on each line.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{path} names the class {twice} twice: each class needs its own line.")
    return tuple(names)


def classes_in_order(
    what: str, words: Collection[str], class_names: tuple[str, ...] | None, named_by_user: bool
) -> tuple[str, ...]:
    """The model's classes; if none of the words is one of them, the words, sorted; as numbers if all are numbers.

    If only some of the words are the model's, one is misspelled, and sorting them would give other numbers.
    """
    strange = sorted(set(words) - set(class_names or ()))
    if not class_names or (len(strange) == len(set(words)) and not named_by_user):
        return tuple(sorted(set(words), key=(lambda w: (int(w), w)) if all(map(str.isdecimal, words)) else None))
    if strange:
        near = difflib.get_close_matches(strange[0], class_names, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"{what} {strange[0]} is not among the {len(class_names):,} classes{meant}: rename it, or name all classes "
            "in the network's order in a file, one on each line, with `?classes=FILE`."
        )
    return class_names


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
        if "\t" in line:
            cells = line.split("\t")
        else:
            cells = next(csv.reader([line])) if "," in line else line.rsplit(maxsplit=1)
        cells = [cell.strip() for cell in cells] or [""]
        if not line.strip() or (number == 1 and cells[0].lower() in HEADERS):
            continue
        if len(cells) != 2 or not all(cells):
            raise ValueError(f"{path}, line {number}: {line!r} is not a name and a label, as in `a.jpg,3`.")
        if cells[0] in rows:
            raise ValueError(f"{path}, line {number}: {cells[0]} has a label already: keep one of its lines.")
        rows[cells[0]] = cells[1]
    return rows
