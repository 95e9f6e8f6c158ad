"""`engine="auto"`: a rule, not a stopwatch, chooses the engine, so that the same call gives the same bits every time.

| if | then |
|---|---|
| there is one member, or gradients may be wanted | loop |
| no convolution is perturbed, and the members' weights and the batch are small | vmap |
| the same members run again on a GPU, on a small batch | graphs |
| otherwise | loop, with the members' weights kept if they fit |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from peppermill.engines import Group, Members
from peppermill.engines.graphs import graph_group, known_graph_group, suits_graphs
from peppermill.engines.loop import differentiable_groups, member_groups, wants_gradients
from peppermill.engines.member_weights import WeightCache
from peppermill.engines.out_of_memory import Room
from peppermill.engines.vmap import together_of
from peppermill.plumbing.nested import bytes_of

GRAPH_BYTES = 2**23  # of inputs: larger batches fill a GPU without graphs
VMAP_ITEMS = {"cpu": 512, "cuda": 4096}  # items of a batch: beyond this, members together only move more memory


class Auto:
    """Chooses among the other engines; all of them share one cache of weights."""

    def __init__(self, precision: str | None = None) -> None:
        self.precision, self.report = precision, "auto"
        self.cache, self.room = WeightCache(precision), Room()

    def __reduce__(self) -> Any:
        return type(self), (self.precision,)  # a copy starts with an empty cache

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        if wants_gradients(members, args, kwargs):
            self.report = "loop, because gradients may be wanted (use `torch.no_grad()`)"
            return differentiable_groups(members, self.precision)
        if torch.cuda.is_available() and (known := known_graph_group(self, members, args, kwargs)):
            return iter([known])
        weights = self.cache.weights(members, args, kwargs)
        if members.count == 1:
            self.report = "loop"
            return member_groups(weights, members, self.room)
        together = together_of(weights)
        items = max((len(value) for value in args if isinstance(value, Tensor) and value.ndim), default=0)
        device = weights.form.device.type
        if together is not None and items <= VMAP_ITEMS.get(device, 0) and weights.is_small:
            self.report = "vmap"
            return iter([together.group(members)])
        small = device == "cuda" and bytes_of((args, kwargs)) <= GRAPH_BYTES
        if small and suits_graphs(weights, members):
            return iter([graph_group(self, weights, members)])
        self.report = "loop"
        return member_groups(weights, members, self.room)
