"""Files of weights of every kind. A file can be from anybody, so nothing but numbers is unpickled.

The format is known by the content: safetensors, `torch.save` (.pt, .pth, .th, .ckpt, .bin), or HDF5 of Keras.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from peppermill.plumbing.optional import reason

#: A file of weights, or the weights themselves.
Checkpoint: TypeAlias = str | Path | Mapping[str, Tensor]

STATE_KEYS = ("state_dict", "model_state_dict", "model")  # under which training programs keep the weights
REFUSALS = {  # by a word in torch's error
    "GLOBAL": "holds more than numbers, which could run code when opened, and is refused",
    "TorchScript": "is a program of TorchScript, from which the weights cannot be read",
}


def read_checkpoint(source: Checkpoint) -> dict[str, Tensor]:
    """The arrays of a file by name."""
    if isinstance(source, Mapping):
        return dict(source)
    path, kind = Path(source), _kind(Path(source))
    if kind == "keras":
        raise ValueError(
            f"{path} holds weights of Keras, which only a Keras model can read: save the `state_dict()` as safetensors."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of an archive of TorchScript, which is refused below
            content = torch.load(path, map_location="cpu", weights_only=True) if kind == "torch" else load_file(path)
    except Exception as error:  # torch's unpickler can raise anything on damaged bytes
        for word, cause in REFUSALS.items():
            if word in str(error):
                raise ValueError(f"{path} {cause}: save `model.state_dict()` alone.") from error
        expected = "a file that `torch.save` wrote" if kind == "torch" else "a safetensors file"
        raise ValueError(f"{path} is not {expected}, or is truncated ({reason(error)}).") from error
    for key in STATE_KEYS:
        content = content[key] if isinstance(content, Mapping) and isinstance(content.get(key), Mapping) else content
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        found = f" but {', '.join(map(str, list(content)[:5]))}" if isinstance(content, Mapping) else ""
        raise ValueError(f"{path} holds no arrays by name{found}: save `model.state_dict()`, best as safetensors.")
    return {str(name): value for name, value in content.items()}


def load_weights(model: nn.Module, source: Checkpoint, name: str = "the state dict") -> None:
    """Put the weights of a file into the network, all of them and no others; weights in memory have a `name`."""
    what, kind = name if isinstance(source, Mapping) else source, type(model).__name__
    if not isinstance(source, Mapping) and _kind(Path(source)) == "keras":
        if not hasattr(model, "load_weights"):
            raise ValueError(
                f"{what} holds weights of Keras, and this {kind} is not a Keras model: name one with `keras:`."
            )
        try:
            model.load_weights(source)  # type: ignore[operator]
        except Exception as error:  # Keras raises anything
            raise ValueError(f"{what} does not fit this {kind}: {reason(error)}") from error
        return
    state = _without_prefix(read_checkpoint(source), model)
    for key, own in model.state_dict().items():
        if own.is_floating_point() and not state.get(key, own).is_floating_point():
            raise ValueError(f"{what} has {state[key].dtype} for `{key}`, which is {own.dtype}: save real numbers.")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{what} does not fit this {kind}: {_first_complaint(error)}") from error


def _without_prefix(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Without what DistributedDataParallel (`module.`), `torch.compile` or a LightningModule put before every name."""
    own = list(model.state_dict())
    if not own or not set(own).isdisjoint(state):
        return state
    candidates = {key.removesuffix(name) for name in own[:1] + own[-1:] for key in state if key.endswith(f".{name}")}
    stripped = [{k.removeprefix(p): v for k, v in state.items() if k.startswith(p)} for p in sorted(candidates)]
    return max(stripped, key=lambda one: len(set(one) & set(own)), default=state)


def _kind(path: Path) -> str:
    """What a file of weights is, by its content or its name: "keras", "safetensors" or "torch"."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give the path of the weights, a .safetensors, .pt or .h5 file.")
    with path.open("rb") as file:
        start = file.read(9)
    if start[:8] == b"\x89HDF\r\n\x1a\n" or path.suffix in (".h5", ".hdf5", ".keras"):
        return "keras"
    return "safetensors" if path.suffix == ".safetensors" or start[8:] == b"{" else "torch"


def _first_complaint(error: Exception) -> str:
    """The first line in which torch lists what does not fit, cut to three names, and the number of other lines.

    If the last layer alone has another size, that is the number of classes.
    """
    complaints = [line.strip() for line in str(error).splitlines()[1:]]
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    names = " ".join(complaints[:1]).split(", ")
    if names[0].count("key(s)") and len(names) > 3:
        names = [*names[:2], f"{names[2]} and {len(names) - 3:,} others."]
    sizes = [re.findall(r"torch\.Size\(\[(\d+)", complaint) for complaint in complaints]
    classes = len(sizes) in (1, 2) and all(len(one) == 2 and one == sizes[0] and one[0] != one[1] for one in sizes)
    complaint = ", ".join(names) + more
    if classes:
        complaint += f" If these are the classes, say how many there are, as in `timm:NAME?classes={sizes[0][0]}`."
    return complaint
