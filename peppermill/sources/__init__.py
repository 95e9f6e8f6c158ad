"""Where models and data come from: `scheme:rest` on the command line, one file for each scheme."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peppermill.sources import (
    checkpoint,
    hf_datasets,
    image_folder,
    keras,
    npz,
    python,
    small_images,
    timm,
    torchvision,
    transformers,
)
from peppermill.sources.source import Source

#: How data are had that are ready for the network.
DATA: dict[str, Callable[[str], Any]] = {
    "npz": npz.data,
    "python": python.data,
    **{name: partial(small_images.data, name) for name in small_images.DATASETS},
}

#: How data are had that the model's own preparation makes ready: of (rest, prepare, class names).
RAW: dict[str, Callable[..., Any]] = {"imagefolder": image_folder.data, "hf": hf_datasets.data}

#: How data are had that may lack labels, where labelled data are had in another way.
UNLABELLED: dict[str, Callable[..., Any]] = {
    "npz": lambda rest, *_: npz.data_or_inputs(rest),
    "imagefolder": partial(image_folder.data, needs_labels=False),
}


def source_from(text: str, *, pretrained: bool = True) -> Source:
    """The network that `scheme:rest` names, and how its inputs are made.

    `pretrained=False` is for weights that come from elsewhere: then none are downloaded.
    """
    scheme, rest = _parts(text, "MODEL", MODELS, "timm:resnet50")
    return MODELS[scheme](rest, pretrained)


def data_from(
    text: str, prepare: Callable[[Any], Any] | None = None, class_names: tuple[str, ...] | None = None
) -> Any:
    """The labelled data that `scheme:rest` names; raw ones by the preparation and the class names of a model."""
    scheme, rest = _parts(text, "DATA", {**DATA, **RAW}, "npz:file.npz")
    return DATA[scheme](rest) if scheme in DATA else RAW[scheme](rest, prepare, class_names)


def data_or_inputs_from(
    text: str, prepare: Callable[[Any], Any] | None = None, class_names: tuple[str, ...] | None = None
) -> Any:
    """The same, and where the data have no labels the inputs alone: an array, a tensor, a dict of them, or items that
    are not labelled."""
    scheme, _, rest = text.partition(":")
    if scheme in UNLABELLED and rest:
        return UNLABELLED[scheme](rest, prepare, class_names)
    return data_from(text, prepare, class_names)


def _checkpoint(text: str, pretrained: bool = True) -> Source:
    """`model.pt2`, or `weights.safetensors@SCHEME:NAME`."""
    if text.endswith(".pt2"):
        return Source(checkpoint.exported(text))
    path, at, architecture = text.rpartition("@")
    if not at:
        raise ValueError(
            f"checkpoint:{text} holds weights and no network: name one behind an @, as in "
            f"`checkpoint:{text}@timm:resnet18`."
        )
    source = source_from(architecture, pretrained=False)
    checkpoint.load_weights(source.model, Path(path))
    return source


#: How a model is had: from the rest of its name, and whether with its weights. A new source is one file and one row.
MODELS: dict[str, Callable[[str, bool], Source]] = {
    "python": python.source,
    "timm": timm.source,
    "torchvision": torchvision.source,
    "hf": transformers.source,
    "keras": keras.source,
    "checkpoint": _checkpoint,
}


def _parts(text: str, what: str, known: dict[str, Any], example: str) -> tuple[str, str]:
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in known or not rest:
        raise ValueError(
            f"{what} {text!r} must begin with one of {', '.join(f'{name}:' for name in known)} as in `{example}`."
        )
    return scheme, rest
