"""What stands beside a product becomes a part of it: a norm before it, a ReLU behind it.

Only where that cannot change what anybody else sees: whatever is left out has no other user, and nobody writes to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from peppermill.old_engines.products import (
    folds,
    normalized,
    product,
    product_with_relu,
    shared_product,
    shared_product_with_relu,
)
from peppermill.old_engines.recorded import Recording

_RELUS = (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)
_WITH_RELU: dict[Any, Any] = {product: product_with_relu, shared_product: shared_product_with_relu}
_PRODUCTS = {*_WITH_RELU, *_WITH_RELU.values()}


def fuse(recording: Recording) -> None:
    """Change the recorded operations in place."""
    for node in list(recording.graph.nodes):
        if node.target is normalized:
            _into_the_products_behind(recording, node)
        elif node.target in _RELUS:
            _into_the_product_before(recording, node)
    recording.clean()


def _into_the_products_behind(recording: Recording, norm: Node) -> None:
    inputs, scale, shift = norm.args
    if _is_its_own(inputs) and all(_takes(recording, user, norm) for user in norm.users):
        for user in list(norm.users):
            user.args = (inputs, *user.args[1:4], scale, shift, user.args[6])


def _is_its_own(value: Any) -> bool:
    """Whether an operation made this, for one user, and not as another look at something else."""
    made = isinstance(value, Node) and value.op == "call_function" and len(value.users) == 1
    return made and (value.target in _PRODUCTS or not getattr(value.target, "is_view", True))


def _takes(recording: Recording, user: Node, norm: Node) -> bool:
    """Whether the user is a product whose inputs, and nothing else, are what the norm made."""
    if user.target not in (product, product_with_relu) or user.args[0] is not norm or user.args[4] is not None:
        return False
    assert isinstance(user.args[6], Node)
    return folds(recording.constants[str(user.args[6].target)].layer)


def _into_the_product_before(recording: Recording, relu: Node) -> None:
    before = relu.args[0]
    if isinstance(before, Node) and before.target in _WITH_RELU and len(before.users) == 1:
        before.target = _WITH_RELU[before.target]
        relu.replace_all_uses_with(before)
        recording.graph.erase_node(relu)
