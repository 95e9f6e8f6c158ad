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
from torch import Tensor, fx

from peppermill.engines import Group, Members, autocast
from peppermill.engines.inference_form import CHECKED_ITEMS, TracedForm, agree, different, kind_of
from peppermill.engines.loop import Runner, member_groups
from peppermill.engines.member_weights import MemberWeights
from peppermill.plumbing.nested import output_tensor

ELEMENTWISE_FUNCTIONS: tuple[Any, ...] = (
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish, F.softplus, F.hardtanh, F.hardswish),
    *(F.hardsigmoid, F.softsign, F.dropout, F.tanh, F.sigmoid, torch.relu, torch.tanh, torch.sigmoid, torch.exp),
    *(operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div),
)
ELEMENTWISE_METHODS = ("relu", "tanh", "sigmoid", "add", "sub", "mul", "div", "exp")
NOT_DENSE = "not only dense layers are perturbed"


def vmap(runner: Runner, weights: MemberWeights, members: Members, args: Any, kwargs: Any) -> Iterator[Group]:
    """All members together if the network suits it, the loop otherwise."""
    together = together_of(weights)
    if together is None or members.count == 1:
        reason = weights.form.reason or NOT_DENSE if members.count > 1 else "there is one member"
        runner.report = f"loop, because {reason}"
        return member_groups(runner, weights, members)
    stacked = together.stacked(members)

    def outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        suits = together.form.takes(args, kwargs) and together.agrees(stacked, members, args[0])
        runner.report = "vmap" if suits else f"loop, because {NOT_DENSE}"
        if suits:
            return together(stacked, args[0])
        return torch.cat([group(args, kwargs) for group in member_groups(runner, weights, members)])

    return iter([outputs])


class Together:
    """A dense network with the members as a leading dimension, and their stacked weights."""

    def __init__(self, weights: MemberWeights, form: TracedForm, graph: fx.Graph) -> None:
        self.weights, self.form, self.run = weights, form, fx.GraphModule(form.function, graph).forward
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"][:-1]  # the last is the input
        self.kept: tuple[float, list[Tensor | None]] | None = None
        self.agreed: dict[Any, bool] = {}  # whether all members together are the members, by the kind of inputs

    def __call__(self, stacked: list[Tensor | None], x: Tensor) -> Tensor:
        with autocast(self.form.device, self.form.precision):
            return output_tensor(self.run(*stacked, self.form.laid_out(x)))

    def agrees(self, stacked: list[Tensor | None], members: Members, x: Tensor) -> bool:
        """Whether inputs of this kind give what the members give one by one, on other inputs of that kind."""
        if (kind := kind_of(x)) not in self.agreed:
            other = different(x[:CHECKED_ITEMS])
            try:
                found = self(stacked, other)
                expected = [self.form(self._member(members, k), (other,), {}) for k in range(members.size)]
                self.agreed[kind] = agree(found, torch.stack(expected))
            except RuntimeError:  # of shapes: inputs with more dimensions than items and features
                self.agreed[kind] = False
        return self.agreed[kind]

    def stacked(self, members: Members) -> list[Tensor | None]:
        """The members' weights side by side, kernels transposed as `baddbmm` takes them; filled member by member."""
        with self.weights.lock:
            if self.kept and self.kept[0] == members.sigma:
                return self.kept[1]
            self.kept, stacked = None, list[Any]()  # frees the old stack before the new one is made
            for member in range(members.size):
                weights = self._member(members, member)
                for column, (node, value) in enumerate(zip(self.placeholders, weights, strict=True)):
                    if node.meta["varies"] and value is not None:
                        value = value.mT if "kernel" in node.meta else value.unsqueeze(0)
                        if member == 0:
                            stacked.append(value.new_empty(members.size, *value.shape))
                        stacked[column][member] = value
                    elif member == 0:
                        stacked.append(value)
            self.kept = (members.sigma, stacked) if members.keep else None
            return stacked

    def _member(self, members: Members, member: int) -> Any:
        params = self.weights.made(members.sigma, member, "members" if members.keep else "directions")
        return self.form.fold(params)


def together_of(weights: MemberWeights) -> Together | None:
    """The network with members as a leading dimension; None if it does not consist of dense layers."""
    with weights.lock:
        if "together" not in weights.prepared:
            weights.prepared["together"] = None
            if isinstance(weights.form, TracedForm) and (graph := _batched(weights.form)):
                weights.prepared["together"] = Together(weights, weights.form, graph)
        found: Together | None = weights.prepared["together"]
        return found


def member_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The dense layers of all members: weight [m, inputs, outputs], bias [m, 1, outputs], x [(m,) B, inputs]."""
    x = x.expand(len(weight), *x.shape) if x.ndim == 2 else x
    if torch.is_autocast_enabled(x.device.type):
        return torch.bmm(x, weight) + (0 if bias is None else bias)
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


def _batched(form: TracedForm) -> fx.Graph | None:
    """The graph for members as a leading dimension, if it has only dense layers and elementwise operations."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(form.graph, {}))
    varying: set[Any] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            varying |= {node} if node.meta.get("varies") else set()
        elif varying & set(node.all_input_nodes):
            varying.add(node)
            if node.target is F.linear and node.kwargs:
                return None
            if node.target is F.linear and node.args[1] in varying:
                node.target, node.args[1].meta["kernel"] = member_linear, True
            elif node.target not in (F.linear, *ELEMENTWISE_FUNCTIONS, *ELEMENTWISE_METHODS) and node.op != "output":
                return None
    return graph if varying else None
