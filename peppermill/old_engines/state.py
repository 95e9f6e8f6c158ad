"""Whether a network is what it was: every tensor is watched by its address and its version, every module by what its
attributes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any

from torch import Tensor, nn

from peppermill.old_engines.borrowed import exclusive

_HELD = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_IDLE = nn.Module().__dict__.keys() - {"training", *_HELD, *_HOOKS}  # what a pass without gradients does not use
_VERSION = attrgetter("_version")


class State:
    """Everything on which a network's outputs depend, so that a change is noticed without reading a weight."""

    def __init__(self, model: nn.Module) -> None:
        self.owns = [module.__dict__ for module in model.modules()]
        self.lock = exclusive(model)
        self.model, self.held = model, [own[name] for own in self.owns for name in _HELD]
        self.used = [itemgetter(*(name for name in own if name not in _IDLE)) for own in self.owns]
        hooks = [own[name] for own in self.owns for name in _HOOKS]
        self.sized, self.hooked = [*self.owns, *self.held, *hooks], any(hooks)
        self.parts = list(self._parts())
        self.tensors = [part for part in self.parts if isinstance(part, Tensor)]
        self.counted = not any(value.is_inference() for value in self.tensors)  # whether torch counts who writes
        self.numbers = self._numbers() if self.counted else ()

    def holds(self, model: nn.Module) -> bool:
        """Whether the network is still in this state; without a line of Python for each of its parts."""
        return model is self.model and self.counted and self._numbers() == self.numbers and self._same_parts()

    def _same_parts(self) -> bool:
        try:
            return all(map(is_, self._parts(), self.parts))
        except KeyError:  # an attribute is gone, and another has come
            return False

    def _parts(self) -> Iterator[Any]:
        return chain.from_iterable(chain(map(call, self.used, self.owns), map(dict.values, self.held)))

    def _numbers(self) -> tuple[list[int], ...]:
        addresses, versions = map(Tensor.data_ptr, self.tensors), map(_VERSION, self.tensors)
        return list(map(len, self.sized)), list(addresses), list(versions)
