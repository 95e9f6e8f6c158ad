"""sum_i Laplacian(L_i) / L_i of eq. 15, directly: from small steps theta* + h v and theta* - h v.

Near the optimum the two traces of eq. 20 all but cancel, and the noise of their sum hides it. Here both halves of every
item share the probe v, so that what cancels cancels before it is averaged. Nothing is differentiated: the kinks of a
ReLU, which no derivative sees, are stepped over and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from peppermill.curvature.fisher import ItemGradients
from peppermill.curvature.landscape import Landscape, wide
from peppermill.data import Batches
from peppermill.types import Batch, Params, Tick

CHANGE = 1 / 4  # of log-odds, by a step of h
RELATIVE = 1 / 20  # of the weights' root mean square, by a step of h
FAR = 2  # the longer step, in units of h
PASSES = 4  # of the network for each probe: both steps, to both sides


@dataclass(frozen=True)
class Directional:
    """Second and fourth derivatives along every probe v of every L_i, divided by L_i, [n, N]."""

    second: Tensor
    fourth: Tensor


def step_size(landscape: Landscape, gradients: ItemGradients, laplacian: float) -> float:
    """The h at which h v changes the log-odds of the labels by a quarter, for the items that carry the sum.

    Truncation calls for a short step: after the extrapolation below it leaves x^4 / 90 of a change x, 4e-5. Rounding
    calls for a long one, and leaves u / x^2, 2e-6 in float32. So do kinks, whose noise falls as 1 / h. Log-odds, not ln
    L_i, because a certain item hides large changes behind a small gradient. A density has no odds, so there the
    curvature has a say. And no step exceeds a twentieth of the weights' root mean square, because layers that are
    moved together bend the network itself.
    """
    if landscape.likelihood.name == "gaussian":
        steep = max(_weighted(gradients.squares, gradients.squares), abs(laplacian) / len(gradients.squares))
    else:
        doubt = -gradients.log_likelihoods.expm1()
        squares = torch.where(doubt > 0, gradients.squares / doubt.square(), 0.0)
        steep = _weighted(squares, doubt * squares)
    squared_weights = sum(float(value.double().square().sum()) for value in landscape.center.values())
    weights = math.sqrt(squared_weights / landscape.dimensions)
    return min(CHANGE * steep**-0.5 if steep else math.inf, RELATIVE * weights or math.inf, 1.0)


def _weighted(values: Tensor, weights: Tensor) -> float:
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total else 0.0


@torch.no_grad()
def directional_derivatives(
    landscape: Landscape, data: Batches, directions: Callable[[], Iterable[Params]], step: float, tick: Tick
) -> Directional:
    """Central differences at h and 2h, combined so that the error is of order h^4 (Richardson's extrapolation)."""
    parts = []
    for chunk in data.chunks():
        base = _log_likelihoods(landscape, landscape.center, chunk, tick)
        rows = [_along(landscape, direction, chunk, base, step, tick) for direction in directions()]
        parts.append([torch.stack(column) for column in zip(*rows, strict=True)])
    return Directional(*(torch.cat(column, dim=1) for column in zip(*parts, strict=True)))


def _along(
    landscape: Landscape, direction: Params, chunk: list[Batch], base: Tensor, step: float, tick: Tick
) -> tuple[Tensor, Tensor]:
    def change(steps: int) -> Tensor:
        """ln L_i(theta* + steps h v) - ln L_i(theta*)."""
        moved = {name: value + steps * step * direction[name] for name, value in landscape.center.items()}
        return _log_likelihoods(landscape, moved, chunk, tick) - base

    up, down, far_up, far_down = (change(steps) for steps in (1, -1, FAR, -FAR))
    near = (up.expm1() + down.expm1()) / step**2
    far = (far_up.expm1() + far_down.expm1()) / (FAR * step) ** 2
    return (FAR**2 * near - far) / (FAR**2 - 1), 12 * (far - near) / ((FAR**2 - 1) * step**2)


def _log_likelihoods(landscape: Landscape, params: Params, chunk: list[Batch], tick: Tick) -> Tensor:
    found = []
    for inputs, labels in chunk:
        found.append(landscape.of_items(wide(landscape.outputs(params, inputs)), labels.cpu()))
        tick(len(labels))
    return torch.cat(found)
