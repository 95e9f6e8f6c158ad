"""The temperature T: the labels are most likely under p^(1/T), normalised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import root_scalar
from torch import Tensor

from peppermill.likelihood import temper
from peppermill.plumbing.warnings import warn_user

TEMPERATURE_LIMITS = (1 / 20, 1000.0)  # at the highest, the predictions say nothing, as fits labels that are random
USELESS_TEMPERATURE = 20.0  # from here on, the predictions say next to nothing
TOLERANCE = 1e-8  # of ln T
CHUNK_NUMBERS = 2**15  # of log-probabilities at a time: 256 kB stay in a core's cache, and torch starts no threads
LOWEST_LOG_PROB = -1e15  # instead of minus infinity, so that its product with a probability of 0 is 0


@dataclass(frozen=True)
class Temperature:
    """Temperature scaling: p^(1/T), normalised; T = 1 changes nothing."""

    temperature: float = 1.0
    name: ClassVar[str] = "temperature"

    def __call__(self, log_probs: Tensor) -> Tensor:
        return temper(log_probs, self.temperature)

    def arrays(self) -> dict[str, Tensor]:
        return {}


def temperature_scaling(log_probs: Tensor, labels: Tensor, examples: Tensor) -> Temperature:
    """Temperature scaling of log-probabilities [N, K]."""
    return Temperature(best_temperature(log_probs, labels)[0])


def best_temperature(log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[float, float]:
    """The T of largest likelihood for log-probabilities [N, K] and labels [N], and that log-likelihood.

    The log-likelihood is concave in 1/T, so it has one peak: where its slope, sum_i E[z] - z_y, crosses 0. T = 1 is
    returned exactly if no other T is better. `weights`, [N], weigh the items.
    """
    z = log_probs.double()
    z = (z - z.amax(dim=1, keepdim=True)).clamp_(min=LOWEST_LOG_PROB)
    z_of_label = z.gather(1, labels[:, None]).squeeze(1)
    weights = torch.ones_like(z_of_label) if weights is None else weights
    length = max(1, CHUNK_NUMBERS // z.shape[1]) if z.device.type == "cpu" else len(z)

    def slope(log_temperature: float) -> float:
        total = -weights @ z_of_label
        for part, weight in zip(torch.split(z, length), torch.split(weights, length), strict=True):
            powers = part.mul(math.exp(-log_temperature)).exp_()
            total += weight @ (powers.mul(part).sum(dim=1) / powers.sum(dim=1))
        return float(total)

    def log_likelihood(temperature: float) -> float:
        tempered = temper(log_probs, temperature).gather(1, labels[:, None]).squeeze(1)
        return float((weights * tempered).sum())

    lower, upper = map(math.log, TEMPERATURE_LIMITS)
    if slope(lower) <= 0:
        temperature = TEMPERATURE_LIMITS[0]
    elif slope(upper) >= 0:
        temperature = TEMPERATURE_LIMITS[1]
    else:
        temperature = math.exp(root_scalar(slope, bracket=(lower, upper), method="brentq", xtol=TOLERANCE).root)
    best = max(1.0, temperature, key=log_likelihood)  # of equals, the first
    return best, log_likelihood(best)


def warn_at_limit(temperature: float) -> None:
    """Warn if T is the lowest that is tried, or so high that the predictions are of no use."""
    if math.isclose(temperature, TEMPERATURE_LIMITS[0], rel_tol=1e-3):
        warn_user(
            "the best temperature is 1/20, the lowest that is tried: nearly every validation item is predicted right, "
            "so they do not show how sure the network may be. Use more validation items, or no temperature."
        )
    elif temperature >= USELESS_TEMPERATURE:
        warn_user(
            f"the best temperature is {temperature:.0f}: on the validation data the predictions say next to nothing "
            "about the labels. Are the labels numbered as the network's outputs?"
        )
