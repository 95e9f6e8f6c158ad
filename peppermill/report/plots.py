"""The figures as static pictures, for papers and slides: colour-blind safe, readable in grey, sized for a column.

Every function returns a matplotlib figure; `save_figure` writes it as PNG, SVG or PDF, by the ending of the path.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
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
FEW = 20  # items; the paper's Table 1 drops bins that have no more
FORMATS = (".png", ".svg", ".pdf")

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
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def sigma_curve(sweep: Sweep, sigma: float | None = None) -> Figure:
    """Figure 1: mean log-likelihood of the ensemble, of each member and of their average, against sigma.

    `sigma` is marked.
    """
    with _style():
        figure, (axis,) = _figure(1, COLUMN * 1.35, COLUMN * 1.1)
        sigmas = [point.sigma for point in sweep.points]
        ensemble = [point.log_likelihood for point in sweep.points]
        means = [point.mean_member_log_likelihood for point in sweep.points]
        axis.plot(sigmas, ensemble, color=BLUE, linewidth=2, marker="o", markersize=3, label="ensemble, L(σ)/N")
        axis.plot(sigmas, means, color=ORANGE, linewidth=1.4, linestyle="--", label="average of the members")
        for member in zip(*(point.member_log_likelihoods for point in sweep.points), strict=True):
            axis.plot(sigmas, member, color=GREY, linewidth=0.6, alpha=0.7, zorder=1)
        axis.plot([], [], color=GREY, linewidth=0.6, label="each member")
        axis.axhline(ensemble[0], color=INK, linewidth=0.6, linestyle=":", label="the network itself, σ = 0")
        axis.set_ylim(*_worth_seeing(ensemble))
        if sigma:
            axis.axvline(sigma, color=BLUE, linewidth=0.8, linestyle="-.")
            axis.annotate(f" σ* = {sigma:.3g}", (sigma, axis.get_ylim()[1]), color=BLUE, fontsize=8, va="top")
        axis.set(xlabel="σ, the size of the noise", ylabel="mean log-likelihood (higher is better)")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def reliability_diagrams(tables: Mapping[str, Reliability]) -> Figure:
    """Reliability diagrams side by side, one for each method.

    Accuracy against confidence, and the number of items below. Bins of few items are pale: their gaps are chance.
    """
    with _style():
        figure, axes = _figure(len(tables), 1.75 * max(2, len(tables)), 3.0, rows=2, height_ratios=(3, 1))
        for column, (name, table) in enumerate(tables.items()):
            _draw_reliability(axes[column], table, name)
            _draw_counts(axes[len(tables) + column], table)
        axes[0].set_ylabel("accuracy")
        axes[len(tables)].set_ylabel("items")
        figure.legend(handles=_key(), loc="outside lower center", ncols=4)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of the path is the format."""
    refuse_other_formats(path)
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format=Path(path).suffix[1:])
    write_atomically(path, buffer.getvalue())


def refuse_other_formats(path: str | Path) -> None:
    """Raise where no picture can be drawn to this path: cheaper to know before the work than after it."""
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"the picture {path} must end in one of {', '.join(FORMATS)}, which says its format.")
    _style()


def _draw_reliability(axis: Axes, table: Reliability, name: str) -> None:
    columns = (table.lower, table.upper, table.count, table.confidence, table.accuracy)
    for lower, upper, count, confidence, accuracy in zip(*(column.tolist() for column in columns), strict=True):
        if count:
            alpha = 0.25 if count <= FEW else 0.8
            axis.bar((lower + upper) / 2, accuracy, upper - lower, color=BLUE, alpha=alpha, edgecolor="white")
            axis.plot([confidence] * 2, [accuracy, confidence], color=ORANGE, alpha=alpha, solid_capstyle="butt")
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle="--")
    ece = 100 * float((table.gaps() * table.count).sum() / table.count.sum())
    axis.set_title(f"{name}\nECE {ece:.2f} % ({len(table.count)} bins)")
    axis.set(xlim=(0, 1), ylim=(0, 1))


def _draw_counts(axis: Axes, table: Reliability) -> None:
    centers = ((table.lower + table.upper) / 2).tolist()
    widths = (table.upper - table.lower).tolist()
    axis.bar(centers, table.count.tolist(), widths, color=GREY, edgecolor="white", linewidth=0.4)
    axis.set_yscale("log")
    axis.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="confidence")
    axis.set_ylim(bottom=0.7)  # a bin of one item shows


def _key() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Patch(color=BLUE, alpha=0.8, label="accuracy"),
        Patch(color=BLUE, alpha=0.25, label=f"of {FEW} items or fewer"),
        Line2D([], [], color=ORANGE, label="gap to the confidence"),
        Line2D([], [], color=INK, linewidth=0.7, linestyle="--", label="perfect calibration"),
    ]


def _worth_seeing(ensemble: list[float]) -> tuple[float, float]:
    """From a little above the peak to as far below the network as the peak is above it.

    The fall beyond is of no interest.
    """
    top, base = max(filter(math.isfinite, ensemble)), ensemble[0]
    span = max(top - base, 1e-3)
    return base - span, top + 0.2 * span


def _style() -> AbstractContextManager[None]:
    """Our fonts and lines while a figure is made, and the user's own again afterwards."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError('pictures need matplotlib: `pip install "peppermill[plots]"`.') from error
    context: AbstractContextManager[None] = matplotlib.rc_context(STYLE)
    return context


def _figure(columns: int, width: float, height: float, rows: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of its own, outside pyplot's registry: no global state, no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid or None, sharex="col", sharey="row")
    return figure, list(axes.flat)
