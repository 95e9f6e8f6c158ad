"""Norms folded into the layers around them, in a graph whose weights are arguments; on a GPU also ReLUs."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import fx

from peppermill.engines.inference_form import Argument, Norm

PRODUCTS: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d, F.linear)
RELUS: tuple[Any, ...] = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
CHECKS: tuple[Any, ...] = (torch._assert, getattr, operator.eq, operator.ne, operator.le, operator.ge)

#: A node of a graph; torch types what a node holds as a union of twenty types.
Node: TypeAlias = Any


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
    """Let cuDNN add the bias, another tensor and the ReLU to a float32 convolution in one kernel; not in bfloat16,
    in which this reads memory that it must not (torch 2.11)."""
    for node in [node for node in graph.nodes if node.target in RELUS]:
        first = node.args[0]
        is_sum = first.target in (operator.add, operator.iadd) and len(first.users) == 1
        added: Node = first.args if is_sum else (first,)
        convs = [each for each in added if isinstance(each, fx.Node) and each.target is F.conv2d]
        once = [each for each in convs if len(each.users) == 1 and len(each.args) == 7]
        conv: Node = next((each for each in once if isinstance(each.args[4], tuple) and each.args[6] == 1), None)
        if conv is None:
            continue
        x, weight, bias, *places = conv.args
        with graph.inserting_before(node):
            if added == (first,):
                fused = graph.call_function(torch.cudnn_convolution_relu, (x, weight, bias, *places))
            else:
                other = added[1] if added[0] is conv else added[0]
                fused = graph.call_function(torch.cudnn_convolution_add_relu, (x, weight, other, 1.0, bias, *places))
        node.replace_all_uses_with(fused)
        for old in dict.fromkeys((node, first, conv)):
            graph.erase_node(old)
