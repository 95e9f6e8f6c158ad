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

from torch import Tensor

from peppermill.engines import Group, Members
from peppermill.engines.graphs import graph_group, suits_graphs
from peppermill.engines.loop import Runner, member_groups
from peppermill.engines.member_weights import MemberWeights
from peppermill.engines.vmap import together_of, vmap
from peppermill.plumbing.nested import bytes_of

GRAPH_BYTES = 2**23  # of inputs: larger batches fill a GPU without graphs
VMAP_ITEMS = {"cpu": 512, "cuda": 4096}  # items of a batch: beyond this, members together only move more memory


def auto(runner: Runner, weights: MemberWeights, members: Members, args: Any, kwargs: Any) -> Iterator[Group]:
    """The engine that suits the network, the batch and the device."""
    device = weights.form.device.type
    items = max((len(value) for value in args if isinstance(value, Tensor) and value.ndim), default=0)
    small = weights.is_small and items <= VMAP_ITEMS.get(device, 0)
    if members.count > 1 and small and together_of(weights):
        return vmap(runner, weights, members, args, kwargs)
    if device == "cuda" and bytes_of((args, kwargs)) <= GRAPH_BYTES and suits_graphs(weights, members):
        return iter([graph_group(runner, weights, members)])
    runner.report = "loop"
    return member_groups(runner, weights, members)
