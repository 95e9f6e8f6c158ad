"""What a model source gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Source:
    """A network in evaluation mode, and how its inputs are made.

    `prepare` turns one raw item (a PIL image; for text models a string) into the network's input, a tensor or a dict of
    tensors without a batch dimension.
    """

    model: nn.Module
    prepare: Callable[[Any], Any] | None = None
    class_names: tuple[str, ...] | None = None
