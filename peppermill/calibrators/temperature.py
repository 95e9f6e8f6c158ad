"""The temperature T: the distribution p^(1/T) under which the labels are most likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from peppermill.plumbing.warnings import warn_user
from peppermill.processes.results import own_totals
from peppermill.tuning.search import Jet, climb

LOG_TEMPERATURES = (math.log(1 / 20), math.log(20))
TRIED = 9  # temperatures at once, closest to each other around T = 1,
CROWDED = 2.2  # by so much, as the argument of a hyperbolic sine
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

    items = _Items(log_probs, labels)

    def jets(log_temperatures: Sequence[float]) -> list[Jet]:
        found = totals(items.jets(log_temperatures))
        return list(zip(found[::3], found[1::3], found[2::3], strict=True))

    log_temperature, value = climb(jets, _grid(), TOLERANCE)
    return math.exp(log_temperature), value


def at_limit(temperature: float) -> bool:
    """Whether T is the lowest or the highest that is tried: the likelihood then has no maximum inside."""
    return min(abs(math.log(temperature) - limit) for limit in LOG_TEMPERATURES) < 1e-3


def mention_limit(temperature: float) -> None:
    """Warn where T ended at a limit."""
    if at_limit(temperature):
        warn_user(_LOWEST if temperature < 1 else _HIGHEST)


class _Items:
    """What every T needs of the items: ln p_k and ln p_y less the largest ln p of the item, z [N, K] and z_y [N].

    An item's numbers are the same to the last bit whatever other items are beside it: processes may part them.
    """

    def __init__(self, log_probs: Tensor, labels: Tensor) -> None:
        self.log_likelihoods = log_probs.gather(1, labels[:, None]).squeeze(1)
        largest = log_probs.amax(dim=1)
        self.z = (log_probs - largest[:, None]).clamp_(min=FLOOR)
        self.z_of_label = self.log_likelihoods - largest

    def jets(self, log_temperatures: Sequence[float]) -> Tensor:
        """Three rows for each T, [3 k, N]: a GPU computes all at once, a CPU one T after another in its cache."""
        together = [log_temperatures] if self.z.is_cuda else [[x] for x in log_temperatures]
        return torch.cat([self._jets(part) for part in together])

    def _jets(self, log_temperatures: Sequence[float]) -> Tensor:
        """ln p_y at each T and its first two derivatives by ln T.

        With powers w = p^(1/T), ln p_y = z_y / T - ln sum w; the first is (E[z] - z_y) / T, the second its negative
        less Var[z] / T^2.
        """
        inverse = self.z.new_tensor([math.exp(-x) for x in log_temperatures])[:, None]
        powers = self.z.mul(inverse[:, :, None]).exp_()
        total = powers.sum(dim=2)
        mean = powers.mul_(self.z).sum(dim=2).div_(total)
        variances = powers.mul_(self.z).sum(dim=2).div_(total).sub_(mean.square()).clamp_(min=0)
        values = self.z_of_label.mul(inverse).sub_(total.log())
        values = torch.where(inverse == 1, self.log_likelihoods, values)  # at T = 1 to the last bit
        slopes = mean.sub_(self.z_of_label.clamp(min=FLOOR)).mul_(inverse)
        return torch.stack([values, slopes, variances.mul_(-inverse.square()).sub_(slopes)], dim=1).flatten(0, 1)


def _grid() -> list[float]:
    """Values of ln T from one limit to the other; 0 is among them, exactly."""
    steps = range(-(TRIED // 2), TRIED // 2 + 1)
    return [LOG_TEMPERATURES[1] * math.sinh(CROWDED * k / steps[-1]) / math.sinh(CROWDED) for k in steps]
