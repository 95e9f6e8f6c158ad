"""With which weights: those of every member, kept while they fit in memory and as long as the network is the same.

Drawing the noise of m members costs more than running a small network m times. A search over sigma keeps the
directions epsilon_j, predictions at one sigma keep the members' weights. Both belong to one state of the network and
are dropped when a tensor of the network is written to or replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn

from peppermill.engines import Members
from peppermill.engines.inference_form import forms_of
from peppermill.plumbing.networks import refuse_training_mode
from peppermill.types import Params

CPU_BYTES = 2**30  # of kept weights or directions, on a CPU
SMALL_BYTES = 2**27  # of all members' weights: below this even `engine="loop"` keeps them
GPU_SHARE = 0.25  # of the memory that is free when the network is first seen, for the same, on a GPU


class MemberWeights:
    """The network's forms and its members' weights, for one state of the network; safe to use from several threads."""

    def __init__(self, members: Members, precision: str | None, args: Any, kwargs: Any, is_sparing: bool) -> None:
        refuse_training_mode(members.model)
        self.members, self.state = members, NetworkState(members.model)
        self.autocast = _autocast()
        self.perturbation = members.perturbation()
        self.is_dense = all(value.ndim < 3 for value in self.perturbation.center.values())  # no convolution
        self.plain, self.form = forms_of(members.model, members.selected, precision, args, kwargs)
        self.prepared: dict[Any, Any] = {}  # see `once`
        self.lock = threading.RLock()
        self._directions: dict[int, Params] = {}
        self._members: tuple[float, dict[int, Any]] = (0.0, {})
        self._bytes, device = sum(value.numel() * 4 for value in self.perturbation.center.values()), self.form.device
        self._most_bytes = float(CPU_BYTES)
        if device.type == "cuda":
            reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            self._most_bytes = GPU_SHARE * (torch.cuda.mem_get_info(device)[0] + reserved)
        if is_sparing and not self.is_small:
            self._most_bytes = 0.0  # one member is alive at a time

    def is_current(self, members: Members) -> bool:
        """Whether these are the members' weights: the same network in the same state, with the same noise."""
        mine = self.members
        return (
            mine.model is members.model
            and self.autocast == _autocast()
            and (mine.noise, mine.size, mine.selected) == (members.noise, members.size, members.selected)
            and self.state.holds()
            and self.form.is_current()
        )

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What an engine makes of these weights, by a key of its own."""
        with self.lock:
            if key not in self.prepared:
                self.prepared[key] = make()
            return self.prepared[key]

    def member(self, members: Members, member: int) -> Any:
        """theta_j as weights of the network's form."""
        if not members.keep or not self.fits(self.perturbation.size):
            return self.form.fold(self.made(members, member))
        with self.lock:
            if self._members[0] != members.sigma:
                self._members = (members.sigma, {})
            kept = self._members[1]
            if member not in kept:
                kept[member] = self.form.fold(self.made(members, member))
            return kept[member]

    @property
    def is_small(self) -> bool:
        """Whether all members together are so small that even the loop keeps them."""
        return self.perturbation.size * self._bytes <= SMALL_BYTES

    def fits(self, copies: int) -> bool:
        """Whether this many copies of the selected weights may be kept."""
        return copies * self._bytes <= self._most_bytes

    def made(self, members: Members, member: int) -> Params:
        """theta_j; the second member of an antithetic pair has the first one's direction, with the other sign."""
        noise, sigma = self.perturbation.noise, members.sigma
        antithetic = noise.antithetic and not noise.draws
        first, signed = (member - member % 2, -sigma if member % 2 else sigma) if antithetic else (member, sigma)
        with self.lock:
            direction = self._directions.pop(first, None)
            until_twin = antithetic and member == first and self._most_bytes > 0
            if until_twin or (not members.keep and self.fits(self.perturbation.size // (1 + antithetic))):
                direction = self._directions[first] = direction or self.perturbation.direction(first)
        return self.perturbation.member(signed, first, direction)


def _autocast() -> list[torch.dtype]:
    """The types of the caller's own autocast, if it is on."""
    return [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]


class NetworkState:
    """The modules and tensors of a network at one moment."""

    def __init__(self, model: nn.Module) -> None:
        owned = [(m._parameters, m._buffers, m._modules) for m in model.modules()]
        self.modules = list(model.modules())
        self.dicts = [(live, list(live.values())) for dicts in owned for live in dicts if live]
        self.tensors = [*model.parameters(), *model.buffers()]
        self.counted = [value for value in self.tensors if not value.is_inference()]
        self.marks = self._marks()

    def holds(self) -> bool:
        """Whether no module or tensor was replaced, and no tensor was written to."""
        same = all(len(live) == len(then) and all(map(is_, live.values(), then)) for live, then in self.dicts)
        return same and self.marks == self._marks() and not any(module.training for module in self.modules)

    def _marks(self) -> list[int]:
        return [*[value.data_ptr() for value in self.tensors], *[value._version for value in self.counted]]
