"""How members run: the table of the engines, and what an engine keeps between calls.

Three questions, three places. What is called? `inference_form.py`. With which weights? `member_weights.py`. How? One
file for each engine; a rule, not a stopwatch, chooses among them, so that the same call gives the same bits every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from peppermill.noise import Noise
from peppermill.perturbation import Perturbation
from peppermill.plumbing.nested import tensors_of
from peppermill.views import IDENTITY, View

if TYPE_CHECKING:
    from peppermill.engines.member_weights import MemberWeights

#: The low precisions in which a network may compute; noise, sums and averages stay in float32 and float64.
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}

GRAPH_BYTES = 2**23  # of inputs: larger batches fill a GPU without graphs
VMAP_ITEMS = {"cpu": 512, "cuda": 4096}  # items of a batch: beyond this, members together only move more memory

#: Some members, ready to run: (args, kwargs) of one batch -> their outputs, [group, ...].
Group = Callable[[tuple[Any, ...], dict[str, Any]], Tensor]

#: What an engine does with a batch: its report, and the outputs of all members, [m, ...], as a function of the input;
#: None if the members run one after another.
Plan = tuple[str, Callable[[Tensor], Tensor] | None]


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


@dataclass(frozen=True)
class LazyRow:
    """A row of a registry: its name, a line of help, and the place, module:name, of what is imported on use."""

    name: str
    help: str
    place: str

    def load(self) -> Any:
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)


#: The engines by name, each a function that says how members run. A new one is one file and one row.
ENGINES = {
    row.name: row
    for row in (
        LazyRow("auto", "chooses by a rule", "peppermill.engines:auto"),
        LazyRow("loop", "one member after another, with the least memory", "peppermill.engines.loop:loop"),
        LazyRow("vmap", "all members of a small network at once", "peppermill.engines.vmap:vmap"),
        LazyRow("graphs", "CUDA graphs, for small batches on a GPU", "peppermill.engines.graphs:graphs"),
        LazyRow("compile", "the network compiled by torch.compile", "peppermill.engines.compiled:compiled"),
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
    return Engine(row.name, precision)


class Engine:
    """What runs m members: the function of `ENGINES` that says how, and what is kept between calls.

    All engines give the same numbers, up to the rounding of the last bits.
    """

    def __init__(self, name: str, precision: str | None = None) -> None:
        self.name, self.precision = name, precision
        self.report = name  # which engine ran last, and why if it was not the one that was asked for
        self.how: Callable[[MemberWeights, Members, Tensor], Plan] = ENGINES[name].load()
        self.latest: MemberWeights | None = None  # replaced when network or noise is another
        self.lock = threading.Lock()
        self.run: Callable[..., Tensor] = lambda call, args, kwargs: call(args, kwargs)
        if torch.cuda.is_available():
            from peppermill.engines.out_of_memory import Room  # a CPU does without it

            self.run = Room().run
        self.of_view: dict[int, Engine] = {}  # an engine for each view, so that none drops what another keeps

    def __reduce__(self) -> Any:
        return Engine, (self.name, self.precision)  # a copy starts with an empty cache

    def groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        """All members, view by view and in order, in groups of one or more, for batches like this one."""
        if members.views:
            return self._groups_by_view(members, args, kwargs)
        tensors = (*tensors_of((args, kwargs)), *members.model.parameters()) if torch.is_grad_enabled() else ()
        if any(value.requires_grad for value in tensors):
            from peppermill.engines.loop import differentiable_groups  # the engines import this file

            self.report = "loop, because gradients may be wanted (use `torch.no_grad()`)"
            return differentiable_groups(members, self.precision)
        if torch.cuda.is_available():
            from peppermill.engines.graphs import known_graph_group

            if known := known_graph_group(self, members, args, kwargs):
                return iter([known])
        return self.planned_groups(members, args, kwargs)

    def planned_groups(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        """All members as one group if the engine has a plan for this batch, groups of one member otherwise."""
        from peppermill.engines.loop import loop, member_groups
        from peppermill.engines.member_weights import MemberWeights

        with self.lock:
            if self.latest is None or not (self.latest.form.takes(args, kwargs) and self.latest.is_current(members)):
                self.latest = None  # frees the old weights before new ones are made
                self.latest = MemberWeights(members, self.precision, args, kwargs, is_sparing=self.how is loop)
            weights = self.latest

        def plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Tensor], Tensor] | None:
            if weights.form is not weights.plain and weights.form.takes(args, kwargs):
                self.report, found = self.how(weights, members, args[0])
                return found
            reason = weights.plain.reason or "these inputs do not suit the traced network"
            self.report = "loop" if self.name in ("auto", "loop") else f"loop, because {reason}"
            return None

        def together(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            if found := plan(args, kwargs):
                return found(args[0])
            return torch.cat([group(args, kwargs) for group in member_groups(self.run, weights, members)])

        return iter([together]) if plan(args, kwargs) else member_groups(self.run, weights, members)

    def _groups_by_view(self, members: Members, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Group]:
        for k, (view, part) in enumerate(members.parts()):
            engine = self.of_view.setdefault(k, Engine(self.name, self.precision))
            for group in engine.groups(part, *view.seen(args, kwargs)):
                yield partial(view.outputs, group)
                del group
            self.report = engine.report


def auto(weights: MemberWeights, members: Members, x: Tensor) -> Plan:
    """The engine that suits the network, the batch and the device.

    - vmap, if no convolution is perturbed, and the members' weights and the batch are small;
    - graphs, if the same members run again on a GPU, on a small batch;
    - otherwise the loop, with the members' weights kept if they fit.
    """
    if weights.is_dense and weights.is_small and x.ndim and len(x) <= VMAP_ITEMS.get(x.device.type, 0):
        from peppermill.engines.vmap import vmap  # the engines import this file

        if (plan := vmap(weights, members, x))[1]:
            return plan
    if x.is_cuda and x.nbytes <= GRAPH_BYTES:
        from peppermill.engines.graphs import graphs, suits_graphs

        if suits_graphs(weights, members):
            return graphs(weights, members, x)
    return "loop", None


def autocast(device: torch.device, precision: str | None) -> AbstractContextManager[Any]:
    """Products in low precision, as autocast chooses them, if a precision is named."""
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[precision], cache_enabled=False)
