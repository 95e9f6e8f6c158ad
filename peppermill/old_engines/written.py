"""A graph of operations as a Python function that does nothing but call them.

What `torch.fx` writes itself looks up every operation by four names in each call; for a small network that is a tenth
of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

_aten = torch.ops.aten
#: Operations that are called in less time by these names: a third of it where they do as little as look at a tensor.
_SHORT: dict[Any, Callable[..., Tensor]] = {
    _aten.view.default: Tensor.view,
    _aten.as_strided.default: Tensor.as_strided,
    _aten.transpose.int: Tensor.transpose,
    _aten.relu_.default: Tensor.relu_,
    _aten.addcmul.default: torch.addcmul,
    _aten.bmm.default: torch.bmm,
    _aten.baddbmm.default: torch.baddbmm,
}


class _Name:
    """A word that is written as it is."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def compiled(graph: Graph, constants: Mapping[str, Any]) -> Callable[..., Any]:
    """The function from the graph's placeholders to its output; a value is let go after its last use."""
    known: dict[str, Any] = {}
    inputs, lines, last = [], [], _last_uses(graph)
    for node in graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "get_attr":
            known[node.name] = constants[str(node.target)]
        elif node.op == "call_function":
            known[f"call_{node.name}"] = _SHORT.get(node.target) or getattr(node.target, "_op", node.target)
            lines.append(f"{node.name} = call_{node.name}({_arguments(node, known)})")
            lines += [f"del {one.name}" for one in last.get(node, []) if one.op != "get_attr"]
        else:
            lines.append(f"return {_written(node.args[0], known)}")
    exec("\n    ".join([f"def run({', '.join(inputs)}):", *lines]), known)
    function: Callable[..., Any] = known["run"]
    return function


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """What is used for the last time, by the node that uses it."""
    seen, last = set[Node](), dict[Node, list[Node]]()
    for node in reversed(graph.nodes):
        new = [one for one in (*node.all_input_nodes, node) if one not in seen]
        seen.update(new)
        last[node] = new
    return last


def _arguments(node: Node, known: dict[str, Any]) -> str:
    given = [_written(value, known) for value in node.args]
    return ", ".join([*given, *(f"{name}={_written(value, known)}" for name, value in node.kwargs.items())])


def _written(value: Any, known: dict[str, Any]) -> str:
    """Names of nodes and plain numbers as they are; whatever else, under a name."""
    value = map_arg(value, lambda node: _Name(node.name))  # type: ignore[arg-type,return-value]
    if _is_plain(value):
        return repr(value)
    name = f"value_{len(known)}"
    known[name] = value
    return name


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (_Name, bool, int, str, type(None)))
