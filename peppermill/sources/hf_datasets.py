"""`hf:NAME_OR_FOLDER[:SPLIT]`: pictures or texts of the Hugging Face hub, or of a folder, through `datasets`.

hf:ylecun/mnist:test                        from the hub
hf:my-folder:test                           what `save_to_disk` wrote, or a folder of files that `datasets` reads
hf:nyu-mll/glue:validation?config=sst2&text=sentence&label=label
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from peppermill.plumbing.optional import importing
from peppermill.sources.items import Items
from peppermill.sources.pictures import picture
from peppermill.sources.preparation import OPTIONS, preparation
from peppermill.sources.query import skips_bad, split_query, whole_number

LABELS = ("label", "labels", "fine_label", "target", "class")
TEXTS = ("text", "sentence", "content", "review")


def data(text: str, prepare: Callable[[Any], Any] | None = None, class_names: tuple[str, ...] | None = None) -> Items:
    """The items of one split, not prepared yet; `prepare` and `class_names` are the model's own.

    Where the model has all classes of the data by name, its numbers count.
    """
    rest, options = split_query(text, "hf", ("config", "image", "text", "label", "bad", "workers", *OPTIONS))
    origin, library = f"hf:{rest}", _library()
    table = _split(origin, *_loaded(library, origin, rest, options.get("config")))
    label = _label_column(origin, library, table, options)
    column, pictures = _input_column(origin, library, table, options, label)
    if pictures:
        table = table.cast_column(column, library.Image(decode=False))
        prepare = preparation(origin, options, prepare)
    elif prepare is None:
        raise ValueError(
            f"{origin} holds texts, and this model brings no tokenizer (or one that cannot fill up short texts): use a "
            "text classifier of `hf:`, and put its tokenizer beside it with `tokenizer.save_pretrained(folder)`."
        )
    labels, classes = _numbered(
        origin, _labels(origin, table, label), getattr(table.features[label], "names", None), class_names
    )
    inputs = table.select_columns([column])

    def load(row: int) -> Any:
        found = inputs[row][column]
        return _picture(found) if pictures else found

    return Items(
        origin=origin,
        names=[f"item {row}" for row in range(len(table))],
        labels=labels,
        load=load,
        prepare=prepare,
        class_names=classes,
        pictures=pictures,
        skip_bad=skips_bad(options),
        workers=whole_number(options, "workers", 0),
    )


def _library() -> ModuleType:
    with importing("`hf:` data need the library datasets", "datasets", "hf"):
        import datasets
    found: ModuleType = datasets
    return found


def _loaded(library: ModuleType, origin: str, rest: str, config: str | None) -> tuple[Any, str | None]:
    """Everything under that name, and the split that was asked for: after the last colon, where that is no path."""
    name, colon, split = rest.rpartition(":")
    if not colon or Path(rest).exists():
        name, split = rest, ""
    try:
        if (Path(name) / "state.json").is_file() or (Path(name) / "dataset_dict.json").is_file():
            found = library.load_from_disk(name)
        else:
            found = library.load_dataset(name, config)
    except Exception as error:  # what is not there is told in a dozen ways, by several libraries
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{origin} cannot be had ({reason}): name a folder, or data of the hub, with a connection."
        ) from error
    return found, split or None


def _split(origin: str, found: Any, split: str | None) -> Any:
    """The split by name, or the only one."""
    if not isinstance(found, Mapping):
        if split not in (None, str(found.split)):
            raise ValueError(f"{origin}: these data have no splits: leave `:{split}` out.")
        return found
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise ValueError(f"{origin}: say which split, as in `hf:NAME:{next(iter(found))}`; there are {_list(found)}.")
    return found[split]


def _label_column(origin: str, library: ModuleType, table: Any, options: dict[str, str]) -> str:
    kinds = table.features
    classes = [name for name, kind in kinds.items() if isinstance(kind, library.ClassLabel)]
    named = [name for name in LABELS if name in kinds]
    found = options.get("label") or next((name for name in named if name in classes), None)
    found = found or (classes[0] if len(classes) == 1 else next(iter(named), None))
    return _existing(origin, kinds, found, "label")


def _input_column(
    origin: str, library: ModuleType, table: Any, options: dict[str, str], label: str
) -> tuple[str, bool]:
    """The column of pictures or of texts, and whether it holds pictures."""
    kinds = {name: kind for name, kind in table.features.items() if name != label}
    pictures = [name for name, kind in kinds.items() if isinstance(kind, library.Image)]
    texts = [name for name, kind in kinds.items() if getattr(kind, "dtype", None) in ("string", "large_string")]
    if "image" in options or ("text" not in options and pictures):
        found = options.get("image") or (pictures[0] if len(pictures) == 1 else None)
        return _existing(origin, kinds, found, "image"), True
    usual = next((name for name in TEXTS if name in texts), None)
    found = options.get("text") or usual or (texts[0] if len(texts) == 1 else None)
    return _existing(origin, kinds, found, "text" if texts else "image"), False


def _existing(origin: str, kinds: Mapping[str, Any], name: str | None, what: str) -> str:
    if name is None or name not in kinds:
        why = f"there is no column {name!r}" if name else f"it is not clear which column holds the {what}"
        raise ValueError(f"{origin}: {why}: say `?{what}=COLUMN`, one of {_list(kinds)}.")
    return name


def _labels(origin: str, table: Any, label: str) -> Tensor:
    values = table[label][:]
    strange = next((value for value in values if not isinstance(value, (int, float))), None)
    if strange is not None:
        raise ValueError(f"{origin}: the column {label!r} holds {strange!r}, but labels are numbers: `?label=COLUMN`.")
    hidden = sum(value == -1 for value in values)
    if hidden:
        raise ValueError(
            f"{origin}: {hidden:,} of {len(values):,} labels are -1, which means hidden: use another split."
        )
    return torch.tensor(values)


def _numbered(
    origin: str, labels: Tensor, names: list[str] | None, class_names: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...] | None]:
    """The model's numbers where it has all the names; else the data's own, unless the model has other ones for some."""
    if not names or not class_names:
        return labels, tuple(names) if names else None
    strange = [name for name in names if name not in class_names]
    if strange:
        _refuse_moved(origin, names, class_names, strange[0])
        return labels, tuple(names)
    return torch.tensor([class_names.index(name) for name in names])[labels], class_names


def _refuse_moved(origin: str, names: list[str], class_names: tuple[str, ...], strange: str) -> None:
    moved = [name for name in names if name in class_names and class_names.index(name) != names.index(name)]
    if moved:
        raise ValueError(
            f"{origin}: the class {moved[0]} has another number in the network, and {strange} is none of its classes: "
            "give the classes of the data the names that the network has for them."
        )


def _picture(found: Mapping[str, Any]) -> Any:
    return picture(found["bytes"] if found["bytes"] is not None else Path(found["path"]))


def _list(names: Any) -> str:
    return ", ".join(map(str, names))
