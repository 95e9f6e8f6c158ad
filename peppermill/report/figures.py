"""The figures as static pictures, for papers and slides: colour-blind safe, readable in grey, sized for a column.

Every function returns a matplotlib figure; `save_figure` writes it as PNG, SVG or PDF, by the ending of the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from peppermill.evaluation.sweep import Sweep
from peppermill.metrics import Reliability
from peppermill.report.payload import worth_seeing
from peppermill.report.style import (
    BLUE,
    COLUMN,
    GREY,
    INK,
    ORANGE,
    line,
    new_figure,
    patch,
    refuse_other_formats,
    save_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Figures that live in files of their own, found when they are asked for: one row each.
ELSEWHERE = {
    "members_histogram": "peppermill.report.member_plots",
    "effect_curves": "peppermill.report.curvature_plots",
    "overfitting_scatter": "peppermill.report.curvature_plots",
    "size_curve": "peppermill.report.size_plots",
}

__all__ = ["refuse_other_formats", "reliability_diagrams", "save_figure", "sigma_curve", *ELSEWHERE]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ELSEWHERE:
        return getattr(import_module(ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


FEW = 20  # items; the paper's Table 1 drops bins that have no more


@styled
def sigma_curve(sweep: Sweep, sigma: float | None = None) -> Figure:
    """Figure 1: mean log-likelihood of the ensemble, of each member and of their average, against sigma.

    `sigma` is marked.
    """
    figure, (axis,) = new_figure(1, COLUMN * 1.35, COLUMN * 1.1)
    sigmas = [point.sigma for point in sweep.points]
    ensemble = [point.log_likelihood for point in sweep.points]
    means = [point.mean_member_log_likelihood for point in sweep.points]
    axis.plot(sigmas, ensemble, color=BLUE, linewidth=2, marker="o", markersize=3, label="ensemble, L(σ)/N")
    axis.plot(sigmas, means, color=ORANGE, linewidth=1.4, linestyle="--", label="average of the members")
    for member in zip(*(point.member_log_likelihoods for point in sweep.points), strict=True):
        axis.plot(sigmas, member, color=GREY, linewidth=0.6, alpha=0.7, zorder=1)
    axis.plot([], [], color=GREY, linewidth=0.6, label="each member")
    axis.axhline(ensemble[0], color=INK, linewidth=0.6, linestyle=":", label="the network itself, σ = 0")
    axis.set_ylim(*worth_seeing(ensemble))
    if sigma:
        axis.axvline(sigma, color=BLUE, linewidth=0.8, linestyle="-.")
        axis.annotate(f" σ* = {sigma:.3g}", (sigma, axis.get_ylim()[1]), color=BLUE, fontsize=8, va="top")
    axis.set(xlabel="σ, the size of the noise", ylabel="mean log-likelihood (higher is better)")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def reliability_diagrams(tables: Mapping[str, Reliability], minimum_count: int = 1) -> Figure:
    """Reliability diagrams side by side, one for each method.

    Accuracy against confidence, and the number of items below. Bins of few items are pale: their gaps are chance. Those
    with fewer than `minimum_count` do not count in the ECE.
    """
    figure, axes = new_figure(
        len(tables), 1.75 * max(2, len(tables)), 3.0, rows=2, sharex="col", sharey="row", height_ratios=(3, 1)
    )
    for column, (name, table) in enumerate(tables.items()):
        _draw_reliability(axes[column], table, name, minimum_count)
        _draw_counts(axes[len(tables) + column], table)
    axes[0].set_ylabel("accuracy")
    axes[len(tables)].set_ylabel("items")
    figure.legend(handles=_key(), loc="outside lower center", ncols=4)
    return figure


def _draw_reliability(axis: Axes, table: Reliability, name: str, minimum_count: int) -> None:
    columns = (table.lower, table.upper, table.count, table.confidence, table.accuracy)
    for lower, upper, count, confidence, accuracy in zip(*(column.tolist() for column in columns), strict=True):
        if count:
            alpha = 0.25 if count <= FEW else 0.8
            axis.bar((lower + upper) / 2, accuracy, upper - lower, color=BLUE, alpha=alpha, edgecolor="white")
            axis.plot([confidence] * 2, [accuracy, confidence], color=ORANGE, alpha=alpha, solid_capstyle="butt")
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle="--")
    axis.set_title(f"{name}\nECE {100 * table.calibration_error(minimum_count):.2f} % ({len(table.count)} bins)")
    axis.set(xlim=(0, 1), ylim=(0, 1))


def _draw_counts(axis: Axes, table: Reliability) -> None:
    centers = ((table.lower + table.upper) / 2).tolist()
    widths = (table.upper - table.lower).tolist()
    axis.bar(centers, table.count.tolist(), widths, color=GREY, edgecolor="white", linewidth=0.4)
    axis.set_yscale("log")
    axis.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="confidence")
    axis.set_ylim(bottom=0.7)  # a bin of one item shows


def _key() -> list[Any]:
    return [
        patch(color=BLUE, alpha=0.8, label="accuracy"),
        patch(color=BLUE, alpha=0.25, label=f"of {FEW} items or fewer"),
        line(color=ORANGE, label="gap to the confidence"),
        line(color=INK, linewidth=0.7, linestyle="--", label="perfect calibration"),
    ]
