"""The maximum of a gain that starts at sigma = 0, estimated from a few of its values.

L(sigma) - L(0) begins like sigma^2, so the gain divided by sigma^2, which bends less, is interpolated over ln sigma. A
curve from a subsample is corrected by the few values that are known for all items; the two differ by something smooth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import Akima1DInterpolator, KroghInterpolator

CORRECTION_REACH = 0.5  # in ln sigma: beyond the known values by more than this, the correction stays constant
GRID_POINTS = 401  # between the two neighbors of the best value, where the maximum is looked for


@dataclass(frozen=True)
class GainCurve:
    """Gains over sigma = 0 by sigma: on the subsample, and on all items."""

    sampled: Mapping[float, float]
    whole: Mapping[float, float]

    def summit(self) -> tuple[float, float]:
        """The sigma at which all items are expected to gain most, and that gain."""
        places = np.log(_sigmas(self.sampled))
        best = int(np.argmax(self.gains(places)))
        neighbors = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
        grid = np.append(np.linspace(*neighbors, GRID_POINTS), places[best])
        gains = self.gains(grid)
        top = int(np.argmax(gains))
        return float(np.exp(grid[top])), float(gains[top])

    def gains(self, places: np.ndarray) -> np.ndarray:
        """The expected gains of all items at these values of ln sigma."""
        rates = self._sampled_rates(places)
        known = dict(list(self.whole.items())[-3:])
        sigmas = _sigmas(known)
        if len(sigmas):
            # The rates of all items less those of the subsample, as a polynomial in sigma^2 through the last values.
            ends = np.log(sigmas[[0, -1]]) + np.array([-CORRECTION_REACH, CORRECTION_REACH])
            differences = _values(known, sigmas) / sigmas**2 - self._sampled_rates(np.log(sigmas))
            squares = (sigmas / sigmas[-1]) ** 2  # scaled, so that the polynomial is well conditioned
            correction = KroghInterpolator(squares, differences)
            rates = rates + correction(np.exp(2 * np.clip(places, *ends)) / sigmas[-1] ** 2)
        gains: np.ndarray = np.exp(2 * places) * rates
        return gains

    def _sampled_rates(self, places: np.ndarray) -> np.ndarray:
        """Gain divided by sigma^2 on the subsample; constant beyond its first and last sigma."""
        sigmas = _sigmas(self.sampled)
        rates = _values(self.sampled, sigmas) / sigmas**2
        if len(sigmas) == 1:
            return np.full_like(places, rates[0])
        known = np.log(sigmas)
        between: np.ndarray = Akima1DInterpolator(known, rates)(np.clip(places, known[0], known[-1]))
        return between


def _sigmas(gains: Mapping[float, float]) -> np.ndarray:
    """The values of sigma at which the curve is finite, ascending."""
    return np.array(sorted(sigma for sigma, gain in gains.items() if np.isfinite(gain)))


def _values(gains: Mapping[float, float], sigmas: np.ndarray) -> np.ndarray:
    return np.array([gains[sigma] for sigma in sigmas])
