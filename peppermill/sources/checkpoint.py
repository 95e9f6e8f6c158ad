"""Weights in files, which can be from anybody: nothing but numbers is unpickled; and what `torch.export` wrote.

`checkpoint:weights.safetensors@timm:resnet18` is the network behind the `@` with the weights before it;
`checkpoint:model.pt2` needs no other. Such an archive is a program: run only those of people you trust.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

TORCH_FILES, KERAS_FILES = (".pt", ".pth", ".ckpt", ".bin"), (".h5", ".hdf5", ".keras")
STATE_KEYS = ("state_dict", "model_state_dict", "model")  # under which training programs keep it
_REFUSED = {  # by a word of torch's
    "GLOBAL": "holds more than numbers, which could run code when opened, and is refused",
    "TorchScript": "is a program of TorchScript, of which the weights alone cannot be had",
}
_NO_ARCHIVE = "is no archive that `torch.export.save` wrote, or is damaged"


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a file into the network, all of them and no others."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give the path of the weights, a .safetensors, .pt or .h5 file.")
    if path.suffix in KERAS_FILES:
        _load_keras_weights(model, path)
        return
    state = _torch_state(path) if path.suffix in TORCH_FILES else _safetensors_state(path)
    try:
        model.load_state_dict(_bare(state, model))
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit this {type(model).__name__}: {_first_complaint(error)}") from error


def _bare(state: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """Without what DistributedDataParallel and `torch.compile` put before every name."""
    own = set(model.state_dict())
    for wrapper in ("module.", "_orig_mod."):
        if own.isdisjoint(state) and all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): value for name, value in state.items()}
    return state


def exported(text: str) -> nn.Module:
    """The network of a `.pt2` archive; its pickles are looked at first, because torch opens them without a look."""
    if not Path(text).is_file():
        raise ValueError(f"there is no file {text}: give the path of what `torch.export.save` wrote.")
    _refuse_objects(text)
    try:
        return torch.export.load(text).module()
    except Exception as error:
        raise ValueError(f"{text} {_NO_ARCHIVE} ({_words(error)}).") from error


def _refuse_objects(text: str) -> None:
    """Raise where an archive holds more than a graph and numbers."""
    try:
        with zipfile.ZipFile(text) as archive:
            names = archive.namelist()
            configs = [json.loads(archive.read(name)) for name in names if name.endswith("_config.json")]
            pickled = [name for name in names if name.endswith(".pt") or _is_pickled(name, configs)]
            for name in pickled:
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{text} holds objects beside its graph and weights, which could run code when opened, and is refused: "
            "export the network without them."
        ) from error
    except (zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise ValueError(f"{text} {_NO_ARCHIVE} ({_words(error)}).") from error


def _is_pickled(name: str, configs: list[dict[str, Any]]) -> bool:
    """Objects of any kind, and the tensors of which the archive's own tables say so."""
    last = name.rpartition("/")[2]
    tensors = (entry for config in configs for entry in config.get("config", {}).values())
    said = {entry.get("path_name") for entry in tensors if entry.get("use_pickle")}
    return last in said or last.startswith(("custom_obj_", "opaque_obj_"))


def _safetensors_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or is truncated ({error}).") from error


def _torch_state(path: Path) -> Mapping[str, Tensor]:
    """The state dict in a file, also where training programs put it."""
    content = _opened(path)
    for key in STATE_KEYS:
        content = content[key] if isinstance(content, Mapping) and isinstance(content.get(key), Mapping) else content
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        found = f" but {', '.join(map(str, list(content)[:5]))}" if isinstance(content, Mapping) else ""
        raise ValueError(f"{path} holds no state dict{found}: save `model.state_dict()`.")
    return content


def _opened(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch has to say about an archive of TorchScript is said below
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of junk, torch's unpickler raises whatever its first byte leads to
        for word, cause in _REFUSED.items():
            if word in str(error):
                raise ValueError(f"{path} {cause}: save `model.state_dict()` alone.") from error
        raise ValueError(f"{path} is no file that `torch.save` wrote, or is truncated ({_words(error)}).") from error


def _load_keras_weights(model: Any, path: Path) -> None:
    if not hasattr(model, "load_weights"):
        raise ValueError(
            f"{path} holds weights of Keras, and this {type(model).__name__} is no Keras model: name one with `keras:`."
        )
    try:
        model.load_weights(path)
    except Exception as error:
        raise ValueError(f"{path} does not fit this {type(model).__name__}: {_words(error)}") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _first_complaint(error: RuntimeError) -> str:
    """The first of the lines in which torch lists what does not fit, and how many follow; of a list of names, three."""
    complaints = [line.strip() for line in str(error).splitlines()[1:]]
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    names = " ".join(complaints[:1]).split(", ")
    others = f" and {len(names) - 3:,} others." if names[0].count("key(s)") and len(names) > 3 else ""
    return ", ".join(names[:3] if others else names) + others + more + _other_classes(complaints)


def _other_classes(complaints: list[str]) -> str:
    """What to do where one layer alone has another size, which is the last one of a network for other classes."""
    sizes = [re.findall(r"torch\.Size\(\[(\d+)", complaint) for complaint in complaints]
    if len(complaints) > 2 or not all(
        len(found) == 2 and found == sizes[0] and found[0] != found[1] for found in sizes
    ):
        return ""
    return f" Where these are the classes, say how many there are, as in `timm:NAME?classes={sizes[0][0]}`."
