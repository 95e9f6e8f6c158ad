"""Inputs to trace with: what the network is called with, by name, and which of their dimensions count items."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.data import as_arguments, map_tensors
from peppermill.plumbing.devices import device_of, dtype_of
from peppermill.types import Inputs


@dataclass(frozen=True)
class Example:
    """A batch of inputs as the arguments of a call, the positional ones with the names that the network gives them."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    names: tuple[str, ...]
    items: int

    @property
    def by_name(self) -> dict[str, Any]:
        return {**dict(zip(self.names, self.arguments, strict=True)), **self.keywords}

    @property
    def signature(self) -> inspect.Signature:
        """Of a function that is called like this example."""
        positional = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.names]
        keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in self.keywords]
        return inspect.Signature(positional + keywords)

    def doubled(self) -> Example:
        """Every item twice: two items at least, because a dimension of one would be taken for a constant."""

        def twice(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor]) if self.counts_items(tensor) else tensor

        arguments, keywords = map_tensors(twice, self.arguments), map_tensors(twice, self.keywords)
        return replace(self, arguments=arguments, keywords=keywords, items=2 * self.items)

    def counts_items(self, tensor: Tensor) -> bool:
        """Whether the first dimension is the batch: not in positions [1, tokens] beside words [B, tokens]."""
        return tensor.ndim > 0 and len(tensor) == self.items


def example_of(model: nn.Module, inputs: Inputs) -> Example:
    """The inputs on the network's device and, where it has only one, of its type."""
    device, dtype = device_of(model), dtype_of(model)
    placed = map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else None), inputs)
    lengths: list[int] = []
    map_tensors(lambda t: lengths.append(len(t) if t.ndim else 0), placed)
    if not lengths or not lengths[0]:
        raise ValueError(
            f"`example` is {_form(inputs)}, in which no item was found: give a batch of inputs as the network takes "
            "them, one item at least, without labels."
        )
    arguments, keywords = as_arguments(placed)
    return Example(arguments, keywords, _names(model, arguments, keywords), lengths[0])


def _names(model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """What the network calls its positional arguments; input_0, input_1 ... where it does not say."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    positional = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD and p.name not in keywords]
    found = [*positional[: len(arguments)]]
    return tuple(found + [f"input_{number}" for number in range(len(found), len(arguments))])


def _form(inputs: Any) -> str:
    return f"a tensor of shape {list(inputs.shape)}" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
