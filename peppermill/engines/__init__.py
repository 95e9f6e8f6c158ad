"""How members run: the contract of the engines, and the table of them.

Three questions, three places. What is called? `inference_form.py`. With which weights? `member_weights.py`. How? One
file for each engine.
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
from peppermill.views import IDENTITY, View

#: The low precisions in which a network may compute; noise, sums and averages stay in float32 and float64.
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}

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
        EngineRow("auto", "chooses by a rule", "peppermill.engines.auto:auto"),
        EngineRow("loop", "one member after another, with the least memory", "peppermill.engines.loop:loop"),
        EngineRow("vmap", "all members of a small network at once", "peppermill.engines.vmap:vmap"),
        EngineRow("graphs", "CUDA graphs, for small batches on a GPU", "peppermill.engines.graphs:graphs"),
        EngineRow("compile", "the network compiled by torch.compile", "peppermill.engines.compiled:compiled"),
    )
}
OTHER_NAMES = {"joined": "loop"}  # names of version one


def engine_named(engine: str | Engine, precision: str | None = None) -> Engine:
    """A fresh engine of this name that runs networks in this precision; an engine stands for itself."""
    if not isinstance(engine, str):
        return engine
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


def autocast(device: torch.device, precision: str | None) -> AbstractContextManager[Any]:
    """Products in low precision, as autocast chooses them, if a precision is named."""
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[precision], cache_enabled=False)
