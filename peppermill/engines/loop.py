"""One member after another: the engine that is always right, and that every other one falls back to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peppermill.engines import Group, Members
from peppermill.engines.inference_form import autocast
from peppermill.engines.member_weights import Keep, MemberWeights, WeightCache
from peppermill.engines.network_shell import Shells
from peppermill.engines.out_of_memory import Room
from peppermill.plumbing.devices import device_of
from peppermill.plumbing.modes import refuse_training_mode
from peppermill.plumbing.nested import output_tensor


class Loop:
    """One perturbed copy of the selected weights is alive at a time."""

    report = "loop"

    def __init__(self, precision: str | None = None) -> None:
        self.precision = precision
        self.cache, self.room = WeightCache(precision), Room()

    def __reduce__(self) -> Any:
        return type(self), (self.precision,)  # a copy starts with an empty cache

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        if wants_gradients(members, args, kwargs):
            return differentiable_groups(members, self.precision)
        weights = self.cache.weights(members, args, kwargs)
        return member_groups(weights, members, self.room, weights.is_small)


def member_groups(weights: MemberWeights, members: Members, room: Room, may_keep: bool = True) -> Iterator[Group]:
    """Groups of one member each; at sigma = 0 the network itself, bit for bit."""
    if members.sigma == 0:
        yield lambda args, kwargs: room.run(partial(weights.plain, {}), args, kwargs).unsqueeze(0)
        return
    keep: Keep = ("members" if members.keep else "directions") if may_keep else "nothing"
    for member in range(members.count):
        params = weights.member(members.sigma, member, keep)

        def outputs(args: tuple[Any, ...], kwargs: dict[str, Any], params: Any = params) -> Tensor:
            return room.run(partial(weights.form, params), args, kwargs).unsqueeze(0)

        yield outputs
        del params, outputs  # or two members would be alive while the next one is made


def differentiable_groups(members: Members, precision: str | None) -> Iterator[Group]:
    """Members whose outputs can be differentiated by the inputs and by the network's own parameters."""
    refuse_training_mode(members.model)
    shells, device = Shells(members.model), device_of(members.model)
    perturbation, center = members.perturbation(), dict(members.model.named_parameters())
    for member in range(members.count):
        params = {}
        if members.sigma != 0:
            direction = perturbation.direction(member)
            params = {name: center[name] + members.sigma * step.to(center[name]) for name, step in direction.items()}

        def outputs(args: tuple[Any, ...], kwargs: dict[str, Any], params: Any = params) -> Tensor:
            with autocast(device, precision):
                return output_tensor(shells(params, args, kwargs)).clone().unsqueeze(0)

        yield outputs


def wants_gradients(members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the caller may differentiate the outputs."""
    if not torch.is_grad_enabled():
        return False
    inputs = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return any(value.requires_grad for value in (*inputs, *members.model.parameters()))
