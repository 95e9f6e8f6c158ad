"""What is worth keeping between two calls: directions, members' weights, and what an engine prepared from them.

Drawing noise for m members costs more than running a small network on a small batch m times. Everything kept belongs
to one state of the network, and is dropped as soon as the network or the perturbation is another: every tensor of the
network is watched by its address and its version, every module by what its attributes are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peppermill.old_engines.borrowed import exclusive, has_shell
from peppermill.old_engines.lent import Lent
from peppermill.old_engines.members import Members, key_of
from peppermill.old_engines.prepared import Plan
from peppermill.old_engines.state import State
from peppermill.plumbing.modes import refuse_training_mode as refuse_training_mode
from peppermill.types import Params

KEPT_BYTES = 2**28  # of weights or of directions, on a CPU
KEPT_SHARE = 0.25  # of the free memory, on a GPU
MOST_READY = 2  # plans, one for each kind of inputs, whose own arrangement of the weights is kept


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
        store = self._store
        lock = (
            store.state.lock if store is not None and store.state.model is members.model else exclusive(members.model)
        )
        with self._lock, lock:
            if store is None or not store.state.holds(members.model) or not store.has(members):
                refuse_training_mode(members.model)
                self._store = store = Store(members)
            return store


class Store:
    """Directions and weights of the members around one theta*; and, by key, what an engine prepared."""

    def __init__(self, members: Members) -> None:
        self.perturbation, self.keys, self.state = members.perturbation, [members.key], State(members.model)
        self.has_shell, self.on_cpu = has_shell(members.model), members.device.type == "cpu"
        self.prepared: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self._directions: dict[int, tuple[Params, Lent]] = {}
        self._stacked: tuple[float, Params, Lent] | None = None
        self._parts: dict[tuple[int, int], Stack] = {}
        self._views: dict[int, Params] = {}
        self.shells: dict[str | None, list[Any]] = {}  # by precision, ways to call the network that nobody uses now
        self._most: int | None = None

    def has(self, members: Members) -> bool:
        """Whether these are the store's members: a key that it knows, or else the same noise around the same arrays."""
        if members.key in self.keys:
            return True
        same = key_of(members.perturbation) == key_of(self.perturbation)
        self.keys += [members.key] if same else []
        return same

    def member(self, sigma: float, member: int, keep: bool) -> Params:
        """theta_j, from what is kept where it fits."""
        with self._lock:  # or another thread's sigma would come between the stack and its views
            stacked = self._kept_stack(sigma, keep)
            if stacked is not None:
                if member not in self._views:
                    self._views[member] = {name: value[member] for name, value in stacked.items()}
                return self._views[member]
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

    def all_together(self, sigma: float, kind: Any) -> Callable[..., Tensor] | None:
        """From inputs of this kind to the outputs of all members at once, where they are kept and have run so before.

        On a CPU: on a GPU memory may run out, and then fewer members at a time are the cure.
        """
        with self._lock:
            kept = self.on_cpu and self._stacked is not None and self._stacked[0] == sigma
            stack = self._parts.get((0, self.perturbation.size)) if kept else None
            return stack.ready.get(kind) if stack else None

    def most(self) -> int:
        """How many members' weights may be alive at once."""
        if self._most is None:
            center = self.perturbation.center.values()
            self._most = int(room_on(next(iter(center)).device) // sum(value.nbytes for value in center))
        return self._most

    def _part(self, params: Params, first: int) -> Stack:
        return Stack(params, self.perturbation.noise.antithetic and first % 2 == 0)

    def _kept_stack(self, sigma: float, keep: bool) -> Params | None:
        """All members' weights at this sigma, [m, ...], if they are kept or are to be kept and fit."""
        with self._lock:
            kept = self._stacked[0] if self._stacked else None
            if kept != sigma and keep and self.perturbation.size <= self.most():
                self._stacked = None  # the old ones go before the new ones come
                self._parts.clear()
                self._views = {}
                stacked = self._stack(sigma, 0, self.perturbation.size)
                self._stacked = sigma, stacked, Lent(stacked.values())
                self._directions.clear()
            if self._stacked is None or self._stacked[0] != sigma:
                return None
            _, stacked, lent = self._stacked
            lent.read()
            return stacked

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
                    direction = self.perturbation.direction(stream)
                    self._directions[stream] = direction, Lent(direction.values())
                direction, lent = self._directions[stream]  # another thread may clear them
                lent.read()
            return self.perturbation.member(sign * sigma, member, direction)


class Stack:
    """The weights of some members, each array [group, ...], and what was computed from them alone."""

    def __init__(self, params: Params, paired: bool) -> None:
        self.params, self.paired = params, paired
        self.ready: dict[Any, Callable[..., Tensor]] = {}  # by kind of inputs, from inputs to outputs

    @torch.no_grad()
    def prepared(self, kind: Any, plan: Plan) -> Callable[..., Tensor]:
        """A plan with what it needs of these weights; of several plans, those of the last few are kept."""
        found = self.ready.get(kind)
        if found is None:
            with torch.inference_mode(False):
                kept = plan.prepare(*self.params.values())
            found = Lent([*kept, *plan.fixed]).first(partial(plan.run, *kept))
            while len(self.ready) >= MOST_READY:
                self.ready.pop(next(iter(self.ready)), None)
            self.ready[kind] = found
        return found


def tensors_of(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments of a call, in an order of their own."""
    return [part for part in (*args, *(kwargs[key] for key in sorted(kwargs))) if isinstance(part, Tensor)]


def signature(args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """What the inputs of a call are, their values apart; nothing where that cannot be said."""
    parts = (*args, *sorted(kwargs), *(kwargs[key] for key in sorted(kwargs))) if kwargs else args
    described = tuple(map(_described, parts))
    return None if None in described else (len(args), _casts(), described)


def _casts() -> tuple[Any, ...]:
    """The kinds of autocast that the caller has switched on."""
    if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
        return ()
    return tuple((one, torch.get_autocast_dtype(one)) for one in ("cpu", "cuda") if torch.is_autocast_enabled(one))


def _described(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.shape, part.stride(), part.dtype, part.device
    return (type(part), part) if isinstance(part, (bool, int, float, str, type(None))) else None


def room_on(device: torch.device) -> float:
    """Bytes that may be held on a device; on a GPU, memory that torch took and does not use now is free."""
    if device.type != "cuda":
        return KEPT_BYTES
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return KEPT_SHARE * (torch.cuda.mem_get_info(device)[0] + unused)
