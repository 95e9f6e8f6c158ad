"""The figures as static pictures, for papers and slides: colour-blind safe, readable in grey, sized for a column.

Every function returns a matplotlib figure; `save_figure` writes it as PNG, SVG or PDF, by the ending of the path.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from peppermill.metrics import Reliability
from peppermill.plumbing.files import write_atomically
from peppermill.plumbing.optional import importing
from peppermill.report.page import worth_seeing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from peppermill.curvature.analysis import EffectPoint
    from peppermill.evaluation.item_effects import Effect
    from peppermill.evaluation.member_count import SizeCurve
    from peppermill.evaluation.overfitting import OverfittingProbe
    from peppermill.evaluation.sweep import Sweep

PALE_ITEMS = 20  # bins with at most this many items are pale; the paper's Table 1 drops them
MEMBER_BINS = 20  # of the histogram of the members
ITEM_HEIGHT = 1.0  # inches
CURVE_STEPS = 100  # of the predicted effect
BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#9A9A9A", "#222222"  # of Okabe and Ito
COLUMN = 3.4  # inches, the width of a column of text
FORMATS = (".png", ".svg", ".pdf")


@contextmanager
def style() -> Iterator[None]:
    """Our fonts and lines while a figure is drawn, and the user's own again afterwards; also a decorator."""
    with importing("pictures need matplotlib", "matplotlib", "plots"):
        import matplotlib
    with matplotlib.rc_context(fname=str(files("peppermill.report").joinpath("assets", "figures.mplstyle"))):
        yield


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of the path is the format."""
    refuse_other_formats(path)
    buffer = BytesIO()
    with style():
        ending = Path(path).suffix[1:]
        figure.savefig(buffer, format=ending, metadata={"Date": None} if ending == "svg" else None)
    write_atomically(path, buffer.getvalue())


@style()
def refuse_other_formats(path: str | Path) -> None:
    """Raise if no picture can be written to this path: better before the work than after it."""
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"the picture {path} must end in one of {', '.join(FORMATS)}, which says its format.")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure of its own, outside pyplot's registry: no global state, no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).flat)


@style()
def sigma_curve(sweep: Sweep, sigma: float | None = None) -> Figure:
    """Figure 1: mean log-likelihood of the ensemble, of each member and of their average, against sigma.

    `sigma` is marked.
    """
    figure, (axis,) = new_figure(COLUMN * 1.35, COLUMN * 1.1)
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


@style()
def reliability_diagrams(tables: Mapping[str, Reliability], minimum_count: int = 1) -> Figure:
    """Reliability diagrams side by side, one for each method.

    Accuracy against confidence, and the number of items below. Bins of few items are pale: their gaps may be
    chance. Those with fewer than `minimum_count` do not count in the ECE.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shared = {"sharex": "col", "sharey": "row", "height_ratios": (3, 1)}
    figure, axes = new_figure(1.75 * max(2, len(tables)), 3.0, 2, len(tables), **shared)
    for axis, below, (name, table) in zip(axes, axes[len(tables) :], tables.items(), strict=False):
        centers, widths = (table.lower + table.upper) / 2, table.upper - table.lower
        columns = [part.tolist() for part in (centers, widths, table.count, table.confidence, table.accuracy)]
        for center, width, count, confidence, accuracy in zip(*columns, strict=True):
            if count:
                alpha = 0.25 if count <= PALE_ITEMS else 0.8
                axis.bar(center, accuracy, width, color=BLUE, alpha=alpha, edgecolor="white")
                axis.plot([confidence] * 2, [accuracy, confidence], color=ORANGE, alpha=alpha, solid_capstyle="butt")
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle="--")
        error, title = table.calibration_error(minimum_count), fill(name, 24)  # characters: one panel's width
        axis.set_title(f"{title}\nECE {100 * error:.2f} % ({len(table.count)} bins)")
        axis.set(xlim=(0, 1), ylim=(0, 1))
        below.bar(centers.tolist(), table.count.tolist(), widths.tolist(), color=GREY, edgecolor="white", linewidth=0.4)
        below.set(xlim=(0, 1), xticks=(0, 0.5, 1), yscale="log", ylim=(0.7, None), xlabel="confidence")
    axes[0].set_ylabel("accuracy")
    axes[len(tables)].set_ylabel("items")
    key = [
        Patch(color=BLUE, alpha=0.8, label="accuracy"),
        Patch(color=BLUE, alpha=0.25, label=f"of {PALE_ITEMS} items or fewer"),
        Line2D([], [], color=ORANGE, label="gap to the confidence"),
        Line2D([], [], color=INK, linewidth=0.7, linestyle="--", label="perfect calibration"),
    ]
    figure.legend(handles=key, loc="outside lower center", ncols=4)
    return figure


@style()
def members_histogram(effects: Sequence[Effect], class_names: Sequence[str] = ()) -> Figure:
    """Figure 2c: the image of each item, and the histogram of L_i(theta_j), the members' probability of its class.

    The network's own probability and the ensemble's (eq. 9) are marked.
    """
    if not effects:
        raise ValueError("`effects` is empty: there is no item to show. Give `pm.helped_and_hurt(pep, data).helped`.")
    from matplotlib.image import imread

    figure, axes = new_figure(COLUMN, 0.45 + ITEM_HEIGHT * len(effects), len(effects), 2, width_ratios=(1, 3.2))
    for image, histogram, effect in zip(axes[::2], axes[1::2], effects, strict=True):
        image.axis("off")
        if effect.image:
            pixels = imread(BytesIO(b64decode(effect.image)), format="png")
            image.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        classes = (effect.label, effect.before, effect.after)
        label, before, after = (class_names[k] if k < len(class_names) else f"class {k}" for k in classes)
        bars: dict[str, Any] = {"range": (0, 1), "color": GREY, "edgecolor": "white", "linewidth": 0.4}
        histogram.hist(effect.members, MEMBER_BINS, label="members", **bars)
        histogram.axvline(effect.network, color=ORANGE, linewidth=1.6, linestyle="--", label="network")
        histogram.axvline(effect.ensemble, color=BLUE, linewidth=1.6, label="ensemble")
        histogram.set_title(f"{label}: {before} → {after}", parse_math=False)
        histogram.set(xlim=(0, 1), yticks=())
        histogram.spines["left"].set_visible(False)
    axes[-1].set_xlabel("probability of the true class")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


@style()
def size_curve(curve: SizeCurve, loss: float = 0.001, network: float | None = None) -> Figure:
    """NLL of k members with its interval, against k; the fewest that lose at most `loss` are marked.

    `network`, the NLL of the network itself, is drawn if it is given.
    """
    figure, (axis,) = new_figure(COLUMN * 1.35, COLUMN)
    nll, fewest = [estimate.value for estimate in curve.nll], curve.smallest(loss)
    band = [[getattr(estimate, end) for estimate in curve.nll] for end in ("lower", "upper")]
    axis.fill_between(curve.sizes, band[0], band[1], color=BLUE, alpha=0.18, linewidth=0)
    axis.plot(curve.sizes, nll, color=BLUE, linewidth=2, marker="o", markersize=3.5, label=curve.method)
    if network is not None:
        axis.axhline(network, color=INK, linewidth=0.8, linestyle=":", label="the network itself")
    label = f"{fewest} lose{'s' if fewest == 1 else ''} at most {loss:g}"
    axis.axvline(fewest, color=ORANGE, linewidth=1, linestyle="--", label=label)
    axis.set_xticks(curve.sizes)
    axis.set(xlabel="members m, each one forward pass", ylabel="NLL (lower is better)")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@style()
def effect_curves(points: Sequence[EffectPoint], items: int, upper: float) -> Figure:
    """B_sigma of eq. 15 with a band of two errors, and the measured L(sigma) - L(0), for each item, against sigma.

    `upper` is where the believable range ends.
    """
    figure, (axis,) = new_figure(COLUMN * 1.35, COLUMN)
    last = max(points, key=lambda point: point.sigma)
    rate, error = (value / last.sigma**2 / items for value in (last.predicted, last.predicted_error))
    sigmas = [last.sigma * step / CURVE_STEPS for step in range(CURVE_STEPS + 1)]
    band = [[(rate + sign * 2 * error) * sigma**2 for sigma in sigmas] for sign in (-1, 1)]
    if upper < last.sigma:
        axis.axvspan(0, upper, color=GREY, alpha=0.18, linewidth=0, label="prediction believable")
    axis.fill_between(sigmas, band[0], band[1], color=ORANGE, alpha=0.25, linewidth=0)
    axis.plot(sigmas, [rate * sigma**2 for sigma in sigmas], color=ORANGE, linestyle="--", label="predicted, $B_σ/N$")
    tried, measured = [point.sigma for point in points], [point.measured / items for point in points]
    style: dict[str, Any] = {"color": BLUE, "marker": "o", "markersize": 3, "linewidth": 1.2, "elinewidth": 0.8}
    spread, label = [2 * point.measured_error / items for point in points], "measured, $(L(σ) − L(0))/N$"
    axis.errorbar(tried, measured, yerr=spread, label=label, **style)
    axis.axhline(0, color=INK, linewidth=0.6, linestyle=":")
    low, high = min(0.0, *measured), max(0.0, *measured)
    axis.set_ylim(low - 0.35 * (high - low), high + 0.35 * (high - low))
    axis.set(xlim=(0, last.sigma * 1.03), xlabel="σ", ylabel="gain in log-likelihood, per item")
    axis.legend(frameon=False, fontsize=7, loc="upper left" if high > -low else "lower left")
    return figure


@style()
def overfitting_scatter(probe: OverfittingProbe) -> Figure:
    """Figure 3 (b-d): overfitting against the PEP effect, sigma* and the effect rate; every checkpoint is shown."""
    from peppermill.evaluation.overfitting import NAMES  # here, because it imports the curvature code

    shown = ("pep_effect", "sigma", "effect_rate")
    figure, axes = new_figure(2.35 * len(shown), 2.5, columns=len(shown))
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
