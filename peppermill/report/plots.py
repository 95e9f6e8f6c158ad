"""The figures as static pictures, for papers and slides: colour-blind safe, readable in grey, sized for a column.

Every function returns a matplotlib figure; `save_figure` writes it as PNG, SVG or PDF, by the ending of the path.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peppermill.files import write_atomically
from peppermill.metrics import Reliability
from peppermill.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Figures that live in files of their own, found when they are asked for: one row each.
ELSEWHERE = {"members_histogram": "peppermill.report.member_plots"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ELSEWHERE:
        return getattr(import_module(ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#9A9A9A", "#222222"  # of Okabe and Ito
COLUMN = 3.4  # inches, the width of a column of text

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8.5,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def sigma_curve(sweep: Sweep, sigma: float | None = None) -> Figure:
    """Figure 1: mean log-likelihood of the ensemble, of each member and of their average, against sigma.

    `sigma` is marked.
    """
    figure, axes = _figure(1, COLUMN * 1.35, COLUMN)
    sigmas = [point.sigma for point in sweep.points]
    for member in zip(*(point.member_log_likelihoods for point in sweep.points), strict=True):
        axes[0].plot(sigmas, member, color=GREY, linewidth=0.6, alpha=0.7)
    axes[0].plot([], [], color=GREY, linewidth=0.6, label="members")
    means = [point.mean_member_log_likelihood for point in sweep.points]
    axes[0].plot(sigmas, means, color=ORANGE, linewidth=1.4, linestyle="--", label="members' average")
    ensemble = [point.log_likelihood for point in sweep.points]
    axes[0].plot(sigmas, ensemble, color=BLUE, linewidth=2, marker="o", markersize=2.5, label="ensemble, L(σ)/N")
    axes[0].axhline(ensemble[0], color=INK, linewidth=0.6, linestyle=":", label="network, σ = 0")
    if sigma:
        axes[0].axvline(sigma, color=BLUE, linewidth=0.8, linestyle="-.")
        axes[0].annotate(f" σ* = {sigma:.3g}", (sigma, max(ensemble)), color=BLUE, fontsize=7, va="bottom")
    axes[0].set_ylim(*_worth_seeing(ensemble))
    axes[0].set(xlabel="σ", ylabel="mean log-likelihood")
    axes[0].legend(frameon=False, loc="lower center")
    return figure


def reliability_diagrams(tables: Mapping[str, Reliability]) -> Figure:
    """Reliability diagrams side by side, one for each method.

    Accuracy against confidence, and the number of items below.
    """
    figure, axes = _figure(len(tables), 1.75 * max(2, len(tables)), 2.6, rows=2, height_ratios=(3, 1))
    for column, (name, table) in enumerate(tables.items()):
        _draw_reliability(axes[column], table, name)
        _draw_counts(axes[len(tables) + column], table)
    for axis in (axes[0], axes[len(tables)]):
        axis.set_ylabel({axes[0]: "accuracy"}.get(axis, "items"))
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of the path is the format."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix.lstrip(".") or "png")
    write_atomically(path, buffer.getvalue())


def _draw_reliability(axis: Axes, table: Reliability, name: str) -> None:
    shown = (table.count > 0).tolist()
    rows = zip(
        table.lower.tolist(),
        table.upper.tolist(),
        table.confidence.tolist(),
        table.accuracy.tolist(),
        shown,
        strict=True,
    )
    for lower, upper, confidence, accuracy, has_items in rows:
        if has_items:
            axis.bar(
                (lower + upper) / 2, accuracy, upper - lower, color=BLUE, alpha=0.75, edgecolor="white", linewidth=0.4
            )
            axis.plot(
                [confidence, confidence], [accuracy, confidence], color=ORANGE, linewidth=1.6, solid_capstyle="butt"
            )
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle="--")
    ece = 100 * float((table.gaps() * table.count).sum() / table.count.sum())
    axis.set_title(f"{name}\nECE {ece:.2f} % ({len(shown)} bins)")
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.tick_params(labelbottom=False)


def _draw_counts(axis: Axes, table: Reliability) -> None:
    centers = ((table.lower + table.upper) / 2).tolist()
    widths = (table.upper - table.lower).tolist()
    axis.bar(centers, table.count.tolist(), widths, color=GREY, edgecolor="white", linewidth=0.4)
    axis.set_yscale("log")
    axis.set(xlim=(0, 1), xlabel="confidence")


def _worth_seeing(ensemble: list[float]) -> tuple[float, float]:
    """From a little above the peak to as far below the network as the peak is above it.

    The fall beyond is of no interest.
    """
    top, base = max(ensemble), ensemble[0]
    span = max(top - base, 1e-3)
    return base - span, top + 0.2 * span


def _figure(columns: int, width: float, height: float, rows: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of its own, outside pyplot's registry: no global state, no window."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: `pip install "peppermill[plots]"`.') from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid or None, sharex="col")
    return figure, list(axes.flat)
