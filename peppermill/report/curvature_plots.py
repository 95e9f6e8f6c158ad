"""The figures of the local analysis: predicted against measured effect, and overfitting against what PEP finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peppermill.curvature.prediction import EffectPoint
from peppermill.evaluation.overfitting import NAMES, OverfittingProbe
from peppermill.report.style import BLUE, COLUMN, GREY, INK, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 100  # of the predicted curve


@styled
def effect_curves(points: Sequence[EffectPoint], items: int, upper: float) -> Figure:
    """B_sigma of eq. 15 with a band of two errors, and the measured L(sigma) - L(0), for each item, against sigma.

    `upper` is where the believable range ends.
    """
    figure, (axis,) = new_figure(1, COLUMN * 1.35, COLUMN)
    last = max(points, key=lambda point: point.sigma)
    rate, error = (value / last.sigma**2 / items for value in (last.predicted, last.predicted_error))
    sigmas = [last.sigma * step / STEPS for step in range(STEPS + 1)]
    band = [[(rate + sign * 2 * error) * sigma**2 for sigma in sigmas] for sign in (-1, 1)]
    if upper < last.sigma:
        axis.axvspan(0, upper, color=GREY, alpha=0.18, linewidth=0, label="prediction believable")
    axis.fill_between(sigmas, band[0], band[1], color=ORANGE, alpha=0.25, linewidth=0)
    axis.plot(sigmas, [rate * sigma**2 for sigma in sigmas], color=ORANGE, linestyle="--", label="predicted, $B_σ/N$")
    measured = [point.measured / items for point in points]
    spread = [2 * point.measured_error / items for point in points]
    axis.errorbar(
        [point.sigma for point in points],
        measured,
        yerr=spread,
        color=BLUE,
        marker="o",
        markersize=3,
        linewidth=1.2,
        elinewidth=0.8,
        label="measured, $(L(σ) − L(0))/N$",
    )
    axis.axhline(0, color=INK, linewidth=0.6, linestyle=":")
    low, high = min(0.0, *measured), max(0.0, *measured)
    axis.set_ylim(low - 0.35 * (high - low), high + 0.35 * (high - low))
    axis.set(xlim=(0, last.sigma * 1.03), xlabel="σ", ylabel="gain in log-likelihood, per item")
    axis.legend(frameon=False, fontsize=7, loc="upper left" if high > -low else "lower left")
    return figure


@styled
def overfitting_scatter(probe: OverfittingProbe) -> Figure:
    """Figure 3 (b-d): overfitting against the PEP effect, sigma* and the effect rate; every checkpoint is shown."""
    shown = ("pep_effect", "sigma", "effect_rate")
    figure, axes = new_figure(len(shown), 2.35 * len(shown), 2.5)
    overfitting = [point.overfitting for point in probe.points]
    for axis, name in zip(axes, shown, strict=True):
        values = [getattr(point, name) for point in probe.points]
        axis.scatter(overfitting, values, s=16, color=BLUE, alpha=0.65, edgecolors="white", linewidths=0.4)
        axis.axhline(0, color=INK, linewidth=0.6, linestyle=":")
        if min(overfitting) < 0:
            axis.axvline(0, color=INK, linewidth=0.6, linestyle=":")
        found = probe.correlations.get(name)
        rho = f"rank correlation {found.rho:.2f}" if found else "no correlation: one value"
        axis.set_title(f"{NAMES[name]}\n{rho}", fontsize=8)
        axis.set(xlabel="overfitting: test − training NLL")
    return figure
