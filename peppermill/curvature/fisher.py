"""The trace of the empirical Fisher information, eq. 19 and 20: exact, from the gradient of every item."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp, vmap

from peppermill.curvature.landscape import Landscape, in_float64, twice_differentiable
from peppermill.plumbing.nested import map_tensors
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Inputs, Tick

ACTIVATION_COPIES = 3  # values, their gradients, and the unrolled patches of convolutions
GRADIENT_COPIES = 2  # an item's gradient and its square


@dataclass(frozen=True)
class ItemGradients:
    """|grad ln L_i|^2 and ln L_i of every item, [N]. The sum of the squares is the trace of eq. 20."""

    squares: Tensor
    log_likelihoods: Tensor
    inputs: int  # how many inputs the items belong to: the pixels of an image are items of one input


def item_gradients(landscape: Landscape, tick: Tick) -> ItemGradients:
    """The squared gradient of every item at theta*; raises if outputs or labels are not what the likelihood expects."""
    squares, log_likelihoods, count, obstacle = [], [], 0, ""
    with twice_differentiable() as run:
        for batch in landscape.data:
            outputs = landscape.outputs(landscape.center, batch[0])
            if not bool(outputs.isfinite().all()):
                raise ValueError(
                    "the outputs of the network are NaN or infinite on these data: check its weights and the inputs."
                )
            landscape.likelihood.check(outputs, batch[1])
            log_likelihoods.append(landscape.of_items(in_float64(outputs), batch[1].cpu()))
            count += len(batch[1])
            rest = outputs
            for inputs, labels in run(list, landscape.parts(batch, ACTIVATION_COPIES, GRADIENT_COPIES)):
                before = obstacle
                found, obstacle = run(_item_squares, landscape, inputs, rest[: len(labels)], labels, before)
                if obstacle != before:
                    warn_user(
                        f"this {type(landscape.network.model).__name__} cannot run under vmap ({obstacle}...), so "
                        "gradients are computed one item after another: the same answer, but slower."
                    )
                squares.append(in_float64(found))
                rest = rest[len(labels) :]
                tick(len(labels))
    return ItemGradients(torch.cat(squares), torch.cat(log_likelihoods), count)


def _item_squares(
    landscape: Landscape, inputs: Inputs, outputs: Tensor, labels: Tensor, obstacle: str
) -> tuple[Tensor, str]:
    """The squared gradients of the items, and why the network does not run under `vmap`, if it does not.

    The likelihood stays outside of `vmap` and supplies d ln L_i / d outputs. An input with k items, such as the pixels
    of an image, is differentiated k times.
    """
    log_likelihoods, back = vjp(lambda given: landscape.of_items(given, labels), outputs)[:2]
    predictions, items_of = landscape.likelihood.predict(outputs), landscape.likelihood.items
    counts = torch.tensor([len(items_of(predictions[k : k + 1], labels[k : k + 1])[1]) for k in range(len(labels))])
    counts = counts.to(outputs.device)
    starts = counts.cumsum(0) - counts
    squares = torch.zeros_like(log_likelihoods)
    for turn in range(int(counts.max())):
        items = starts[counts > turn] + turn
        (cotangents,) = back(torch.zeros_like(log_likelihoods).index_fill(0, items, 1.0))
        found, obstacle = _input_squares(landscape, inputs, cotangents, obstacle)
        squares[items] = found[counts > turn]
    return squares, obstacle


def _input_squares(landscape: Landscape, inputs: Inputs, cotangents: Tensor, obstacle: str) -> tuple[Tensor, str]:
    """|J^T c|^2 for every input, [B], from one cotangent c of the outputs for each; and why `vmap` did not do it.

    Networks that cannot run under `vmap` are differentiated one input after another, with the same result.
    """
    tensors: list[Tensor] = []
    map_tensors(tensors.append, inputs)

    def square(given: list[Tensor], cotangent: Tensor) -> Tensor:
        alone = iter(tensor.unsqueeze(0) for tensor in given)
        single = map_tensors(lambda _: next(alone), inputs)
        outputs, back = vjp(lambda params: landscape.outputs(params, single), landscape.center)[:2]
        (gradient,) = back(cotangent.reshape(outputs.shape))
        return torch.stack([value.square().sum() for value in gradient.values()]).sum()

    if not obstacle:
        try:
            return vmap(square)(tensors, cotangents), ""
        except Exception as error:  # anything can go wrong inside vmap; the network's own error is raised again below
            obstacle = " ".join(str(error).split())[:120] or type(error).__name__
    return torch.stack([square([t[k] for t in tensors], c) for k, c in enumerate(cotangents)]), obstacle
