"""`hf:NAME_OR_FOLDER[:SPLIT]`: pictures or texts of the Hugging Face hub, or of a folder, through `datasets`.

hf:ylecun/mnist:test                        from the hub
hf:my-folder:test                           what `save_to_disk` wrote, or a folder of files that `datasets` reads
hf:nyu-mll/glue:validation?config=sst2&text=sentence&label=label
hf:my-folder:train?streaming=yes            for `predict`: Parquet files, say, read as they come, with labels or without
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peppermill.plumbing.optional import importing
from peppermill.sources.items import Items, reading
from peppermill.sources.pictures import OPTIONS, picture, preparation
from peppermill.sources.source import one_of, split_query

LABELS = ("label", "labels", "fine_label", "target", "class")
TEXTS = ("text", "sentence", "content", "review")


def data(
    text: str,
    prepare: Callable[[Any], Any] | None = None,
    class_names: tuple[str, ...] | None = None,
    needs_labels: bool = True,
) -> Items | HubStream:
    """The items of one split, not prepared yet; `prepare` and `class_names` are the model's own.

    If the model has all classes of the data by name, its numbers are used.
    """
    known = ("config", "image", "text", "label", "bad", "workers", "streaming", *OPTIONS)
    rest, options = split_query(text, "hf", known)
    origin, streaming = f"hf:{rest}", one_of(options, "streaming", ("yes", "no"), "no") == "yes"
    if streaming and needs_labels:
        raise ValueError(f"hf:{text}: `streaming=yes` is for `predict`, which reads the data once: leave it out.")
    with importing("`hf:` data need the library datasets", "datasets", "hf"):
        import datasets
    table = _table(datasets, origin, rest, options.get("config"), streaming)
    label, column, pictures = _columns(datasets, origin, table.features, options, streaming)
    if pictures:
        table = table.cast_column(column, datasets.Image(decode=False))
        prepare = preparation(origin, options, prepare)
    elif prepare is None:
        raise ValueError(
            f"{origin} holds texts, and this model brings no tokenizer (or one that cannot pad short texts): use a "
            "text classifier of `hf:`, and put its tokenizer beside it with `tokenizer.save_pretrained(folder)`."
        )
    items_of = partial(Items, origin=origin, prepare=prepare, pictures=pictures, **reading(options))
    if streaming:
        return HubStream(table, label, column, items_of)
    assert label is not None
    labels, classes = _labels(origin, table, label, class_names)
    inputs, names = table.select_columns([column]), [f"item {row}" for row in range(len(table))]
    return items_of(names=names, labels=labels, load=lambda row: _raw(inputs[row][column]), class_names=classes)


@dataclass(frozen=True)
class HubStream:
    """A data set that is read from its beginning to its end, and whose length nobody knows."""

    table: Any
    label: str | None
    column: str
    items_of: Callable[..., Items]

    def in_batches(self, batch_size: int) -> Iterator[Items]:
        """The items of each batch, not decoded yet."""
        start = 0
        for found in self.table.iter(batch_size):
            raw = found[self.column]
            yield self.items_of(
                names=[f"item {start + row}" for row in range(len(raw))],
                labels=torch.as_tensor(found[self.label] if self.label else [0] * len(raw)),
                load=lambda row, raw=raw: _raw(raw[row]),
                labelled=self.label is not None,
            )
            start += len(raw)


def _raw(found: Any) -> Any:
    """A text, or a picture from its bytes or its file."""
    if isinstance(found, str):
        return found
    return picture(found["bytes"] if found["bytes"] is not None else Path(found["path"]))


def _table(datasets: Any, origin: str, rest: str, config: str | None, streaming: bool) -> Any:
    """The split after the last colon, unless that is part of a path; without it, the only split."""
    name, colon, split = rest.rpartition(":")
    if not colon or Path(rest).exists():
        name, split = rest, ""
    try:
        is_saved = (Path(name) / "state.json").is_file() or (Path(name) / "dataset_dict.json").is_file()
        load = datasets.load_from_disk if is_saved else partial(datasets.load_dataset, name=config, streaming=streaming)
        found = load(name)
    except Exception as error:  # several libraries raise a dozen different errors for data that are not there
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{origin} could not be loaded ({reason}): give a local folder, or a data set of the hub, with a network "
            "connection."
        ) from error
    if isinstance(found, Mapping):
        split = next(iter(found)) if not split and len(found) == 1 else split
        if split not in found:
            raise ValueError(
                f"{origin}: say which split, as in `hf:NAME:{next(iter(found))}`; there are {', '.join(found)}."
            )
        found = found[split]
    elif split not in ("", str(found.split)):
        raise ValueError(f"{origin}: these data have no splits: leave `:{split}` out.")
    return found.to_iterable_dataset() if streaming and is_saved else found


def _columns(
    datasets: Any, origin: str, kinds: Mapping[str, Any], options: dict[str, str], streaming: bool
) -> tuple[str | None, str, bool]:
    """The column of labels, that of pictures or texts, and whether it holds pictures: by option, kind or usual name."""

    def existing(name: str | None, what: str) -> str:
        if name is None or name not in kinds:
            why = f"there is no column {name!r}" if name else f"it is not clear which column holds the {what}"
            raise ValueError(f"{origin}: {why}: say `?{what}=COLUMN`, one of {', '.join(kinds)}.")
        return name

    classes = [name for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    usual = [name for name in LABELS if name in kinds]
    found = options.get("label") or next((name for name in usual if name in classes), None)
    label = found or next(iter(classes if len(classes) == 1 else usual), None)
    if label or not streaming:
        label = existing(label, "label")
    kinds = {name: kind for name, kind in kinds.items() if name != label}
    pictures = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
    texts = [name for name, kind in kinds.items() if getattr(kind, "dtype", None) in ("string", "large_string")]
    if "image" in options or ("text" not in options and pictures):
        return label, existing(options.get("image") or (pictures[0] if len(pictures) == 1 else None), "image"), True
    named = next((name for name in TEXTS if name in texts), texts[0] if len(texts) == 1 else None)
    return label, existing(options.get("text") or named, "text" if texts else "image"), False


def _labels(
    origin: str, table: Any, label: str, class_names: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...] | None]:
    """The model's numbers if it has all the names; else the data's own, unless the model has other ones for some."""
    values = table[label][:]
    strange = next((value for value in values if not isinstance(value, (int, float))), None)
    if strange is not None:
        raise ValueError(f"{origin}: the column {label!r} holds {strange!r}, but labels are numbers: `?label=COLUMN`.")
    hidden = sum(value == -1 for value in values)
    if hidden:
        raise ValueError(
            f"{origin}: {hidden:,} of {len(values):,} labels are -1, which means hidden: use another split."
        )
    labels, names = torch.tensor(values), tuple(getattr(table.features[label], "names", ()))
    if not names or not class_names:
        return labels, names or None
    unknown = [name for name in names if name not in class_names]
    moved = [name for name in names if name in class_names and class_names.index(name) != names.index(name)]
    if unknown and moved:
        raise ValueError(
            f"{origin}: the class {moved[0]} has another number in the network, and {unknown[0]} is none of its "
            "classes: give the classes of the data the names that the network has for them."
        )
    if unknown:
        return labels, names
    return torch.tensor([class_names.index(name) for name in names])[labels], class_names
