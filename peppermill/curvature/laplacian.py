"""The Laplacian of the log-likelihood, eq. 16 to 20, by the estimator of Hutchinson (1990).

E[v^T H v] is the trace of H for any v of mean 0 and covariance 1; v^T H v costs one product of the Hessian with v. The
same pass gives the slope of every ln L_i along v, whose squares have the trace of the Fisher information for their
mean: it is known exactly, and what a probe gets wrong there tells what it gets wrong elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from peppermill.curvature.landscape import Landscape, part, twice_differentiable, wide
from peppermill.curvature.memory import BUDGET, inputs_at_once
from peppermill.data import Batches
from peppermill.types import Batch, Params, Tick

COPIES = 5  # of the activations: values, what flows back, and what flows back through both

#: From a direction v to the pair (H v, J v).
Along = Callable[[Params], tuple[Params, Tensor]]


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
            rows = [_along(landscape, chunk, group, size, tick) for group in _groups(landscape, directions())]
            forms.append(torch.cat([form for form, _ in rows]))
            slopes.append(torch.cat([slope for _, slope in rows]))
    return Products(torch.stack(forms).sum(dim=0), torch.cat(slopes, dim=1))


def second_derivatives(function: Callable[[Params], Tensor], params: Params) -> Along:
    """For any direction v: H v of the sum of a function's values [n], and the slope J v of each of them, [n].

    Both are derivatives of the weighted gradient J^T c at c = 1: along v with respect to theta, and to c. One graph of
    it serves all directions. Where an operation of the network has no second derivative in reverse, each direction is
    taken forward over reverse.
    """
    ones = torch.ones_like(function(params))

    def weighted(at: Params, weights: Tensor) -> Params:
        gradient: Params = vjp(function, at)[1](weights)[0]
        return gradient

    in_reverse: Along = vjp(weighted, params, ones)[1]

    def along(direction: Params) -> tuple[Params, Tensor]:
        try:
            return in_reverse(direction)
        except RuntimeError:  # "is not implemented", or a fault of the network's own, which comes up again here
            return _forward_over_reverse(function, params, direction)

    return along


def _forward_over_reverse(
    function: Callable[[Params], Tensor], params: Params, direction: Params
) -> tuple[Params, Tensor]:
    def summed(at: Params) -> tuple[Tensor, Tensor]:
        values = function(at)
        return values.sum(), values

    found: tuple[Params, Tensor] = jvp(grad(summed, has_aux=True), (params,), (direction,))[1]
    return found


def _groups(landscape: Landscape, directions: Iterable[Params]) -> Iterator[list[Params]]:
    """As many directions at once as fit into the budget of memory."""
    most, rest = max(1, BUDGET // (landscape.dtype.itemsize * landscape.dimensions)), iter(directions)
    while group := list(islice(rest, most)):
        yield group


def _along(
    landscape: Landscape, chunk: list[Batch], group: list[Params], size: int, tick: Tick
) -> tuple[Tensor, Tensor]:
    """v^T H v, [group], and slopes [group, n], over one chunk of the data."""
    forms, slopes = torch.zeros(len(group), dtype=torch.float64), []
    for batch in chunk:
        for start in range(0, len(batch[1]), size):
            inputs, labels = part(batch, start, start + size)
            along = second_derivatives(
                lambda params, x=inputs, y=labels: landscape.log_likelihoods(params, x, y),  # type: ignore[misc]
                landscape.center,
            )
            rows = []
            for row, direction in enumerate(group):
                product, slope = along(direction)
                forms[row] += sum(float((wide(product[name]) * wide(v)).sum()) for name, v in direction.items())
                rows.append(wide(slope))
                tick(len(labels))
            slopes.append(torch.stack(rows))
    return forms, torch.cat(slopes, dim=1)
