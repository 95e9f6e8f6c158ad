"""Nested batches: tensors in dicts, tuples and lists, as arguments of a network, and the tensor in what it returns."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.types import Batch, Inputs


def map_arrays(function: Any, value: Any) -> Any:
    """The same structure with the function applied to each tensor and each array in it."""
    if isinstance(value, (Tensor, np.ndarray)):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_arrays(function, part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map_arrays(function, part) for part in value)
    return value


def map_tensors(function: Any, value: Any) -> Any:
    """The same; an array becomes a tensor first."""
    return map_arrays(lambda array: function(torch.as_tensor(array)), value)


def placed(inputs: Inputs, device: torch.device, dtype: torch.dtype | None) -> Inputs:
    """The inputs on a device; floating-point numbers also get the type, unless it is None."""
    return map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else None), inputs)


def split_inputs(raw: Any) -> tuple[Inputs, Any]:
    """The inputs of one batch, and its labels if it has them."""
    if isinstance(raw, Mapping):
        key = next((key for key in ("labels", "label") if key in raw), None)
        return {name: value for name, value in raw.items() if name != key}, raw[key] if key else None
    if isinstance(raw, (tuple, list)):
        inputs, labels = raw[:-1] or raw, raw[-1] if len(raw) > 1 else None
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), labels
    return raw, None


def split_batch(batch: Any, argument: str) -> Batch:
    """One batch as (inputs, labels); in a dict, the labels are under "labels" or "label"."""
    inputs, labels = split_inputs(batch)
    if labels is None:
        raise TypeError(
            f"a batch of `{argument}` is a {type(batch).__name__} in which no labels were found: expected (inputs, "
            'labels), or a dict with "labels".'
        )
    labels = torch.as_tensor(labels)
    if labels.ndim == 0:
        raise ValueError(
            f"the labels of `{argument}` are one number, {labels}: expected one for each input of a batch; data that "
            "give one item after another belong in a DataLoader."
        )
    return inputs, labels


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a structure, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, value)
    return found


def digest_of(batch: Any, digest: int = 0) -> int:
    """A number that changes with any tensor in the structure."""
    for tensor in tensors_of(batch):
        digest = zlib.crc32(raw_bytes(tensor), digest)
    return digest


def raw_bytes(tensor: Tensor) -> Any:
    """The numbers of a tensor as bytes, the same on every device."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def sha256(parts: Iterable[bytes]) -> str:
    """Sixteen digits of the SHA-256 of these bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def shapes_of(inputs: Inputs) -> list[list[int]]:
    """The shapes of the tensors of a batch, in order."""
    return [list(tensor.shape) for tensor in tensors_of(inputs)]


def bytes_of(inputs: Inputs) -> int:
    """The memory that the tensors of a batch take."""
    return sum(tensor.nbytes for tensor in tensors_of(inputs))


def call_on_copies(network: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The network's outputs; it gets copies of the tensors, because it may write to its inputs."""
    return network(*copied(args), **copied(kwargs))


def copied(value: Any, copy: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """The same structure with copies of its tensors; a container of another type stays as it is."""
    if isinstance(value, Tensor):
        return copy(value)
    if type(value) is dict:
        return {key: copied(part, copy) for key, part in value.items()}
    return type(value)(copied(part, copy) for part in value) if type(value) in (tuple, list) else value


def as_arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as arguments of the network: `model(x)`, `model(*x)` for a tuple, `model(**x)` for a dict."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def output_tensor(outputs: Any, kind: type[Any] = Tensor) -> Tensor:
    """The logits in the output of a network; while it is traced, a stand-in of this kind.

    A tensor, an object or a dict with `logits`, a tuple that begins with them.
    """
    found: Any = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    elif not isinstance(outputs, kind) and hasattr(outputs, "logits"):
        found = outputs.logits
    elif isinstance(outputs, (tuple, list)) and outputs:
        found = outputs[0]
    if not isinstance(found, kind):
        raise TypeError(
            f"the network returned {type(outputs).__name__}, in which no tensor of logits was found. Wrap it in a "
            "module that returns a tensor, or an object with `logits`."
        )
    tensor: Tensor = found
    return tensor
