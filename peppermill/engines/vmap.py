"""All members of a small network at once: the members are a leading dimension of every tensor.

This suits networks in which no convolution is perturbed. Dense layers become batched matrix products, elementwise
operations need no change, and what no perturbed weight touches runs once for all members.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from peppermill.engines import Group, Members, autocast
from peppermill.engines.inference_form import CHECKED_ITEMS, Node, TracedForm, agree, different, kind_of
from peppermill.engines.loop import Runner, member_groups
from peppermill.engines.member_weights import MemberWeights
from peppermill.plumbing.nested import output_tensor

ELEMENTWISE_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softsign),
)
ELEMENTWISE_FUNCTIONS: tuple[Any, ...] = (
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish, F.softplus, F.hardtanh, F.hardswish),
    *(torch.relu, torch.tanh, torch.sigmoid, F.tanh, F.sigmoid, torch.exp),
    *(operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div),
)
ELEMENTWISE_METHODS = ("relu", "tanh", "sigmoid", "add", "sub", "mul", "div", "exp")


def vmap(runner: Runner, weights: MemberWeights, members: Members, args: Any, kwargs: Any) -> Iterator[Group]:
    """All members together if the network suits it, the loop otherwise."""
    together = together_of(weights)
    if together is None or members.count == 1:
        reason = weights.form.reason or "not only dense layers are perturbed"
        runner.report = "loop, because " + (reason if members.count > 1 else "there is one member")
        return member_groups(weights, members, runner.room)
    return iter([together.group(runner, members)])


class Together:
    """A dense network with the members as a leading dimension, and their stacked weights."""

    def __init__(self, weights: MemberWeights, form: TracedForm, function: fx.GraphModule) -> None:
        self.weights, self.form, self.function = weights, form, function
        self.kept: tuple[float, list[Tensor | None]] | None = None
        self.agreed: dict[Any, bool] = {}  # whether all members together are the members, by the kind of inputs

    def group(self, runner: Runner, members: Members) -> Group:
        with self.weights.lock:
            if self.kept is None or self.kept[0] != members.sigma:
                self.kept = None  # frees the old stack before the new one is made
                stacked = self._stacked(members.sigma, members.keep)
                self.kept = (members.sigma, stacked) if members.keep else None
            else:
                stacked = self.kept[1]

        def one_by_one(args: tuple[Any, ...], kwargs: dict[str, Any], may_keep: bool = True) -> Tensor:
            groups = member_groups(self.weights, members, runner.room, may_keep)
            return torch.cat([group(args, kwargs) for group in groups])

        def outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            kind = kind_of(args[0]) if self.form.takes(args, kwargs) else None
            if kind and kind not in self.agreed:
                other = different(args[0][:CHECKED_ITEMS])
                try:
                    found, expected = self._outputs(stacked, other), one_by_one((other,), {}, not members.keep)
                    self.agreed[kind] = agree(found, expected)
                except RuntimeError:  # of shapes: inputs with more dimensions than items and features
                    self.agreed[kind] = False
            together = kind is not None and self.agreed[kind]
            runner.report = "vmap" if together else "loop, because not only dense layers are perturbed"
            return self._outputs(stacked, args[0]) if together else one_by_one(args, kwargs)

        return outputs

    def _stacked(self, sigma: float, keep: bool) -> list[Tensor | None]:
        """The members' weights side by side, kernels transposed as `baddbmm` takes them; filled member by member."""
        size, stacked = self.weights.perturbation.size, list[Any]()
        is_kernel, varies = self.form.columns()
        for member in range(size):
            weights = self.weights.member(sigma, member, "nothing" if keep else "directions")
            for column, value in enumerate(weights):
                if varies[column] and value is not None:
                    value = value.mT if is_kernel[column] else value.unsqueeze(0)
                    if member == 0:
                        stacked.append(value.new_empty(size, *value.shape))
                    stacked[column][member] = value
                elif member == 0:
                    stacked.append(value)
        return stacked

    def _outputs(self, stacked: list[Tensor | None], x: Tensor) -> Tensor:
        with autocast(self.form.device, self.form.precision):
            return output_tensor(self.function.forward(*stacked, self.form.laid_out(x)))


def together_of(weights: MemberWeights) -> Together | None:
    """The network with members as a leading dimension; None if it does not consist of dense layers."""
    with weights.lock:
        if "together" not in weights.prepared:
            weights.prepared["together"] = None
            if isinstance(weights.form, TracedForm) and (function := _batched(weights.form)):
                weights.prepared["together"] = Together(weights, weights.form, function)
        found: Together | None = weights.prepared["together"]
        return found


def member_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The dense layers of all members: weight [m, inputs, outputs], bias [m, 1, outputs], x [(m,) B, inputs]."""
    x = x.expand(len(weight), *x.shape) if x.ndim == 2 else x
    if torch.is_autocast_enabled(x.device.type):
        return torch.bmm(x, weight) + (0 if bias is None else bias)
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


def _batched(form: TracedForm) -> fx.GraphModule | None:
    graph = fx.Graph()
    graph.output(graph.graph_copy(form.graph, {}))
    varying: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            varying |= {node} if node.meta.get("varies") else set()
        elif varying & set(node.all_input_nodes):
            varying.add(node)
            if node.target is F.linear and node.args[1] in varying:
                node.target = member_linear
            elif node.op == "call_module":
                if not isinstance(form.function.get_submodule(str(node.target)), ELEMENTWISE_MODULES):
                    return None
            elif node.target not in (F.linear, *ELEMENTWISE_FUNCTIONS, *ELEMENTWISE_METHODS) and node.op != "output":
                return None
    return fx.GraphModule(form.function, graph) if varying else None
