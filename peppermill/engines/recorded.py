"""A function of tensors as the list of operations it makes on inputs of one kind, to be run again without the rest.

For a small network the way to an operation (modules, vmap, dispatch) takes longer than the operation. What is recorded
is right for every input of the same shapes, types and strides, as long as no operation depends on a value: a function
that reads a number out of a tensor, or draws one, is refused.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from peppermill.data import map_tensors

_READS_A_NUMBER = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}


class NotRecordable(RuntimeError):
    """The function depends on values, or on something other than its inputs."""


def record(function: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[Tensor, Callable[..., Tensor]]:
    """The function's result, and a function of the inputs that makes it again."""
    recorder = _Recorder(inputs)
    with recorder:
        result = function()
    return result, recorder.finish(result)


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operation, without torch.compile's machinery, whose import takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Recorder(Watching):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.root = Graph(), torch.nn.Module()
        self.nodes: dict[int, Node] = {}
        self.alive: list[Tensor] = []  # so that no two tensors have the same id
        for number, value in enumerate(inputs):
            self._name(value, self.graph.placeholder(f"input_{number}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _READS_A_NUMBER or torch.Tag.nondeterministic_seeded in func.tags:
            raise NotRecordable(f"{func._schema.name} depends on values")
        outputs = func(*args, **(kwargs or {}))
        if func.is_view and id(args[0]) not in self.nodes:
            return outputs  # another look at a constant is a constant
        node = self.graph.call_function(func, *tree_map_only(Tensor, self._node, (args, kwargs or {})))
        if isinstance(outputs, Tensor):
            self._name(outputs, node)
        elif isinstance(outputs, (tuple, list)):
            for number, part in enumerate(outputs):
                if isinstance(part, Tensor):
                    self._name(part, self.graph.call_function(operator.getitem, (node, number)))
        return outputs

    def finish(self, result: Tensor) -> Callable[..., Tensor]:
        if id(result) not in self.nodes:
            raise NotRecordable("the result is made by no recorded operation")
        self.graph.output(self.nodes[id(result)])
        module = GraphModule(self.root, self.graph)
        replay: Callable[..., Tensor] = module.forward
        return replay

    def _name(self, value: Tensor, node: Node) -> None:
        self.nodes[id(value)] = node
        self.alive.append(value)

    def _node(self, value: Tensor) -> Node:
        """What made a tensor; a tensor that nothing recorded made is a constant: a weight, a buffer."""
        if id(value) not in self.nodes:
            name = f"constant_{len(self.alive)}"
            self.root.__dict__[name] = value.detach()
            self._name(value, self.graph.get_attr(name))
        return self.nodes[id(value)]


@torch.no_grad()
def largest_bytes(function: Callable[[], Any]) -> int:
    """The largest tensor that a function makes, found by calling it; beyond all bounds where memory runs out."""
    largest = _Largest()  # type: ignore[no-untyped-call]
    try:
        with largest:
            function()
    except torch.cuda.OutOfMemoryError:
        return sys.maxsize
    return largest.bytes


class _Largest(Watching):  # type: ignore[no-untyped-call]
    bytes: int = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not func.is_view:
            map_tensors(lambda value: setattr(self, "bytes", max(self.bytes, value.nbytes)), outputs)
        return outputs
