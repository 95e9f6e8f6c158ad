"""Means over probes, with errors that can be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats
from torch import Tensor

FEWEST = 8  # probes from which a line is worth its two degrees of freedom


@dataclass(frozen=True)
class Control:
    """A quantity that every probe measures beside the wanted one, [n], and whose mean is known exactly."""

    values: Tensor
    mean: float

    def weight(self, wanted: Tensor) -> float:
        """How much of the control's excess is in the wanted quantity: the slope of a least-squares line."""
        excess = self.values - self.values.mean()
        spread = float(excess.square().sum())
        return float((wanted * excess).sum()) / spread if len(wanted) >= FEWEST and spread else 0.0


def estimate(wanted: Tensor, control: Control) -> tuple[float, float]:
    """The wanted quantity where the control has its true mean, and the standard error of that, from probes [n].

    A least-squares line of one on the other, read off at the known mean: of two estimates that share their noise, the
    known error of one is taken off the other. The error is scaled by Student's t, so that two of them hold the truth as
    often as two standard deviations of a normal distribution do.
    """
    count, weight = len(wanted), control.weight(wanted)
    excess = control.values - control.mean
    left = wanted - weight * excess
    freedom = count - (2 if weight else 1)
    spread = float((control.values - control.values.mean()).square().sum())
    leverage = 1 / count + (float(excess.mean()) ** 2 / spread if weight else 0.0)
    variance = float((left - left.mean()).square().sum()) / freedom
    return float(left.mean()), math.sqrt(variance * leverage) * two_sided(freedom) / 2


def standard_error(values: Tensor) -> float:
    """Of the mean of values [n], in the same sense."""
    count = len(values)
    return float(values.std()) / math.sqrt(count) * two_sided(count - 1) / 2


def two_sided(freedom: int) -> float:
    """What two standard deviations are in Student's t."""
    return float(stats.t.ppf(stats.norm.cdf(2), freedom))
