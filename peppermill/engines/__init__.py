"""How members run: the contract of the engines, and the table of them.

Three questions, three places. What is called? `inference_form.py`. With which weights? `member_weights.py`. How? One
file for each engine; a rule, not a stopwatch, chooses among them, so that the same call gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from peppermill.noise import Noise
from peppermill.perturbation import Perturbation
from peppermill.plumbing.nested import bytes_of
from peppermill.views import IDENTITY, View

#: The low precisions in which a network may compute; noise, sums and averages stay in float32 and float64.
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}

GRAPH_BYTES = 2**23  # of inputs: larger batches fill a GPU without graphs
VMAP_ITEMS = {"cpu": 512, "cuda": 4096}  # items of a batch: beyond this, members together only move more memory

#: Some members, ready to run: (args, kwargs) of one batch -> their outputs, [group, ...].
Group = Callable[[tuple[Any, ...], dict[str, Any]], Tensor]


@dataclass(frozen=True)
class Members:
    """The members theta_j of one network at one sigma."""

    model: nn.Module
    selected: tuple[str, ...]  # the names of the perturbed parameters
    noise: Noise
    size: int
    sigma: float
    keep: bool  # whether the same members will run again, so that their weights are worth keeping
    views: tuple[View, ...] = ()  # of the inputs; member j sees view j mod V

    @property
    def count(self) -> int:
        """m; if sigma is 0, when all members are the network itself, one for each view."""
        return self.size if self.sigma != 0 else len(self.parts())

    def parts(self) -> list[tuple[View, Members]]:
        """Each view with the members that see it."""
        count = min(len(self.views), self.size)
        if count == 0:
            return [(IDENTITY, self)]
        draws = self.noise.draws or tuple(range(self.size))
        noises = [replace(self.noise, draws=draws[k : self.size : count]) for k in range(count)]
        parts = [replace(self, noise=noise, size=len(noise.draws), views=()) for noise in noises]
        return list(zip(self.views, parts, strict=False))

    def in_order(self, found: Tensor) -> Tensor:
        """Member j's row at j: engines run the members view by view, and at sigma = 0 one for each view."""
        views = len(self.parts())
        if views == 1:
            return found.expand(self.size, *found.shape[1:])
        view = torch.arange(self.size, device=found.device) % views
        return found[view if self.sigma == 0 else view.argsort(stable=True).argsort()]

    def perturbation(self) -> Perturbation:
        """The noise around the network's parameters as they are now."""
        own = dict(self.model.named_parameters())
        return Perturbation({name: own[name].detach() for name in self.selected}, self.noise, self.size)


class Engine(Protocol):
    """How m members run. All engines give the same numbers, up to the rounding of the last bits."""

    precision: str | None
    report: str  # which engine ran last, and why if it was not the one that was asked for

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        """All members, view by view and in order, in groups of one or more, for batches like this one."""
        ...


@dataclass(frozen=True)
class EngineRow:
    """One engine: its name, what it is good for, and the function that says how members run."""

    name: str
    help: str
    place: str  # module:function, imported when the engine is used


#: The engines by name. A new one is one file and one row.
ENGINES = {
    row.name: row
    for row in (
        EngineRow("auto", "chooses by a rule", "peppermill.engines:auto"),
        EngineRow("loop", "one member after another, with the least memory", "peppermill.engines.loop:loop"),
        EngineRow("vmap", "all members of a small network at once", "peppermill.engines.vmap:vmap"),
        EngineRow("graphs", "CUDA graphs, for small batches on a GPU", "peppermill.engines.graphs:graphs"),
        EngineRow("compile", "the network compiled by torch.compile", "peppermill.engines.compiled:compiled"),
    )
}
OTHER_NAMES = {"joined": "loop"}  # names of version one


def engine_named(engine: str | Engine, precision: str | None = None) -> Engine:
    """A fresh engine of this name, "loop" or "loop:bfloat16"; an engine stands for itself."""
    if not isinstance(engine, str):
        return engine
    engine, _, low = engine.partition(":")
    precision = low or precision
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"`precision={precision!r}` is unknown: choose one of {', '.join(PRECISIONS)}, or leave it out to compute "
            "in the network's own type."
        )
    row = ENGINES.get(OTHER_NAMES.get(engine, engine))
    if row is None:
        raise ValueError(f"`engine={engine!r}` is unknown: choose one of {', '.join(ENGINES)}.")
    if engine == "graphs" and not torch.cuda.is_available():
        raise ValueError(
            '`engine="graphs"` needs a CUDA GPU, and torch finds none here: use `engine="auto"`, which takes graphs '
            "where there is one."
        )
    from peppermill.engines.loop import Runner  # the engines import this file

    return Runner(row.name, precision)


def auto(runner: Any, weights: Any, members: Members, args: Any, kwargs: Any) -> Iterator[Group]:
    """The engine that suits the network, the batch and the device.

    - vmap, if no convolution is perturbed, and the members' weights and the batch are small;
    - graphs, if the same members run again on a GPU, on a small batch;
    - otherwise the loop, with the members' weights kept if they fit.
    """
    from peppermill.engines.vmap import together_of, vmap  # the engines import this file

    device = weights.form.device.type
    items = max((len(value) for value in args if isinstance(value, Tensor) and value.ndim), default=0)
    small = weights.is_small and items <= VMAP_ITEMS.get(device, 0)
    if members.count > 1 and small and together_of(weights):
        return vmap(runner, weights, members, args, kwargs)
    if device == "cuda" and bytes_of((args, kwargs)) <= GRAPH_BYTES:
        from peppermill.engines.graphs import graph_group, suits_graphs

        if suits_graphs(weights, members):
            return iter([graph_group(runner, weights, members)])
    from peppermill.engines.loop import member_groups

    runner.report = "loop"
    return member_groups(runner, weights, members)


def autocast(device: torch.device, precision: str | None) -> AbstractContextManager[Any]:
    """Products in low precision, as autocast chooses them, if a precision is named."""
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[precision], cache_enabled=False)
