"""Where a curve that starts at sigma = 0 has its summit, from few of its values. It knows nothing of networks.

L(sigma) - L(0) begins like sigma^2, so what is interpolated is the gain divided by sigma^2, over ln sigma: it bends
less than the gain itself. A sketch from part of the items is bent onto the few values that were paid for on all items:
the two differ by something smooth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import Akima1DInterpolator

REACH = 0.5  # of ln sigma, beyond the values that are known on all items: so far the correction is believed
GRID = 401  # places between two neighbors of the best point at which the curve is looked at

#: The gain divided by sigma^2, of arrays of ln sigma.
Rate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Sketch:
    """Gains over sigma = 0 by sigma: `part` as some of the items show them, `whole` as all of them do."""

    part: Mapping[float, float]
    whole: Mapping[float, float]

    def summit(self) -> tuple[float, float]:
        """The sigma at which all items are expected to gain most, and that gain."""
        places = np.log(_finite(self.part))
        best = int(np.argmax(self.gains(places)))
        neighbors = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
        grid = np.append(np.linspace(*neighbors, GRID), places[best])
        gains = self.gains(grid)
        top = int(np.argmax(gains))
        return float(np.exp(grid[top])), float(gains[top])

    def gains(self, places: np.ndarray) -> np.ndarray:
        """What all items are expected to gain at these places on the axis of ln sigma."""
        rate = _interpolated(self.part)
        gains: np.ndarray = np.exp(2 * places) * (rate(places) + self._correction(rate)(places))
        return gains

    def _correction(self, rate: Rate) -> Rate:
        """The rate of all items less that of the part, through the last three values that are known.

        A polynomial in sigma^2, as the expansion of L(sigma) is.
        """
        sigmas = _finite(dict(list(self.whole.items())[-3:]))
        if not len(sigmas):
            return np.zeros_like
        known = np.log(sigmas)
        polynomial = np.poly1d(np.polyfit(sigmas**2, _rates(self.whole, sigmas) - rate(known), len(sigmas) - 1))
        return lambda places: polynomial(np.exp(2 * np.clip(places, known[0] - REACH, known[-1] + REACH)))


def _interpolated(gains: Mapping[float, float]) -> Rate:
    sigmas = _finite(gains)
    rates = _rates(gains, sigmas)
    if len(sigmas) == 1:
        return lambda places: np.full_like(places, rates[0])
    between: Rate = Akima1DInterpolator(np.log(sigmas), rates)
    return lambda places: between(np.clip(places, np.log(sigmas[0]), np.log(sigmas[-1])))


def _finite(gains: Mapping[float, float]) -> np.ndarray:
    """Where the curve has not broken down, ascending."""
    return np.array(sorted(sigma for sigma, gain in gains.items() if np.isfinite(gain)))


def _rates(gains: Mapping[float, float], sigmas: np.ndarray) -> np.ndarray:
    rates: np.ndarray = np.array([gains[sigma] for sigma in sigmas]) / sigmas**2
    return rates
