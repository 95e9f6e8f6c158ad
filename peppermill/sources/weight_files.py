"""Files of weights, and whether they belong to one architecture. Nothing in a file is ever run."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

#: A file of weights, or the weights themselves.
Checkpoint: TypeAlias = str | Path | Mapping[str, Tensor]


def read_checkpoint(source: Checkpoint) -> dict[str, Tensor]:
    """The arrays by name: of a safetensors file, or of a torch file that holds a state dict and no code."""
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} is not a file of weights, is truncated, or holds more than arrays: save the network's "
            "`state_dict()`, best as safetensors."
        ) from error
    found = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path} holds no arrays by name: save the network's `state_dict()`, best as safetensors.")
    return dict(found)


def check_architecture(model: nn.Module, checkpoints: Mapping[str, Checkpoint]) -> None:
    """Refuse checkpoints of which two differ in an array's name or shape, or the first from the network."""
    known = shapes(model.state_dict())
    against = f"the {type(model).__name__}"
    for name, source in checkpoints.items():
        found = shapes(read_checkpoint(source))
        different = first_difference(known, found)
        if different:
            raise ValueError(f"{name} and {against} do not share an architecture: {different}.")
        against = name


def shapes(state: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """The shape of every array, by name."""
    return {name: list(value.shape) for name, value in state.items()}


def first_difference(first: Mapping[str, list[int]], second: Mapping[str, list[int]]) -> str:
    """The first array, in the order of the first of the two, that is missing or has another shape in the second."""
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in second:
            return f"`{name}` is missing from it"
        if name not in first:
            return f"`{name}` is in it alone"
        if first[name] != second[name]:
            return f"`{name}` has shape {second[name]}, not {first[name]}"
    return ""
