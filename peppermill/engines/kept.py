"""What is worth keeping between two calls: directions, members' weights, and what an engine prepared from them.

Drawing noise for m members costs more than running a small network on a small batch m times. Everything kept belongs
to one state of the network, and is dropped as soon as the network or the perturbation is another: every tensor of the
network is watched by its address and its version, every module by what its attributes are.
"""

from __future__ import annotations

import threading
from itertools import count
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.engines.borrowed import exclusive, has_shell
from peppermill.engines.members import Members
from peppermill.foreign import in_training_mode, out_of_training_mode
from peppermill.types import Params

KEPT_BYTES = 2**28  # of weights or of directions, on a CPU
KEPT_SHARE = 0.25  # of the free memory, on a GPU
_NEVER = count(start=-1, step=-1)


class Kept:
    """The store of one network's members in one state of the network; a new one when the state is another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None

    def store(self, members: Members) -> Store:
        """The store of this network as it is now; in one call the network is looked at once."""
        if id(self) not in members.looked_up:
            members.looked_up[id(self)] = self._current(members)
        store: Store = members.looked_up[id(self)]
        return store

    def _current(self, members: Members) -> Store:
        with self._lock, exclusive(members.model):
            store = self._store
            if store is None or store.key != members.key or not store.state.holds(members.model):
                refuse_training_mode(members.model)
                self._store = store = Store(members)
            return store


class State:
    """Everything on which a network's outputs depend, so that a change is noticed without reading a weight."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.watched = [(module.__dict__, _parts(module.__dict__)) for module in model.modules()]
        self.tensors = [part for _, parts in self.watched for part in parts if isinstance(part, Tensor)]
        self.numbers = self._numbers()

    def holds(self, model: nn.Module) -> bool:
        """Whether the network is still in this state."""
        same = model is self.model and all(_same(_parts(own), parts) for own, parts in self.watched)
        return same and self._numbers() == self.numbers

    def _numbers(self) -> list[int]:
        return [_version(value) for value in self.tensors] + [value.data_ptr() for value in self.tensors]


class Store:
    """Directions and weights of the members around one theta*; and, by key, what an engine prepared."""

    def __init__(self, members: Members) -> None:
        self.perturbation, self.key, self.state = members.perturbation, members.key, State(members.model)
        self.has_shell = has_shell(members.model)
        self.prepared: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self._directions: dict[int, Params] = {}
        self._stacked: tuple[float, Params] | None = None
        self._parts: dict[tuple[int, int], Stack] = {}
        self._bytes: float | None = None

    def member(self, sigma: float, member: int, keep: bool) -> Params:
        """theta_j, from what is kept where it fits."""
        stacked = self._kept_stack(sigma, keep)
        if stacked is not None:
            return {name: value[member] for name, value in stacked.items()}
        return self._made(sigma, member)

    def some(self, sigma: float, first: int, last: int, keep: bool) -> Stack:
        """theta_first to theta_last, the last not included."""
        with self._lock:
            stacked = self._kept_stack(sigma, keep)
            if stacked is None:
                return self._part(self._stack(sigma, first, last), first)
            if (first, last) not in self._parts:
                part = {name: value[first:last] for name, value in stacked.items()}
                self._parts[first, last] = self._part(part, first)
            return self._parts[first, last]

    def most(self) -> int:
        """How many members' weights may be alive at once."""
        return int(self._room() // sum(value.nbytes for value in self.perturbation.center.values()))

    def _part(self, params: Params, first: int) -> Stack:
        return Stack(params, self.perturbation.center, self.perturbation.noise.antithetic and first % 2 == 0)

    def _kept_stack(self, sigma: float, keep: bool) -> Params | None:
        """All members' weights at this sigma, [m, ...], if they are kept or are to be kept and fit."""
        with self._lock:
            kept = self._stacked[0] if self._stacked else None
            if kept != sigma and keep and self.perturbation.size <= self.most():
                self._stacked = None  # the old ones go before the new ones come
                self._parts.clear()
                self._stacked = sigma, self._stack(sigma, 0, self.perturbation.size)
                self._directions.clear()
            return self._stacked[1] if self._stacked and self._stacked[0] == sigma else None

    @torch.no_grad()
    def _stack(self, sigma: float, first: int, last: int) -> Params:
        with torch.inference_mode(False):  # kept tensors may later be differentiated through
            center = self.perturbation.center
            stacked = {name: value.new_empty(last - first, *value.shape) for name, value in center.items()}
            for row, member in enumerate(range(first, last)):
                for name, value in self._made(sigma, member).items():
                    stacked[name][row] = value
        return stacked

    @torch.no_grad()
    def _made(self, sigma: float, member: int) -> Params:
        """theta_j from a direction that is kept: the second of an antithetic pair is the first with another sign."""
        with torch.inference_mode(False):
            antithetic = self.perturbation.noise.antithetic
            streams = -(-self.perturbation.size // 2) if antithetic else self.perturbation.size
            if sigma == 0 or streams > self.most():
                return self.perturbation.member(sigma, member)
            stream, sign = (member - member % 2, (-1.0) ** member) if antithetic else (member, 1.0)
            with self._lock:
                if stream not in self._directions:
                    self._directions[stream] = self.perturbation.direction(stream)
            return self.perturbation.member(sign * sigma, member, self._directions[stream])

    def _room(self) -> float:
        if self._bytes is None:
            self._bytes = room_on(next(iter(self.perturbation.center.values())).device)
        return self._bytes


class Stack:
    """The weights of some members, each array [group, ...]."""

    def __init__(self, params: Params, center: Params, paired: bool) -> None:
        self.params, self.center, self.paired = params, center, paired
        self._steps: Params = {}

    @torch.no_grad()
    def steps(self, name: str) -> Tensor:
        """theta_j - theta* of the first of each antithetic pair, [pairs, ...]."""
        if name not in self._steps:
            with torch.inference_mode(False):
                self._steps[name] = self.params[name][::2] - self.center[name]
        return self._steps[name]


def refuse_training_mode(model: Any) -> None:
    """Dropout and batch statistics would add noise of their own, and batch norm would change the network."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if in_training_mode(module):
            where = f"its part `{name}` ({type(module).__name__}) is" if name else "it is"
            cure = out_of_training_mode(module)
            raise ValueError(f"the network cannot be used while {where} in training mode: {cure}.")


def tensors_of(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments of a call, in an order of their own."""
    return [part for part in (*args, *(kwargs[key] for key in sorted(kwargs))) if isinstance(part, Tensor)]


def signature(args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """What the inputs of a call are, their values apart; nothing where that cannot be said."""
    parts = [*args, *sorted(kwargs), *(kwargs[key] for key in sorted(kwargs))]
    described = [_described(part) for part in parts]
    devices = {part.device.type for part in parts if isinstance(part, Tensor)}
    casts = tuple((one, torch.get_autocast_dtype(one)) for one in devices if torch.is_autocast_enabled(one))
    return None if None in described else (len(args), casts, *described)


def _parts(own: dict[str, Any]) -> list[Any]:
    """What a module holds: attributes, modules, tensors, and how many hooks."""
    held = (own["_modules"], own["_parameters"], own["_buffers"])
    hooks = len(own["_forward_hooks"]), len(own["_forward_pre_hooks"])
    return [*own.values(), *hooks, *(part for parts in held for part in parts.values())]


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _described(part: Any) -> Any:
    if isinstance(part, Tensor):
        return tuple(part.shape), part.stride(), part.dtype, part.device
    return (type(part), part) if isinstance(part, (bool, int, float, str, type(None))) else None


def _version(value: Tensor) -> int:
    """How often a tensor was written; one made in inference mode does not count it, and never passes for unchanged."""
    return next(_NEVER) if value.is_inference() else value._version


def room_on(device: torch.device) -> float:
    """Bytes that may be held on a device."""
    return KEPT_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else KEPT_BYTES
