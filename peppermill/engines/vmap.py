"""All members of a small network at once: the members are a leading dimension of every tensor.

This suits networks in which no convolution is perturbed. Dense layers become batched matrix products, elementwise
operations need no change, and what no perturbed weight touches runs once for all members.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from peppermill.engines import Members, Plan, autocast
from peppermill.engines.inference_form import CHECKED_ITEMS, agree, different
from peppermill.engines.member_weights import MemberWeights
from peppermill.engines.traced_form import TracedForm, kind_of

ELEMENTWISE_FUNCTIONS: tuple[Any, ...] = (
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish, F.softplus, F.hardtanh, F.hardswish),
    *(F.hardsigmoid, F.softsign, F.dropout, F.tanh, F.sigmoid, torch.relu, torch.tanh, torch.sigmoid, torch.exp),
    *(operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div),
)
ELEMENTWISE_METHODS = ("relu", "tanh", "sigmoid", "add", "sub", "mul", "div", "exp")


def vmap(weights: MemberWeights, members: Members, x: Tensor) -> Plan:
    """All members together if the network suits it, the loop otherwise."""
    if members.count == 1:
        return "loop, because there is one member", None
    together: Together = weights.once("vmap", lambda: Together(weights))
    if not weights.once(("vmap", kind_of(x)), lambda: together.agrees(members, x)):
        return "loop, because not only dense layers are perturbed", None
    return "vmap", partial(together, together.stacked(members))


class Together:
    """A dense network with the members as a leading dimension, and their stacked weights."""

    def __init__(self, weights: MemberWeights) -> None:
        self.weights, self.form, self.graph = weights, weights.form, _batched(weights.form)
        self.sigma, self.stack = 0.0, list[Any]()  # the members at one sigma; 0 if there are none
        if self.graph:
            self.run: Callable[..., Tensor] = fx.GraphModule(nn.Module(), self.graph).forward
            *self.placeholders, _ = (node for node in self.graph.nodes if node.op == "placeholder")  # the last: input

    def __call__(self, stacked: list[Tensor | None], x: Tensor) -> Tensor:
        with autocast(self.form.device, self.form.precision):
            return self.run(*stacked, self.form.laid_out(x))

    def agrees(self, members: Members, x: Tensor) -> bool:
        """Whether inputs of this kind give what the members give one by one, on other inputs of that kind."""
        if self.graph is None:
            return False
        other, stacked = different(x[:CHECKED_ITEMS]), self.stacked(members)
        try:
            found = self(stacked, other)
        except RuntimeError:  # of shapes: inputs with more dimensions than items and features
            return False
        expected = [self.form(self.form.fold(self.weights.made(members, k)), (other,), {}) for k in range(members.size)]
        return agree(found, torch.stack(expected))

    def stacked(self, members: Members) -> list[Tensor | None]:
        """The members' weights side by side, kernels transposed as `baddbmm` takes them; filled member by member."""
        with self.weights.lock:
            if self.sigma == members.sigma:
                return self.stack
            stacked = list[Any]()
            self.sigma, self.stack = 0.0, stacked  # frees the old stack before the new one is made
            for member in range(members.size):
                weights = self.form.fold(self.weights.made(members, member))
                for column, (node, value) in enumerate(zip(self.placeholders, weights, strict=True)):
                    if node.meta["varies"] and value is not None:
                        value = value.mT if "kernel" in node.meta else value.unsqueeze(0)
                        if member == 0:
                            stacked.append(value.new_empty(members.size, *value.shape))
                        stacked[column][member] = value
                    elif member == 0:
                        stacked.append(value)
            self.sigma = members.sigma
            return stacked


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
