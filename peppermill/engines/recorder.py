"""A network as a graph of torch.fx, with everything else that its code read, so that a later change is noticed."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from peppermill.engines.network_shell import MODULE_NAMES, shell_of
from peppermill.plumbing.nested import output_tensor

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONSTANT_TYPES = (*(int, float, str, bool, type(None), torch.Size, type, FunctionType, property, staticmethod),)
#: Libraries whose functions depend on their arguments alone.
PURE = {
    *("torch", "builtins", "math", "operator", "functools", "itertools", "collections", "typing", "types", "abc"),
    *("contextlib", "copy", "enum", "inspect", "dataclasses", "warnings", "logging", "weakref", "re", "peppermill"),
    "_weakrefset",
}
METADATA = ("__get__", "__hash__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "__len__")


class Recorder(fx.Tracer):
    """Records what a network does with a stand-in for its input, and the attributes and globals that its code reads.

    `fx.Tracer.trace` patches `nn.Module` for every thread; this patches the classes of our own shell alone. Code that
    depends on anything but the input, its tensors, and values that can be compared later is refused.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.root, self.graph = shell_of(model), fx.Graph()
        named = (*self.root.named_parameters(), *self.root.named_buffers())
        self.tensor_attrs = {value: path for path, value in named}
        self.own = {module: vars(model.get_submodule(path)) for path, module in self.root.named_modules()}
        self.reads: dict[Any, tuple[Mapping[str, Any], str, Any]] = {}  # where, under which name, and what
        self.codes: dict[Any, dict[str, Any]] = {}  # the functions that ran, with their globals
        self.others = {getattr(function, "__code__", None) for function in gc.callbacks}  # may run at any time
        with ThreadPoolExecutor(1) as own:  # which alone has the trace function and the mode that watch the code
            own.submit(self._record).result()
        for code in self.codes:
            imports = any(step.opname == "IMPORT_NAME" for step in dis.get_instructions(code))
            if imports or {*code.co_freevars} - {"__class__"}:
                raise TypeError(f"`{code.co_name}` reads what an outer function or an import may change")
        self._note_globals()

    def create_arg(self, a: Any) -> Any:
        """A parameter or a buffer by its name: torch goes through all of them to find it."""
        if isinstance(a, Tensor) and a in self.tensor_attrs:
            return self.create_node("get_attr", self.tensor_attrs[a], (), {})
        return super().create_arg(a)

    def _record(self) -> None:
        kinds = {module: type(module) for module in self.own}
        watched = {kind: self._watched(kind) for kind in set(kinds.values())}
        x = self.create_proxy("placeholder", "x", (), {})
        for module, kind in kinds.items():
            object.__setattr__(module, "__class__", watched[kind])
        sys.settrace(self._note_call)
        try:
            with _NoValues():
                outputs = self.root(x)
        finally:
            sys.settrace(None)
            for module, kind in kinds.items():
                object.__setattr__(module, "__class__", kind)
        self.graph.output(self.create_arg(output_tensor(outputs, fx.Proxy)))

    def _note_call(self, frame: Any, event: str, _: Any) -> None:
        if not _is_pure(frame.f_globals.get("__name__")) and frame.f_code not in self.others:
            caller = frame
            while caller and not caller.f_code.co_filename.startswith("<frozen importlib"):
                caller = caller.f_back
            if caller is None:  # an import that torch makes on the way has nothing to do with the network
                self.codes[frame.f_code] = frame.f_globals

    def _note_globals(self) -> None:
        """Note what the code may have read of its files, of the network's classes, and of files and classes therein."""
        names = {name for code in self.codes for name in code.co_names}
        pending: list[Any] = [*self.codes.values(), *(base for module in self.own for base in type(module).__mro__)]
        pending += [value for _, _, value in self.reads.values()]
        seen: set[int] = set()
        while pending:
            holder = pending.pop()
            home = holder.__name__ if isinstance(holder, ModuleType) else getattr(holder, "__module__", None)
            if isinstance(holder, (dict, ModuleType, type)) and id(holder) not in seen and not _is_pure(home):
                seen.add(id(holder))
                pending += [self._note(holder, name) for name in names & _space_of(holder).keys()]

    def _note(self, holder: Any, name: str) -> Any:
        """Note what a class, a file or a module's own dict holds under this name: code, or what no one can change."""
        space = _space_of(holder)
        self.reads[id(holder), name] = space, name, (value := space.get(name))
        if not _is_constant(value) and not isinstance(value, ModuleType):
            raise TypeError(f"it reads `{name}`, a {type(value).__name__} that may change")
        return value

    def _watched(self, kind: type) -> type:
        recorder = self

        class Watched(kind):  # type: ignore[misc]
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                if kind not in NORMS:
                    return super().__call__(*args, **kwargs)
                if self.running_mean is None:
                    raise TypeError("a batch norm without running statistics depends on the whole batch")
                arrays = self.running_mean, self.running_var, self.weight, self.bias
                return F.batch_norm(args[0], *arrays, eps=self.eps)

            def __getattribute__(self, name: str) -> Any:
                value = super().__getattribute__(name)
                if name in MODULE_NAMES or name.startswith("__"):
                    return value
                if name in super().__getattribute__("__dict__"):
                    recorder._note(recorder.own[self], name)
                    return value
                for base in kind.__mro__:  # of the class that has it, and of those that may get one before it
                    recorder._note(base, name)
                    if name in vars(base):
                        break
                return value

            def __setattr__(self, name: str, value: Any) -> None:
                raise TypeError(f"it writes to `{name}`")

        return Watched


class _NoValues(TorchFunctionMode):
    """Refuses what computes with the network's own tensors alone, so that no weight becomes a number of Python."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with_input = any(issubclass(kind, fx.Proxy) for kind in types)
        if not with_input and function.__name__ not in METADATA and any(isinstance(value, Tensor) for value in args):
            raise TypeError(f"it computes with its weights alone (`{function.__name__}`)")
        return function(*args, **(kwargs or {}))


def _space_of(holder: Any) -> Mapping[str, Any]:
    return holder if isinstance(holder, dict) else vars(holder)


def _is_constant(value: Any) -> bool:
    """Whether a value is code or never changes, so that it can be compared later."""
    if isinstance(value, BuiltinFunctionType):
        return _is_pure(value.__module__ or type(value.__self__).__module__)
    if type(value) is tuple:
        return all(map(_is_constant, value))
    harmless = type(value).__module__.partition(".")[0] in ("torch", "typing", "logging")
    return (harmless and not isinstance(value, (Tensor, nn.Module))) or isinstance(value, CONSTANT_TYPES)


@cache  # it is asked about every call of the trace
def _is_pure(module: str | None) -> bool:
    return (module or "").partition(".")[0] in PURE
