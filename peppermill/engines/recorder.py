"""How a network becomes a graph of torch.fx: recorded once, norms folded in, its weights as arguments.

Everything else that its code read is noted, so that a later change is noticed.
"""

from __future__ import annotations

import dis
import gc
import operator
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from peppermill.engines.network_shell import MODULE_NAMES, shell_of
from peppermill.engines.traced_form import Argument, Norm, convolution_relu
from peppermill.plumbing.nested import output_tensor

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONSTANT_TYPES = (*(int, float, str, bool, type(None), torch.Size, type, FunctionType, property, staticmethod),)
#: Libraries whose functions depend on their arguments alone.
PURE = {
    *("torch", "builtins", "math", "operator", "functools", "itertools", "collections", "typing", "types", "abc"),
    *("contextlib", "copy", "enum", "inspect", "dataclasses", "warnings", "logging", "weakref", "re", "peppermill"),
    "_weakrefset",
}
PRODUCTS: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d, F.linear)
RELUS: tuple[Any, ...] = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
CHECKS: tuple[Any, ...] = (torch._assert, getattr, operator.eq, operator.ne, operator.le, operator.ge)
METADATA = ("__get__", "__hash__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "__len__")

#: A node of a graph; torch types what a node holds as a union of twenty types.
Node: TypeAlias = Any


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


def with_arguments(graph: fx.Graph) -> list[tuple[Argument, list[Node]]]:
    """Make arguments of the weights in the graph, with the norms folded in."""
    for node in reversed(list(graph.nodes)):  # checks of shapes, and what was computed for them alone
        if node.target in CHECKS and not node.users:
            graph.erase_node(node)
    named = {node: str(node.target) for node in graph.nodes if node.op == "get_attr"}
    layers = {
        node: Argument((named[node.args[1]], named[node.args[2]] if node.args[2] else None))
        for node in graph.nodes
        if node.target in PRODUCTS and len(node.args) >= 3 and node.args[1] in named and not node.kwargs
    }
    for node in [node for node in graph.nodes if node.target is F.batch_norm]:
        _fold_norm(graph, node, named, layers)
    arguments: list[tuple[Argument, list[Node]]] = []
    with graph.inserting_before(next(iter(graph.nodes))):
        for node, layer in layers.items():
            own = [graph.placeholder(f"{node.name}_weight"), graph.placeholder(f"{node.name}_bias")]
            node.args = (node.args[0], *own, *node.args[3:])
            arguments.append((layer, own))
        for node, name in named.items():
            if node.users:
                own = [graph.placeholder(f"{node.name}_value")]
                node.replace_all_uses_with(own[0])
                arguments.append((Argument((name,)), own))
            graph.erase_node(node)
    return arguments


def _fold_norm(graph: fx.Graph, node: Node, named: dict[Node, str], layers: dict[Node, Argument]) -> None:
    """Fold a norm into the layer that feeds it, or into the only layer that it feeds."""
    x, mean, variance = node.args  # as `F.batch_norm` hands them on
    arrays = (mean, variance, node.kwargs["weight"], node.kwargs["bias"])
    if node.kwargs["training"] or any(array and array not in named for array in arrays):
        return
    norm = Norm(tuple(named[array] if array else None for array in arrays), node.kwargs["eps"])
    following = next(iter(node.users))
    if x in layers and len(x.users) == 1 and not layers[x].after:
        layers[x] = replace(layers[x], after=norm)
    elif following in layers and len(node.users) == 1 and following.args[0] is node and _sees_no_border(following):
        layers[following] = replace(layers[following], before=norm)
    else:
        return
    node.replace_all_uses_with(x)
    graph.erase_node(node)


def _sees_no_border(node: Node) -> bool:
    """Whether a layer adds no zeros around its input and mixes all channels: only then a shift can pass through it."""
    if node.target is F.linear:
        return True
    _, _, _, _, padding, _, groups = node.args
    return groups == 1 and padding in (0, (0,), (0, 0), (0, 0, 0))


def fuse_relu(graph: fx.Graph) -> None:
    """Let cuDNN add the bias, another tensor and the ReLU to a convolution in one kernel."""
    for node in [node for node in graph.nodes if node.target in RELUS]:
        first: Node = node.args[0]
        added = first.args if first.target in (operator.add, operator.iadd) and len(first.users) == 1 else (first,)
        convs = [each for each in added if isinstance(each, fx.Node) and each.target is F.conv2d]
        once = [each for each in convs if len(each.users) == 1 and len(each.args) == 7]
        conv: Node = next((each for each in once if isinstance(each.args[4], tuple) and each.args[6] == 1), None)
        if conv is not None:
            other = None if conv is first else first.args[first.args[0] is conv]
            with graph.inserting_before(node):
                fused = graph.call_function(convolution_relu, (other, *conv.args))
            node.replace_all_uses_with(fused)
            for old in dict.fromkeys((node, first, conv)):
                graph.erase_node(old)
