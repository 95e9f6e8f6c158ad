"""A text file with the name of a picture and its label on each line."""

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
    if missing:
        raise ValueError(
            f"{path} has labels for {_some(missing)}, but the folder has no such picture: remove the lines."
        )
    if unlabelled:
        raise ValueError(f"{path} has no label for {_some(unlabelled)} of {len(names):,} pictures: add the lines.")
    return _labels(path, [rows[name] for name in names], class_names, named_by_user)


def classes_in_order(
    what: str, words: Collection[str], class_names: tuple[str, ...] | None, named_by_user: bool
) -> tuple[str, ...]:
    """The model's classes; if none of the words is one of them, the words, sorted.

    If only some of the words are the model's, one is misspelled, and sorting them would give other numbers.
    """
    strange = sorted(set(words) - set(class_names or ()))
    if not class_names or (len(strange) == len(set(words)) and not named_by_user):
        return class_order(set(words))
    if strange:
        near = difflib.get_close_matches(strange[0], class_names, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"{what} {strange[0]} is not among the {len(class_names):,} classes{meant}: rename it, or name all classes "
            "in the network's order in a file, one on each line, with `?classes=FILE`."
        )
    return class_names


def class_order(names: Collection[str]) -> tuple[str, ...]:
    """Sorted; as numbers if all are numbers, so that 10 comes after 9."""
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, names)) else None))


def _rows(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise ValueError(
            f"there is no label file {path}, neither among the pictures nor here: write lines such as `a.jpg,3`."
        )
    lines = lines_of(path, "a name and a label are")
    rows: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        cells = _cells(line)
        if not line.strip() or (number == 1 and cells[0].lower() in HEADERS):
            continue
        if len(cells) != 2 or not all(cells):
            raise ValueError(f"{path}, line {number}: {line!r} is not a name and a label, as in `a.jpg,3`.")
        if cells[0] in rows:
            raise ValueError(f"{path}, line {number}: {cells[0]} has a label already: keep one of its lines.")
        rows[cells[0]] = cells[1]
    return rows


def lines_of(path: Path, expected: str) -> list[str]:
    """The lines of a text file in UTF-8, with or without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {expected} expected on each line.") from error


def _cells(line: str) -> list[str]:
    if "\t" in line:
        cells = line.split("\t")
    elif "," in line:
        cells = next(csv.reader([line]))
    else:
        cells = line.rsplit(maxsplit=1)
    return [cell.strip() for cell in cells] or [""]


def _labels(
    path: Path, texts: list[str], class_names: tuple[str, ...] | None, named_by_user: bool
) -> tuple[Tensor, tuple[str, ...] | None]:
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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"
