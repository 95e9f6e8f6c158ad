"""The trace of the empirical Fisher information, eq. 19 and 20: exact, from the gradient of every item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import vjp, vmap

from peppermill.curvature.landscape import Landscape, part, twice_differentiable, wide
from peppermill.curvature.memory import inputs_at_once
from peppermill.data import Batches, map_tensors
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Inputs, Tick

COPIES = 3  # of the activations: values, what flows back, and the unrolled patches of convolutions
GRADIENTS = 2  # an item's gradient and its square

#: |J^T c|^2 for every input of a batch, [B], from the inputs and one cotangent c of the outputs for each.
Pull: TypeAlias = Callable[[Landscape, Inputs, Tensor], Tensor]


@dataclass(frozen=True)
class ItemGradients:
    """|grad ln L_i|^2, whose sum is the trace of eq. 20, and ln L_i of every item, [N]."""

    squares: Tensor
    log_likelihoods: Tensor


def item_gradients(landscape: Landscape, data: Batches, tick: Tick) -> ItemGradients:
    """The squared gradients of every item at theta*.

    Inputs are differentiated together by `vmap` where the network allows it, else one after another: the same numbers.
    """
    squares, log_likelihoods = [], []
    pull: Pull = _together
    with twice_differentiable():
        for batch in data:
            size = inputs_at_once(landscape, batch, COPIES, GRADIENTS)
            for start in range(0, len(batch[1]), size):
                inputs, labels = part(batch, start, start + size)
                outputs = landscape.outputs(landscape.center, inputs)
                found, pull = _squares(landscape, inputs, outputs, labels, pull)
                squares.append(wide(found))
                log_likelihoods.append(landscape.of_items(wide(outputs), labels.cpu()))
                tick(len(labels))
    return ItemGradients(torch.cat(squares), torch.cat(log_likelihoods))


def _squares(landscape: Landscape, inputs: Inputs, outputs: Tensor, labels: Tensor, pull: Pull) -> tuple[Tensor, Pull]:
    """The items' squares and the way they were found.

    The likelihood stays outside of `vmap`: it hands down d ln L_i / d outputs. An input with several items, the pixels
    of an image, takes as many turns as it has items.
    """
    log_likelihoods, back = vjp(lambda given: landscape.of_items(given, labels), outputs)[:2]
    counts = _items_of_inputs(landscape, outputs, labels)
    starts = counts.cumsum(0) - counts
    squares = torch.zeros_like(log_likelihoods)
    for turn in range(int(counts.max())):
        items = starts[counts > turn] + turn
        (cotangents,) = back(torch.zeros_like(log_likelihoods).index_fill(0, items, 1.0))
        pulled, pull = _pulled(landscape, inputs, cotangents, pull)
        squares[items] = pulled[counts > turn]
    return squares, pull


def _items_of_inputs(landscape: Landscape, outputs: Tensor, labels: Tensor) -> Tensor:
    """How many items each input has: one for an image's class, fewer where labels are ignored."""
    predictions = landscape.likelihood.predict(outputs)
    counted = [
        len(landscape.likelihood.items(predictions[k : k + 1], labels[k : k + 1])[1]) for k in range(len(labels))
    ]
    return torch.tensor(counted, device=outputs.device)


def _pulled(landscape: Landscape, inputs: Inputs, cotangents: Tensor, pull: Pull) -> tuple[Tensor, Pull]:
    if pull is _one_by_one:
        return pull(landscape, inputs, cotangents), pull
    try:
        return pull(landscape, inputs, cotangents), pull
    except Exception as error:  # whatever goes wrong inside vmap; a fault of the network's own comes up again below
        squares = _one_by_one(landscape, inputs, cotangents)
        warn_user(
            f"this {type(landscape.model).__name__} cannot run under vmap ({' '.join(str(error).split())[:120]}...), "
            "so gradients are taken one item after another: the same answer, later."
        )
        return squares, _one_by_one


def _together(landscape: Landscape, inputs: Inputs, cotangents: Tensor) -> Tensor:
    squares: Tensor = vmap(lambda given, cotangent: _square(landscape, inputs, given, cotangent))(
        _tensors(inputs), cotangents
    )
    return squares


def _one_by_one(landscape: Landscape, inputs: Inputs, cotangents: Tensor) -> Tensor:
    tensors = _tensors(inputs)
    squares = [_square(landscape, inputs, [t[k] for t in tensors], c) for k, c in enumerate(cotangents)]
    return torch.stack(squares)


def _square(landscape: Landscape, inputs: Inputs, given: list[Tensor], cotangent: Tensor) -> Tensor:
    """|J^T c|^2 of one input, its tensors without their batch dimension."""
    alone = iter(tensor.unsqueeze(0) for tensor in given)
    single = map_tensors(lambda _: next(alone), inputs)
    outputs, back = vjp(lambda params: landscape.outputs(params, single), landscape.center)[:2]
    (gradient,) = back(cotangent.reshape(outputs.shape))
    return torch.stack([value.square().sum() for value in gradient.values()]).sum()


def _tensors(inputs: Inputs) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, inputs)
    return found
