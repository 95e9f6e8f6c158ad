"""Norms folded into the layers around them, in a graph whose weights are arguments; on a GPU also ReLUs."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import fx, nn

from peppermill.engines.inference_form import Argument, Norm
from peppermill.engines.recorder import NORMS

PRODUCTS: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d, F.linear)
RELUS: tuple[Any, ...] = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
NORM_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
IDENTITIES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Identity)
CHECKS: tuple[Any, ...] = (torch._assert, getattr, operator.eq, operator.ne, operator.le, operator.ge)

#: A node of a graph; torch types what a node holds as a union of twenty types.
Node: TypeAlias = Any


def with_arguments(graph: fx.Graph, root: nn.Module, names: dict[str, str]) -> list[tuple[Argument, list[Node]]]:
    """Make arguments of the weights in the graph, with the norms folded in; `names` maps paths to names of arrays."""
    for node in [node for node in graph.nodes if node.op == "call_module"]:
        _simplify(graph, node, root.get_submodule(node.target))
    for node in reversed(list(graph.nodes)):  # checks of shapes, and what was computed for them alone
        if node.target in CHECKS and not node.users:
            graph.erase_node(node)
    named = {node: names[node.target] for node in graph.nodes if node.op == "get_attr"}  # KeyError: a constant
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


def _simplify(graph: fx.Graph, node: Node, module: Any) -> None:
    """A module that does nothing here vanishes; a batch norm, a ReLU or a flattening becomes a call of a function."""
    if isinstance(module, IDENTITIES):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    elif type(module) in NORMS:
        if module.running_mean is None:
            raise TypeError("a batch norm without running statistics depends on the whole batch")
        with graph.inserting_before(node):
            arrays = [
                graph.get_attr(f"{node.target}.{name}") if getattr(module, name) is not None else None
                for name in NORM_ARGUMENTS[1:5]
            ]
        node.op, node.target = "call_function", F.batch_norm
        node.args = (node.args[0], *arrays, False, 0.0, module.eps)
    elif type(module) in (nn.ReLU, nn.Flatten):  # functions take less time to call
        node.op, node.target = "call_function", torch.relu if type(module) is nn.ReLU else torch.flatten
        node.args += () if type(module) is nn.ReLU else (module.start_dim, module.end_dim)


def _fold_norm(graph: fx.Graph, node: Node, named: dict[Node, str], layers: dict[Node, Argument]) -> None:
    """Fold a norm into the layer that feeds it, or into the only layer that it feeds."""
    given = dict(zip(NORM_ARGUMENTS, node.args, strict=False)) | node.kwargs
    arrays = [given.get(name) for name in NORM_ARGUMENTS[1:5]]
    x: Any = given["input"]
    if given.get("training") or arrays[0] is None or any(array and array not in named for array in arrays):
        return
    norm = Norm(tuple(named[array] if array else None for array in arrays), given.get("eps", 1e-5))
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
