"""`keras:NAME` of keras.applications, `keras:model.keras`, `keras:model.h5`: Keras 3 on the torch backend.

A last softmax or sigmoid is taken off: this library works with logits. Images are channels-last.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.plumbing.optional import importing
from peppermill.sources.pictures import resized_by_the_paper
from peppermill.sources.query import split_query, whole_number
from peppermill.sources.source import Source, class_count, one_clear_line, refuse_unknown, wants_weights

FILES = (".keras", ".h5", ".hdf5")


def source(text: str, pretrained: bool = True) -> Source:
    """The network of `NAME`, with its ImageNet weights, or of a file.

    `?pretrained=false&classes=10&size=64` is for weights of your own; `size` is the images' height and width.
    """
    keras = library()
    name, options = split_query(text, "keras", ("pretrained", "classes", "size"))
    if name.endswith(FILES):
        return Source(_saved(keras, name).eval(), channels_last=True)
    known = {key: value for key, value in vars(keras.applications).items() if key[0].isupper()}
    refuse_unknown("keras", name, known)
    pretrained = wants_weights(options, pretrained)
    sizes: dict[str, Any] = {**class_count(options, pretrained, "classes"), **_image_shape(options)}
    with one_clear_line(f"keras:{name}", "connect to the network once, or give weights with `--weights FILE.h5`"):
        weights = "imagenet" if pretrained else None
        model = known[name](weights=weights, classifier_activation=None, **sizes).eval()
    return Source(model, _preparation(known[name], model), channels_last=True)


def without_activation(keras: Any, model: Any) -> Any:
    """The same network, its last softmax or sigmoid taken off."""
    ends = (keras.activations.softmax, keras.activations.sigmoid)
    last = model.outputs[0]._keras_history.operation if getattr(model, "outputs", None) else None
    if isinstance(last, keras.layers.Softmax) or (
        isinstance(last, keras.layers.Activation) and last.activation in ends
    ):
        return keras.Model(model.inputs, last.input)
    if last is not None and getattr(last, "activation", None) in ends:
        last.activation = keras.activations.linear
    return model


def library() -> Any:
    """Keras on the torch backend: what the environment says is read once, when Keras is imported."""
    if "keras" not in sys.modules:
        _refuse_backend(os.environ.setdefault("KERAS_BACKEND", "torch"))
    with importing("Keras models need Keras 3", "keras", "keras"):
        import keras
    _refuse_backend(keras.backend.backend())
    return keras


def _refuse_backend(name: str) -> None:
    if name != "torch":
        raise ValueError(
            f"Keras is on the {name} backend, and must be on torch's: set KERAS_BACKEND=torch in the environment."
        )


def _saved(keras: Any, path: str) -> Any:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: `keras:` takes the path of what `model.save` wrote.")
    if not _has_the_form(path):
        raise ValueError(f"{path} is no file that `model.save` of Keras wrote, or is damaged: save the model again.")
    with one_clear_line(f"keras:{path}", "expected a whole model of Keras' own layers, as `model.save` writes it"):
        return without_activation(keras, keras.saving.load_model(path, compile=False))


def _has_the_form(path: str) -> bool:
    """A .keras file is a zip archive, the others begin as HDF5 files do."""
    if path.endswith(".keras"):
        return zipfile.is_zipfile(path)
    with open(path, "rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _image_shape(options: dict[str, str]) -> dict[str, tuple[int, int, int]]:
    side = whole_number(options, "size", 0)
    return {"input_shape": (side, side, 3)} if side else {}


def _preparation(build: Any, model: Any) -> Callable[[Any], Tensor]:
    """A PIL image -> [height, width, 3]: the paper's bicubic resize and centre crop, then Keras' own scaling.

    The short side becomes 256 for networks that see 224 pixels, and what the network sees for all others.
    """
    scale = sys.modules[build.__module__].preprocess_input
    size = model.input_shape[1]

    def prepare(image: Any) -> Tensor:
        pixels = resized_by_the_paper(image.convert("RGB"), 256 if size == 224 else size, size)
        return torch.as_tensor(np.ascontiguousarray(scale(np.array(pixels, dtype=np.float32))))

    return prepare
