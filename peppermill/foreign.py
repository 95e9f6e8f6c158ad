"""Names that moved to `plumbing/modes` and `sources/keras`; this file goes when nobody imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from peppermill.plumbing.modes import explain_shapes
from peppermill.plumbing.modes import in_training_mode as in_training_mode
from peppermill.types import Params


def functional_call(model: nn.Module, params: Params, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the network gives with these parameters in place of its own, which are back afterwards."""
    with explain_shapes(model):
        return torch.func.functional_call(model, params, args, dict(kwargs))


def plain_call(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the network gives as it is."""
    with explain_shapes(model):
        return model(*args, **kwargs)
