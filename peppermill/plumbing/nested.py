"""Nested batches: a batch is a tensor, or a dict, a tuple or a list of them, at any depth."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

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


def bytes_of(inputs: Inputs) -> int:
    """The memory that the tensors of a batch take."""
    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(t.nbytes), inputs)
    return sum(sizes)
