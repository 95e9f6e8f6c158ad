"""Weights in files, and whole networks that `torch.export` wrote. Nothing is unpickled: a file can be from anybody.

`checkpoint:weights.safetensors@timm:resnet18` is the network behind the `@` with the weights before it;
`checkpoint:model.pt2` needs no other.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

TORCH_FILES, KERAS_FILES = (".pt", ".pth", ".ckpt", ".bin"), (".h5", ".hdf5", ".keras")


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a file into the network, all of them and no others."""
    if not path.is_file():
        raise ValueError(f"there is no file {path} (`--weights`).")
    if path.suffix in KERAS_FILES:
        _load_keras_weights(model, path)
        return
    state = _torch_state(path) if path.suffix in TORCH_FILES else _safetensors_state(path)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit this {type(model).__name__}: {_first_complaint(error)}") from error


def exported(text: str) -> nn.Module:
    """The network of a `.pt2` archive."""
    if not Path(text).is_file():
        raise ValueError(f"there is no file {text}.")
    try:
        return torch.export.load(text).module()
    except Exception as error:
        raise ValueError(f"{text} is no archive that `torch.export.save` wrote, or is damaged ({error}).") from error


def _safetensors_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or is truncated ({error}).") from error


def _torch_state(path: Path) -> Mapping[str, Tensor]:
    """The state dict in a file, also where it lies under `state_dict` or `model`, as training programs write it."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than numbers, which could run code when opened, and is refused: save "
            "`model.state_dict()` alone."
        ) from error
    except (RuntimeError, EOFError, zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{path} is no file that `torch.save` wrote, or is truncated ({_words(error)}).") from error
    for key in ("state_dict", "model"):
        content = content[key] if isinstance(content, Mapping) and isinstance(content.get(key), Mapping) else content
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} holds no state dict: save `model.state_dict()`.")
    return content


def _load_keras_weights(model: Any, path: Path) -> None:
    if not hasattr(model, "load_weights"):
        raise ValueError(f"{path} holds weights of Keras, and this {type(model).__name__} is no Keras model.")
    try:
        model.load_weights(path)
    except Exception as error:
        raise ValueError(f"{path} does not fit this {type(model).__name__}: {_words(error)}") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _first_complaint(error: RuntimeError) -> str:
    """The first of the lines in which torch lists what does not fit, and how many follow."""
    complaints = [line.strip() for line in str(error).splitlines()[1:]]
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return " ".join(complaints[:1]) + more
