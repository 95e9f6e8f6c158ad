"""The user's network, called with other weights: never changed, and from any number of threads at once.

`torch.func.functional_call` puts the weights into the network's own modules for the time of a call, where another
thread would meet them. So a call is made on a shell: new module objects that share every tensor with the network. A
network that holds what a shell cannot share safely (a hook, a list of modules, an object of a kind of its own) is
called itself, by one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from peppermill.foreign import functional_call
from peppermill.old_engines.members import PRECISIONS
from peppermill.plumbing.devices import device_of
from peppermill.types import Params

#: The network with some weights replaced: (params, args, kwargs) -> whatever the network returns.
Call = Callable[[Params, Any, Any], Any]

_TENSORS = ("_parameters", "_buffers", "_modules")
_PLAIN = {
    *(type(None), bool, int, float, complex, str, bytes, type, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
}
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


class Shell:
    """New module objects with the network's own tensors; modules of some types become those of another."""

    def __init__(self, model: nn.Module, types: Mapping[type, type] | None = None) -> None:
        self.copies: dict[int, nn.Module] = {}
        self.model = self._copied(model, types or {})
        self.owners: dict[str, list[tuple[nn.Module, str]]] = {}
        self.own: Params = dict(model.named_parameters())
        names = {id(value): name for name, value in self.own.items()}
        for copy in self.copies.values():
            for key, value in copy._parameters.items():
                if value is not None:
                    self.owners.setdefault(names[id(value)], []).append((copy, key))

    def __call__(self, params: Params, args: Any, kwargs: Any) -> Any:
        try:
            self._place(params)
            return self.model(*args, **kwargs)
        finally:
            self._place(self.own)  # or the last member would be alive while the next one is made

    def _place(self, params: Params) -> None:
        for name, value in params.items():
            for owner, key in self.owners[name]:
                owner._parameters[key] = value  # type: ignore[assignment]

    def _copied(self, module: nn.Module, types: Mapping[type, type]) -> nn.Module:
        if id(module) not in self.copies:
            copy: nn.Module = object.__new__(types.get(type(module), type(module)))
            copy.__dict__.update(module.__dict__)
            for name in _TENSORS:
                copy.__dict__[name] = dict(module.__dict__[name])
            self.copies[id(module)] = copy
            for name, child in module._modules.items():
                if child is not None:
                    copy._modules[name] = self._copied(child, types)
        return self.copies[id(module)]


def borrow(model: nn.Module, precision: str | None, in_shell: bool) -> Call:
    """The network, to be called with other weights, in a shell or itself, and in low precision where one is named."""
    return lowered(Shell(model) if in_shell else _one_at_a_time(model), device_of(model), precision)


def has_shell(model: nn.Module) -> bool:
    """Whether every module holds nothing but numbers, words, functions, tensors and modules where torch keeps them."""
    return all(
        name in _TENSORS or (name != "forward" and _is_plain(value))
        for module in model.modules()
        for name, value in module.__dict__.items()
    )


def exclusive(model: nn.Module) -> AbstractContextManager[Any]:
    """While nobody calls this network with other weights in its own modules: its weights are its own."""
    lock = _LOCKS.get(model)
    if lock is None:
        with _LOCKS_LOCK:
            lock = _LOCKS.setdefault(model, threading.RLock())
    return lock


def _one_at_a_time(model: nn.Module) -> Call:
    def call(params: Params, args: Any, kwargs: Any) -> Any:
        with exclusive(model):
            return functional_call(model, params, args, kwargs)

    return call


def lowered(call: Call, device: torch.device, precision: str | None) -> Call:
    """The same call with products in low precision, as autocast chooses them; itself where no precision is named."""
    if precision is None:
        return call

    def in_low_precision(params: Params, args: Any, kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=PRECISIONS[precision], cache_enabled=False):
            return call(params, args, kwargs)

    return in_low_precision


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(part) for key, part in value.items())
    return isinstance(value, (tuple, list, set, frozenset)) and all(map(_is_plain, value))
