"""One member after another: the engine that is always right, and that every other one falls back to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from peppermill.engines import ENGINES, Group, Members
from peppermill.engines.member_weights import Keep, MemberWeights, differentiable_groups


class Runner:
    """An engine at work: what it keeps between calls, and the function of `ENGINES` that says how members run."""

    def __init__(self, name: str, precision: str | None = None) -> None:
        module, _, function = ENGINES[name].place.partition(":")
        self.name, self.precision, self.report = name, precision, name
        self.how = getattr(import_module(module), function)
        self.latest: MemberWeights | None = None  # replaced when network or noise is another
        self.lock = threading.Lock()
        self.run: Callable[..., Tensor] = lambda call, args, kwargs: call(args, kwargs)
        if torch.cuda.is_available():
            from peppermill.engines.out_of_memory import Room  # a CPU does without it

            self.run = Room().run
        self.of_view: dict[int, Runner] = {}  # a runner for each view, so that none drops what another keeps

    def __reduce__(self) -> Any:
        return Runner, (self.name, self.precision)  # a copy starts with an empty cache

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        if members.views:
            return self._groups_by_view(members, args, kwargs)
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        if torch.is_grad_enabled() and any(value.requires_grad for value in (*given, *members.model.parameters())):
            self.report = "loop, because gradients may be wanted (use `torch.no_grad()`)"
            return differentiable_groups(members, self.precision)
        if torch.cuda.is_available():
            from peppermill.engines.graphs import known_graph_group

            if known := known_graph_group(self, members, args, kwargs):
                return iter([known])
        found: Iterator[Group] = self.how(self, self.weights(members, args, kwargs), members, args, kwargs)
        return found

    def weights(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MemberWeights:
        """The members' weights, those of the last call if they are still right."""
        with self.lock:
            if self.latest is None or not (self.latest.form.takes(args, kwargs) and self.latest.is_current(members)):
                self.latest = None  # frees the old weights before new ones are made
                self.latest = MemberWeights(members, self.precision, args, kwargs)
            return self.latest

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
    return member_groups(runner, weights, members, weights.is_small)


def member_groups(runner: Runner, weights: MemberWeights, members: Members, may_keep: bool = True) -> Iterator[Group]:
    """Groups of one member each; at sigma = 0 the network itself, bit for bit."""
    if members.sigma == 0:
        yield lambda args, kwargs: runner.run(partial(weights.plain, {}), args, kwargs).unsqueeze(0)
        return
    keep: Keep = ("members" if members.keep else "directions") if may_keep else "nothing"
    for member in range(members.count):
        params = weights.member(members.sigma, member, keep)

        def outputs(
            args: tuple[Any, ...], kwargs: dict[str, Any], member: int = member, params: Any = params
        ) -> Tensor:
            if weights.form.takes(args, kwargs):
                return runner.run(partial(weights.form, params), args, kwargs).unsqueeze(0)
            plain = weights.made(members.sigma, member, keep)  # a batch unlike the one that chose the form
            return runner.run(partial(weights.plain, plain), args, kwargs).unsqueeze(0)

        yield outputs
        del params, outputs  # or two members would be alive while the next one is made
