"""Derivatives of ln L_i at theta*, eq. 15 to 20: gradients of every item, products with the Hessian, small steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from peppermill.curvature.landscape import MEMORY_BYTES, Landscape, in_float64, twice_differentiable
from peppermill.plumbing.nested import map_tensors
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Batch, Inputs, Params, Tick

GRADIENT_ACTIVATIONS = 3  # copies of the activations: values, their gradients, and the unrolled patches of convolutions
GRADIENT_COPIES = 2  # an item's gradient and its square
HESSIAN_ACTIVATIONS = 5  # values, their gradients, and the gradients of both
LOG_ODDS_CHANGE = 1 / 4  # by a step of h
WEIGHT_CHANGE = 1 / 20  # at most, by a step of h, in units of the root mean square of the weights
LONG_STEP = 2  # in units of h
PASSES_PER_PROBE = 4  # of the network: both steps, in both directions


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
            for inputs, labels in run(list, landscape.parts(batch, GRADIENT_ACTIVATIONS, GRADIENT_COPIES)):
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


def hessian_products(
    landscape: Landscape, directions: Callable[[], Iterable[Params]], tick: Tick
) -> tuple[Tensor, Tensor]:
    """For every direction v: v^T H v of the log-likelihood, [n], and the slope of every ln L_i along v, [n, N].

    The mean of v^T H v over directions is the trace of H, the Laplacian (Hutchinson, 1990). The mean of the squared
    slopes is the trace of the Fisher information, which is known exactly, so a probe's error in the one predicts its
    error in the other.
    """
    forms, slopes = [], []
    with twice_differentiable() as run:
        for batch in landscape.data:
            parts, rest = run(list, landscape.parts(batch, HESSIAN_ACTIVATIONS)), iter(directions())
            rows = []
            while group := list(islice(rest, max(1, MEMORY_BYTES // landscape.direction_bytes))):
                found = [run(_along_directions, landscape, part, group, tick) for part in parts]
                group_forms, group_slopes = zip(*found, strict=True)
                rows.append((torch.stack(group_forms).sum(dim=0), torch.cat(group_slopes, dim=1)))
            batch_forms, batch_slopes = zip(*rows, strict=True)
            forms.append(torch.cat(batch_forms))
            slopes.append(torch.cat(batch_slopes))
    return torch.stack(forms).sum(dim=0), torch.cat(slopes, dim=1)


def _along_directions(landscape: Landscape, part: Batch, group: list[Params], tick: Tick) -> tuple[Tensor, Tensor]:
    """v^T H v, [group], and the slopes, [group, n], on one part of a batch."""
    inputs, labels = part
    derivatives = second_derivatives(
        lambda params: landscape.of_items(landscape.outputs(params, inputs), labels), landscape.center
    )
    forms, slopes = [], []
    for direction in group:
        product, slope = derivatives(direction)
        forms.append(torch.stack([(in_float64(product[name]) * in_float64(v)).sum() for name, v in direction.items()]))
        slopes.append(in_float64(slope))
        tick(len(labels))
    return torch.stack(forms).sum(dim=1), torch.stack(slopes)


def second_derivatives(
    function: Callable[[Params], Tensor], params: Params
) -> Callable[[Params], tuple[Params, Tensor]]:
    """A function from a direction v to H v of the sum of `function`'s values [n], and to the slope J v of each, [n].

    Both are derivatives of the weighted gradient J^T c at c = 1: along v with respect to theta, and to c. All
    directions share one graph of it. If an operation of the network has no second derivative in reverse mode, each
    direction is computed forward over reverse.
    """

    def weighted(at: Params, weights: Tensor) -> Params:
        gradient: Params = vjp(function, at)[1](weights)[0]
        return gradient

    def summed(at: Params) -> tuple[Tensor, Tensor]:
        values = function(at)
        return values.sum(), values

    in_reverse = vjp(weighted, params, torch.ones_like(function(params)))[1]

    def along(direction: Params) -> tuple[Params, Tensor]:
        found: tuple[Params, Tensor]
        try:
            found = in_reverse(direction)
        except RuntimeError:  # "not implemented"; an error of the network itself is raised again below
            found = jvp(grad(summed, has_aux=True), (params,), (direction,))[1]
        return found

    return along


def step_size(landscape: Landscape, gradients: ItemGradients, laplacian: float) -> float:
    """The h at which h v changes the log-odds of the labels by a quarter, for the items that dominate the sum.

    Truncation needs a short step: after the extrapolation below, a change x has an error of x^4 / 90, here 4e-5.
    Rounding needs a long step: its error is u / x^2, 2e-6 in float32. Kinks do too: their noise falls as 1 / h.
    Log-odds instead of ln L_i, because a certain item hides large changes behind a small gradient. A density has no
    odds, so the step follows its curvature as well. And a step is at most a twentieth of the root mean square of the
    weights, because moving all layers together bends the network itself.
    """
    if landscape.likelihood.name == "gaussian":
        steepness = max(_weighted_mean(gradients.squares, gradients.squares), abs(laplacian) / len(gradients.squares))
    else:
        doubt = -gradients.log_likelihoods.expm1()
        squares = torch.where(doubt > 0, gradients.squares / doubt.square(), 0.0)
        steepness = _weighted_mean(squares, doubt * squares)
    squared_weights = sum(float(value.double().square().sum()) for value in landscape.center.values())
    largest = WEIGHT_CHANGE * math.sqrt(squared_weights / landscape.dimensions) or math.inf
    return min(LOG_ODDS_CHANGE * steepness**-0.5 if steepness else math.inf, largest, 1.0)


def _weighted_mean(values: Tensor, weights: Tensor) -> float:
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total else 0.0


@torch.no_grad()
def directional_derivatives(
    landscape: Landscape, directions: Callable[[], Iterable[Params]], step: float, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Second and fourth derivatives of every L_i along every probe v, divided by L_i, [n, N].

    Central differences at h and 2h, combined so that the error is of order h^4 (Richardson's extrapolation). The mean
    of the second is Laplacian(L_i) / L_i of eq. 15. Near the optimum the two traces of eq. 20 almost cancel, and the
    noise of their sum hides it; here both share the probe v, and cancel before they are averaged. Small steps also
    cross the kinks of a ReLU, which derivatives do not see, and count them.
    """
    found = [_differences(landscape, batch, directions(), step, tick) for batch in landscape.data]
    seconds, fourths = zip(*found, strict=True)
    return torch.cat(seconds, dim=1), torch.cat(fourths, dim=1)


def _differences(
    landscape: Landscape, batch: Batch, directions: Iterable[Params], step: float, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Both derivatives on one batch."""
    inputs, labels = batch
    center = landscape.center

    def log_likelihoods(params: Params) -> Tensor:
        tick(len(labels))
        return landscape.of_items(in_float64(landscape.outputs(params, inputs)), labels.cpu())

    base = log_likelihoods(center)

    def change(direction: Params, steps: int) -> Tensor:
        """L_i(theta* + steps h v) / L_i(theta*) - 1."""
        moved = {name: value + steps * step * direction[name] for name, value in center.items()}
        return (log_likelihoods(moved) - base).expm1()

    seconds, fourths = [], []
    for direction in directions:
        near = (change(direction, 1) + change(direction, -1)) / step**2
        far = (change(direction, LONG_STEP) + change(direction, -LONG_STEP)) / (LONG_STEP * step) ** 2
        seconds.append((LONG_STEP**2 * near - far) / (LONG_STEP**2 - 1))
        fourths.append(12 * (far - near) / ((LONG_STEP**2 - 1) * step**2))
    return torch.stack(seconds), torch.stack(fourths)
