"""The temperature T: the distribution p^(1/T) under which the labels are most likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from peppermill.advice import advise
from peppermill.likelihood import temper
from peppermill.processes.results import own_totals
from peppermill.search import Jet, climb

LOG_TEMPERATURES = (math.log(1 / 20), math.log(20))
TRIED = 15  # temperatures at once, closest to each other around T = 1,
CROWDED = 2.6  # by so much, as the argument of a hyperbolic sine
TOLERANCE = 1e-6  # of ln T
FLOOR = -1e15  # instead of minus infinity, so that its product with a probability of 0 is 0

_LOWEST = (
    "the best temperature is 1/20, the lowest that is tried: nearly every validation item is predicted right, so they "
    "do not say how sure the network may be. Use more validation items, or no temperature."
)
_HIGHEST = (
    "the best temperature is 20, the highest that is tried: on the validation data the predictions say next to nothing "
    "about the labels. Are the labels numbered as the network's outputs?"
)


def best_temperature(
    log_probs: Tensor, labels: Tensor, totals: Callable[[Tensor], Sequence[float]] = own_totals
) -> tuple[float, float]:
    """The T of largest likelihood for these log-probabilities, and that log-likelihood; T = 1 is in the race.

    The log-likelihood is concave in 1/T, so that it has one peak over ln T. `totals` adds up rows [k, N] of items that
    several processes may share: twice, or a few times more, because each time is a message.
    """

    def jets(log_temperatures: Sequence[float]) -> list[Jet]:
        rows = [row for x in log_temperatures for row in _jets(temper(log_probs, math.exp(x)), labels)]
        found = totals(torch.stack(rows))
        return list(zip(found[::3], found[1::3], found[2::3], strict=True))

    log_temperature, value = climb(jets, _grid(), TOLERANCE)
    return math.exp(log_temperature), value


def at_limit(temperature: float) -> bool:
    """Whether T is the lowest or the highest that is tried: the likelihood then has no maximum inside."""
    return min(abs(math.log(temperature) - limit) for limit in LOG_TEMPERATURES) < 1e-3


def mention_limit(temperature: float) -> None:
    """Warn where T ended at a limit."""
    if at_limit(temperature):
        advise(_LOWEST if temperature < 1 else _HIGHEST)


def _jets(tempered: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ln p_y of each item, [N], and its first two derivatives by ln T: E[ln p] - ln p_y, and ln p_y - E[ln p] - Var."""
    values = tempered.gather(1, labels[:, None]).squeeze(1)
    tempered = tempered.clamp(min=FLOOR)
    weighted = tempered.exp().mul_(tempered)
    mean = weighted.sum(dim=1)
    slopes = mean - values.clamp(min=FLOOR)
    variances = weighted.mul_(tempered).sum(dim=1) - mean.square()
    return values, slopes, -slopes - variances.clamp(min=0)


def _grid() -> list[float]:
    """Values of ln T from one limit to the other; 0 is among them, exactly."""
    steps = range(-(TRIED // 2), TRIED // 2 + 1)
    return [LOG_TEMPERATURES[1] * math.sinh(CROWDED * k / steps[-1]) / math.sinh(CROWDED) for k in steps]
