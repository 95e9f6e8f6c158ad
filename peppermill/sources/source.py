"""What a model source gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Source:
    """A network and how its inputs are made."""

    model: nn.Module  # in eval mode
    prepare: Callable[[Any], Any] | None = None  # one raw item (PIL image; for text models a string) -> input
    class_names: tuple[str, ...] | None = None
