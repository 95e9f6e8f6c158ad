"""What depends on the members' weights alone is computed once for each set of weights, and not in each call.

Of the recorded operations some need only weights: a transposition, a packing for the processor, the product of a
kernel with the scale of a norm. They make up one function, the rest another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from peppermill.old_engines.recorded import Recording, written


class Plan(NamedTuple):
    """The operations of a group of members on inputs of one kind, in two steps."""

    prepare: Callable[..., tuple[Tensor, ...]]  # (*weights) -> what is worth keeping
    run: Callable[..., Tensor]  # (*what is kept, *inputs) -> outputs
    fixed: tuple[Tensor, ...]  # what else both read


def plan_of(recording: Recording, weights: int) -> Plan:
    """The recorded operations, of whose inputs so many are weights."""
    _shorten_views(recording)
    before, after = parts_of(recording, weights)
    return Plan(recording.compiled(before), recording.compiled(after), recording.fixed())


def parts_of(recording: Recording, weights: int) -> tuple[Graph, Graph]:
    """What depends on weights alone, as one graph, and the rest as another: (*what is kept, *inputs) -> outputs."""
    recording.clean()
    given = [node for node in recording.graph.nodes if node.op == "placeholder"]
    early = _early(recording.graph, given[:weights])
    kept = [node for node in early if any(user not in early for user in node.users)]
    before = graph_of(given[:weights], (node for node in early if node not in given), tuple(kept))
    (result,) = (node.args[0] for node in recording.graph.nodes if node.op == "output")
    late = (node for node in recording.graph.nodes if node.op == "call_function" and node not in early)
    return before, graph_of([*kept, *given[weights:]], late, result)


def _shorten_views(recording: Recording) -> None:
    """Of a look at a look at a tensor, make one look: shapes and strides are those that were recorded."""
    for node in recording.graph.nodes:
        base = _behind(node)
        if base is node or base is node.args[0]:
            continue
        (shape, strides, offset), (*_, start) = node.meta["placed"], base.meta["placed"]
        if _alike(node.meta["placed"], base.meta["placed"]):
            node.replace_all_uses_with(base)
            continue
        new = base.op == "call_function" and start == 0 and not written(base)
        if new or offset == start:  # what was given may begin elsewhere in its memory the next time
            node.target, node.kwargs = torch.ops.aten.as_strided.default, {}
            node.args = (base, shape, strides, offset if new else None)


def _alike(one: tuple[list[int], list[int], int], other: tuple[list[int], list[int], int]) -> bool:
    """Whether two looks at a tensor are the same: where a length is 1, a stride means nothing."""
    strides = [[s for n, s in zip(*look[:2], strict=True) if n != 1] for look in (one, other)]
    return one[0] == other[0] and one[2] == other[2] and strides[0] == strides[1]


def _behind(node: Node) -> Node:
    """The tensor at which a chain of views looks in the end."""
    while getattr(node.target, "is_view", False) and node.meta.get("placed"):
        before = node.args[0]
        if not isinstance(before, Node) or not before.meta.get("placed"):
            break
        node = before
    return node


def _early(graph: Graph, weights: list[Node]) -> dict[Node, None]:
    """The nodes that depend on weights and constants alone; nothing is kept to which somebody writes."""
    early = dict.fromkeys(weights)
    for node in graph.nodes:
        known = [one.op == "get_attr" or one in early for one in node.all_input_nodes]
        if node.op == "call_function" and not written(node) and known and all(known):
            early[node] = None
    changed = (value for node in graph.nodes for value in written(node))
    return dict.fromkeys(weights) if any(value in early for value in changed) else early


def graph_of(inputs: list[Node], nodes: Iterable[Node], result: Node | tuple[Node, ...]) -> Graph:
    """A graph of its own for some of the nodes."""
    graph, own = Graph(), dict[Node, Node]()

    def copied(node: Node) -> Node:
        if node not in own:
            own[node] = graph.node_copy(node)  # a constant
        return own[node]

    for number, node in enumerate(inputs):
        own[node] = graph.placeholder(f"input_{number}")
        own[node].meta = dict(node.meta)
    for node in nodes:
        own[node] = graph.node_copy(node, copied)
    graph.output(copied(result) if isinstance(result, Node) else tuple(map(copied, result)))
    return graph
