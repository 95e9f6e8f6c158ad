"""sum_i Laplacian(L_i) / L_i of eq. 15, directly: from small steps theta* + h v and theta* - h v.

Near the optimum the two traces of eq. 20 almost cancel, and the noise of their sum hides it. Here both traces of every
item share the probe v, so that they cancel before they are averaged. Nothing is differentiated: small steps cross the
kinks of a ReLU, which derivatives do not see, and count them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from peppermill.curvature.fisher import ItemGradients
from peppermill.curvature.landscape import Landscape, in_float64
from peppermill.types import Batch, Params, Tick

LOG_ODDS_CHANGE = 1 / 4  # by a step of h
WEIGHT_CHANGE = 1 / 20  # at most, by a step of h, in units of the root mean square of the weights
LONG_STEP = 2  # in units of h
PASSES_PER_PROBE = 4  # of the network: both steps, in both directions


@dataclass(frozen=True)
class Directional:
    """Second and fourth derivatives of every L_i along every probe v, divided by L_i, [n, N]."""

    second: Tensor
    fourth: Tensor


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
) -> Directional:
    """Central differences at h and 2h, combined so that the error is of order h^4 (Richardson's extrapolation)."""
    found = [_differences(landscape, batch, directions(), step, tick) for batch in landscape.data]
    seconds, fourths = zip(*found, strict=True)
    return Directional(torch.cat(seconds, dim=1), torch.cat(fourths, dim=1))


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
