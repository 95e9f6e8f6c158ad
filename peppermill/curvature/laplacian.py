"""The Laplacian of the log-likelihood, eq. 16 to 20, by the estimator of Hutchinson (1990).

E[v^T H v] is the trace of H for any v of mean 0 and covariance 1; v^T H v costs one product of the Hessian with v. The
same pass gives the slope of every ln L_i along v, whose squares have the trace of the Fisher information for their
mean: it is known exactly, and what a probe gets wrong there tells what it gets wrong elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from peppermill.curvature.landscape import Landscape, part, twice_differentiable, wide
from peppermill.curvature.memory import inputs_at_once
from peppermill.data import Batches
from peppermill.types import Batch, Params, Tick

COPIES = 5  # of the activations: values, their tangents, and what flows back through both


@dataclass(frozen=True)
class Products:
    """For every direction v: v^T H v of the log-likelihood, [n], and the slope of every ln L_i along v, [n, N]."""

    forms: Tensor
    slopes: Tensor


def hessian_products(
    landscape: Landscape, data: Batches, directions: Callable[[], Iterable[Params]], tick: Tick
) -> Products:
    """v^T H v of L(theta) = sum_i ln L_i(theta) at theta*; its mean over directions is the Laplacian."""
    forms, slopes = [], []
    with twice_differentiable():
        for chunk in data.chunks():
            size = inputs_at_once(landscape, chunk[0], COPIES)
            rows = [_along(landscape, chunk, direction, size, tick) for direction in directions()]
            forms.append(torch.tensor([form for form, _ in rows], dtype=torch.float64))
            slopes.append(torch.stack([slope for _, slope in rows]))
    return Products(torch.stack(forms).sum(dim=0), torch.cat(slopes, dim=1))


def differentiate_along(
    function: Callable[[Params], Tensor], params: Params, direction: Params
) -> tuple[Params, Tensor]:
    """H v of the sum of a function's values [n], and the slope J v of each of them, [n].

    Forward over reverse: the derivative along v of the gradient. Where an operation of the network has no forward
    derivative, reverse over reverse.
    """

    def summed(at: Params) -> tuple[Tensor, Tensor]:
        values = function(at)
        return values.sum(), values

    gradient = grad(summed, has_aux=True)
    try:
        product, slopes = jvp(gradient, (params,), (direction,))[1]
    except RuntimeError:  # "does not support forward AD"; a fault of the network's own comes up again below
        product = vjp(lambda at: gradient(at)[0], params)[1](direction)[0]
        slopes = _slopes(function, params, direction)
    return product, slopes


def _slopes(function: Callable[[Params], Tensor], params: Params, direction: Params) -> Tensor:
    """J v without forward derivatives: the derivative of c -> v^T J^T c, which is linear in c."""
    zeros = torch.zeros_like(function(params))
    slopes: Tensor = vjp(lambda cotangent: vjp(function, params)[1](cotangent)[0], zeros)[1](direction)[0]
    return slopes


def _along(landscape: Landscape, chunk: list[Batch], direction: Params, size: int, tick: Tick) -> tuple[float, Tensor]:
    form, slopes = 0.0, []
    for batch in chunk:
        for start in range(0, len(batch[1]), size):
            inputs, labels = part(batch, start, start + size)
            product, slope = differentiate_along(
                lambda params, x=inputs, y=labels: landscape.log_likelihoods(params, x, y),  # type: ignore[misc]
                landscape.center,
                direction,
            )
            form += sum(float((wide(product[name]) * wide(v)).sum()) for name, v in direction.items())
            slopes.append(wide(slope))
            tick(len(labels))
    return form, torch.cat(slopes)
