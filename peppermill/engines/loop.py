"""One member after another: the engine that is always right, and that every other one falls back to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from peppermill.engines import ENGINES, Group, Members
from peppermill.engines.member_weights import (
    Keep,
    MemberWeights,
    WeightCache,
    differentiable_groups,
    wants_gradients,
)
from peppermill.engines.out_of_memory import Room


class Runner:
    """An engine at work: what it keeps between calls, and the function of `ENGINES` that says how members run."""

    def __init__(self, name: str, precision: str | None = None) -> None:
        module, _, function = ENGINES[name].place.partition(":")
        self.name, self.precision, self.report = name, precision, name
        self.how = getattr(import_module(module), function)
        self.cache, self.room = WeightCache(precision), Room()
        self.of_view: dict[int, Runner] = {}  # a runner for each view, so that none drops what another keeps

    def __reduce__(self) -> Any:
        return Runner, (self.name, self.precision)  # a copy starts with an empty cache

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        if members.views:
            return self._groups_by_view(members, args, kwargs)
        if wants_gradients(members, args, kwargs):
            self.report = "loop, because gradients may be wanted (use `torch.no_grad()`)"
            return differentiable_groups(members, self.precision)
        if torch.cuda.is_available():
            from peppermill.engines.graphs import known_graph_group  # a CPU does without it

            if known := known_graph_group(self, members, args, kwargs):
                return iter([known])
        found: Iterator[Group] = self.how(self, self.cache.weights(members, args, kwargs), members, args, kwargs)
        return found

    def _groups_by_view(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        for k, (view, part) in enumerate(members.parts()):
            runner = self.of_view.setdefault(k, Runner(self.name, self.precision))
            for group in runner.groups(part, *view.seen(args, kwargs)):
                yield partial(view.outputs, group)
                del group
            self.report = runner.report


def loop(runner: Runner, weights: MemberWeights, members: Members, args: Any, kwargs: Any) -> Iterator[Group]:
    """One perturbed copy of the selected weights is alive at a time, unless all of them are small."""
    runner.report = "loop"
    return member_groups(weights, members, runner.room, weights.is_small)


def member_groups(weights: MemberWeights, members: Members, room: Room, may_keep: bool = True) -> Iterator[Group]:
    """Groups of one member each; at sigma = 0 the network itself, bit for bit."""
    if members.sigma == 0:
        yield lambda args, kwargs: room.run(partial(weights.plain, {}), args, kwargs).unsqueeze(0)
        return
    keep: Keep = ("members" if members.keep else "directions") if may_keep else "nothing"
    for member in range(members.count):
        params = weights.member(members.sigma, member, keep)

        def outputs(
            args: tuple[Any, ...], kwargs: dict[str, Any], member: int = member, params: Any = params
        ) -> Tensor:
            if weights.form.takes(args, kwargs):
                return room.run(partial(weights.form, params), args, kwargs).unsqueeze(0)
            plain = weights.made(members.sigma, member, keep)  # a batch unlike the one that chose the form
            return room.run(partial(weights.plain, plain), args, kwargs).unsqueeze(0)

        yield outputs
        del params, outputs  # or two members would be alive while the next one is made
