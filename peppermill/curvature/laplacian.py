"""The Laplacian of the log-likelihood, eq. 16 to 20, by the estimator of Hutchinson (1990).

E[v^T H v] is the trace of H for any v with mean 0 and covariance 1, and v^T H v costs one product of the Hessian with
v. The same pass gives the slope of every ln L_i along v. The mean of the squared slopes is the trace of the Fisher
information, which is known exactly, so a probe's error in the one predicts its error in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from peppermill.curvature.landscape import Landscape, in_float64, twice_differentiable
from peppermill.types import Batch, Params, Tick

ACTIVATION_COPIES = 5  # values, their gradients, and the gradients of both


@dataclass(frozen=True)
class Products:
    """For every direction v: v^T H v of the log-likelihood, [n], and the slope of every ln L_i along v, [n, N]."""

    forms: Tensor
    slopes: Tensor


def hessian_products(landscape: Landscape, directions: Callable[[], Iterable[Params]], tick: Tick) -> Products:
    """v^T H v of L(theta) = sum_i ln L_i(theta) at theta*; its mean over directions is the Laplacian."""
    forms, slopes = [], []
    with twice_differentiable() as run:
        for batch in landscape.data:
            parts, rest = run(list, landscape.parts(batch, ACTIVATION_COPIES)), iter(directions())
            rows = []
            while group := list(islice(rest, landscape.directions_at_once)):
                found = [run(_along_directions, landscape, part, group, tick) for part in parts]
                group_forms, group_slopes = zip(*found, strict=True)
                rows.append((torch.stack(group_forms).sum(dim=0), torch.cat(group_slopes, dim=1)))
            batch_forms, batch_slopes = zip(*rows, strict=True)
            forms.append(torch.cat(batch_forms))
            slopes.append(torch.cat(batch_slopes))
    return Products(torch.stack(forms).sum(dim=0), torch.cat(slopes, dim=1))


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
