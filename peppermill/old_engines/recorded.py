"""A function of tensors as the list of operations it makes on inputs of one kind, to be run again without the rest.

For a small network the way to an operation (modules, vmap, dispatch) takes longer than the operation. What is recorded
is right for every input of the same shapes, types and strides, as long as no operation depends on a value: a function
that reads a number out of a tensor, or draws one, is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from peppermill.old_engines.written import compiled

_READS_A_NUMBER = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}
_LISTENING: ContextVar[_Recorder | None] = ContextVar("_LISTENING", default=None)


class NotRecordable(RuntimeError):
    """The function depends on values, or on something other than its inputs."""


class Recording:
    """The operations, as a graph, and by name what the graph takes as constant."""

    def __init__(self, graph: Graph, constants: dict[str, Any]) -> None:
        self.graph, self.constants = graph, constants

    def fixed(self) -> tuple[Tensor, ...]:
        """The tensors among the constants: of the network, or computed from it."""
        return tuple(value for value in self.constants.values() if isinstance(value, Tensor))

    def compiled(self, graph: Graph | None = None) -> Callable[..., Any]:
        """The graph, or another one around the same constants, as a function."""
        return compiled(graph or self.graph, self.constants)

    def clean(self) -> None:
        """Drop what nobody uses; what writes to a tensor is used."""
        for node in reversed(self.graph.nodes):
            if node.op in ("call_function", "get_attr") and not node.users and not written(node):
                self.graph.erase_node(node)


def record(function: Callable[[], Tensor], inputs: list[Tensor], whole: bool = False) -> Recording:
    """The operations that make the function's result from the inputs; with `whole`, what `as_one` runs is one."""
    recorder = _Recorder(inputs, whole)
    token = _LISTENING.set(recorder)
    try:
        with recorder:
            result = function()
    finally:
        _LISTENING.reset(token)
    return recorder.finish(result)


def as_one(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """`function(*args)`, to be recorded as one operation, which can still be changed before it becomes several."""
    recorder = _LISTENING.get()
    return function(*args) if recorder is None else recorder.one(function, args)


def written(node: Node) -> list[Node]:
    """The arguments to which an operation writes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    changed = (
        given.get(one.name) for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write
    )
    return [value for value in changed if isinstance(value, Node)] or list(node.all_input_nodes)


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operation, without torch.compile's machinery, whose import takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Recorder(Watching):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: list[Tensor], whole: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = Graph(), dict[str, Any]()
        self.whole, self.deaf = whole, False
        self.nodes: dict[int, Node] = {}
        self.alive: list[Any] = []  # so that no two tensors have the same id
        for number, value in enumerate(inputs):
            node = self.graph.placeholder(f"input_{number}")
            node.meta["placed"] = _placed(value)
            self._name(value, node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _READS_A_NUMBER or torch.Tag.nondeterministic_seeded in func.tags:
            raise NotRecordable(f"{func._schema.name} depends on values")
        outputs = func(*args, **(kwargs or {}))
        if self.deaf or (func.is_view and id(args[0]) not in self.nodes):
            return outputs  # another look at a constant is a constant
        node = self.graph.call_function(func, *tree_map_only(Tensor, self._node, (args, kwargs or {})))
        if isinstance(outputs, Tensor):
            node.meta["placed"] = _placed(outputs)
            self._name(outputs, node)
        elif isinstance(outputs, (tuple, list)):
            for number, part in enumerate(outputs):
                if isinstance(part, Tensor):
                    self._name(part, self.graph.call_function(operator.getitem, (node, number)))
        return outputs

    def one(self, function: Callable[..., Tensor], args: tuple[Any, ...]) -> Tensor:
        """A function as one operation, where that is wanted; what it is made of is not heard."""
        if not self.whole:
            return function(*args)
        self.deaf = True
        try:
            result = function(*args)
        finally:
            self.deaf = False
        given = tuple(None if value is None else self._node(value) for value in args)
        self._name(result, self.graph.call_function(function, given))
        return result

    def finish(self, result: Tensor) -> Recording:
        if id(result) not in self.nodes:
            raise NotRecordable("the result is made by no recorded operation")
        self.graph.output(self.nodes[id(result)])
        return Recording(self.graph, self.constants)

    def _name(self, value: Any, node: Node) -> None:
        self.nodes[id(value)] = node
        self.alive.append(value)

    def _node(self, value: Any) -> Node:
        """What made a tensor; what nothing recorded made is a constant: a weight, a buffer, how a layer is set."""
        if id(value) not in self.nodes:
            name = f"constant_{len(self.alive)}"
            self.constants[name] = value.detach() if isinstance(value, Tensor) else value
            self._name(value, self.graph.get_attr(name))
        return self.nodes[id(value)]


def _placed(value: Tensor) -> tuple[list[int], list[int], int] | None:
    """Shape, strides and offset of a tensor in its memory, where these say all about it."""
    plain = value.layout == torch.strided and not value.is_complex()
    return (list(value.shape), list(value.stride()), int(value.storage_offset())) if plain else None
