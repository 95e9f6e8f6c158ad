"""Nested batches: tensors in dicts, tuples and lists, as arguments of a network, and the tensor in what it returns."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from peppermill.types import Inputs


def map_tensors(function: Any, value: Any) -> Any:
    """The same structure with the function applied to each tensor in it; an array becomes a tensor first."""
    if isinstance(value, (Tensor, np.ndarray)):
        return function(torch.as_tensor(value))
    if isinstance(value, Mapping):
        return {key: map_tensors(function, part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map_tensors(function, part) for part in value)
    return value


def digest_of(batch: Any, digest: int = 0) -> int:
    """A number that changes with any tensor in the structure."""
    total = [digest]

    def add(tensor: Tensor) -> None:
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        total[0] = zlib.crc32(cast(Any, raw.numpy()), total[0])

    map_tensors(add, batch)
    return total[0]


def shapes_of(inputs: Inputs) -> list[list[int]]:
    """The shapes of the tensors of a batch, in order."""
    shapes: list[list[int]] = []
    map_tensors(lambda t: shapes.append(list(t.shape)), inputs)
    return shapes


def bytes_of(inputs: Inputs) -> int:
    """The memory that the tensors of a batch take."""
    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(t.nbytes), inputs)
    return sum(sizes)


def same_tensor(before: Tensor, after: Tensor) -> bool:
    """Whether every value is still the same; NaN equals NaN."""
    return bool(((before == after) | (before != before)).all())


def is_written(before: Tensor, copy: Tensor) -> bool:
    """Whether a call that got this copy wrote to it; writes through numpy or `.data` show in the values alone."""
    return (not copy.is_inference() and copy._version > 0) or not same_tensor(before, copy)


class InputGuard:
    """Calls a network that may write to its inputs: then it gets a copy of each batch. The first calls show it."""

    def __init__(self) -> None:
        self.writes: dict[Any, bool] = {}  # by the types of the inputs

    def __call__(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = (*args, *kwargs.values())
        kinds = tuple((value.dtype, value.ndim) for value in values if isinstance(value, Tensor))
        if self.writes.get(kinds) is False:
            return network(*args, **kwargs)
        pairs: list[tuple[Tensor, Tensor]] = []
        outputs = network(*_copied(args, pairs), **_copied(kwargs, pairs))
        if kinds not in self.writes:
            self.writes[kinds] = any(starmap(is_written, pairs))
        return outputs


def _copied(value: Any, pairs: list[tuple[Tensor, Tensor]]) -> Any:
    """The same structure with copies of its tensors, which are noted beside the tensors."""
    if isinstance(value, Tensor):
        pairs.append((value, value.clone()))
        return pairs[-1][1]
    if type(value) is dict:
        return {key: _copied(part, pairs) for key, part in value.items()}
    return type(value)(_copied(part, pairs) for part in value) if type(value) in (tuple, list) else value


def call(model: Any, inputs: Inputs) -> Any:
    """The network on one batch of inputs: `model(x)`, `model(*x)` for a tuple, `model(**x)` for a dict."""
    args, kwargs = as_arguments(inputs)
    return model(*args, **kwargs)


def as_arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments of the network."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def output_tensor(outputs: Any) -> Tensor:
    """The logits in the output of a network.

    A tensor, an object or a dict with `logits`, a tuple that begins with them.
    """
    if isinstance(outputs, Tensor):
        return outputs
    found = None
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    elif hasattr(outputs, "logits"):
        found = outputs.logits
    elif isinstance(outputs, (tuple, list)) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the network returned {type(outputs).__name__}, in which no tensor of logits was found. Wrap it in a "
            "module that returns a tensor, or an object with `logits`."
        )
    return found
