"""Models and data by name: `scheme:rest`, as on the command line. `SOURCES` lists the schemes, one row for each."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peppermill.sources.source import Source


@dataclass(frozen=True)
class Row:
    """One scheme, and what it gives, "model" or "data".

    `read` takes what follows the colon. A model also gets whether to load pre-trained weights; data get the model's
    preparation and class names, and whether labels are needed.
    """

    scheme: str
    gives: str
    example: str
    help: str
    read: Callable[..., Any]


def _in(place: str, *first: str) -> Callable[..., Any]:
    """`file.function` in this folder, imported when it is called: a list of schemes needs no torch."""
    file, _, function = place.partition(".")
    return lambda *more: getattr(import_module(f"peppermill.sources.{file}"), function)(*first, *more)


AT_WEIGHTS = "checkpoint:weights.safetensors@timm:resnet18"
IN_FILES = "weights for the network after the @, or a .pt2 file with --trust"
FACTORY = "python:package.module:factory"

#: A new source is one file here and one row.
SOURCES = [
    Row("timm", "model", "timm:resnet50", "a classifier of timm", _in("timm.source")),
    Row("torchvision", "model", "torchvision:resnet50", "a classifier of torchvision", _in("torchvision.source")),
    Row("hf", "model", "hf:REPO_OR_FOLDER", "an image or text classifier of transformers", _in("transformers.source")),
    Row("keras", "model", "keras:ResNet50", "a Keras application, or a .keras or .h5 file", _in("keras.source")),
    Row("checkpoint", "model", AT_WEIGHTS, IN_FILES, _in("checkpoint.source")),
    Row("python", "model", FACTORY, "what a function returns", _in("python.source")),
    Row("npz", "data", "npz:file.npz", "arrays x and y", _in("npz.data")),
    Row("imagefolder", "data", "imagefolder:PATH", "pictures, a folder for each class", _in("image_folder.data")),
    Row("hf", "data", "hf:NAME_OR_FOLDER:SPLIT", "a data set of the Hugging Face hub", _in("hf_datasets.data")),
    Row("mnist", "data", "mnist:test", "handwritten digits", _in("small_images.data", "mnist")),
    Row(
        "fashion-mnist", "data", "fashion-mnist:test", "pictures of clothes", _in("small_images.data", "fashion-mnist")
    ),
    Row("cifar10", "data", "cifar10:test", "pictures of 10 classes", _in("small_images.data", "cifar10")),
    Row("cifar100", "data", "cifar100:test", "pictures of 100 classes", _in("small_images.data", "cifar100")),
    Row("python", "data", FACTORY, "what a function returns", _in("python.data")),
]


def help_for(gives: str) -> str:
    """The schemes that give this, each with its example and what it is, in one line."""
    return ", ".join(f"{row.example} ({row.help})" for row in SOURCES if row.gives == gives)


def source_from(text: str, *, pretrained: bool = True, trust: bool = False) -> Source:
    """The network that `scheme:rest` names, and how its inputs are made.

    `pretrained=False` is for weights that come from elsewhere: then none are downloaded. A `.pt2` archive is opened
    with `trust=True` only: it is a program, and torch runs what is in it without a check.
    """
    row, rest = _row(text, "model")
    if row.scheme == "checkpoint" and rest.endswith(".pt2") and not trust:
        raise ValueError(
            f"{text} is a program and can run any code when it is opened: add `--trust` if you trust whoever wrote it."
        )
    source: Source = row.read(rest, pretrained)
    return source


def data_from(
    text: str,
    prepare: Callable[[Any], Any] | None = None,
    class_names: tuple[str, ...] | None = None,
    *,
    needs_labels: bool = True,
) -> Any:
    """The data that `scheme:rest` names; a model's preparation and class names make raw data ready for it.

    Without labels, they are inputs alone: an array, a dict of arrays, or items without labels.
    """
    row, rest = _row(f"npz:{text}" if text.endswith(".npz") and ":" not in text[2:] else text, "data")  # C:/data.npz
    return row.read(rest, prepare, class_names, needs_labels)


def _row(text: str, gives: str) -> tuple[Row, str]:
    rows = {row.scheme: row for row in SOURCES if row.gives == gives}
    scheme, colon, rest = text.partition(":")
    if colon and scheme in rows and rest:
        return rows[scheme], rest
    near = [rows[name].example for name in difflib.get_close_matches(scheme, rows, n=1)]
    if gives == "data" and Path(text).exists():
        near = [f"imagefolder:{text}" if Path(text).is_dir() else f"npz:{text}"]  # npz under another name
    elif gives == "model" and rest and Path(f"{scheme.replace('.', '/')}.py").is_file():
        near = [f"python:{text}"]
    meant = f" Did you mean `{near[0]}`?" if near else ""
    schemes, example = ", ".join(f"{name}:" for name in rows), next(iter(rows.values())).example
    raise ValueError(f"{gives.upper()} {text!r} must begin with one of {schemes} as in `{example}`.{meant}")
