"""The device and the floating-point type of a network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def device_of(model: Any) -> torch.device:
    """The device of the network's first parameter or buffer."""
    return next((t.device for t in state_of(model)), torch.device("cpu"))


def dtype_of(model: Any) -> torch.dtype | None:
    """The one floating-point type of the network's parameters; None if they have several."""
    types = {t.dtype for t in state_of(model) if t.is_floating_point() and isinstance(t, nn.Parameter)}
    return types.pop() if len(types) == 1 else None


def state_of(model: Any) -> Iterator[Tensor]:
    """Parameters and buffers; empty for anything but a module."""
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
