"""The figures of the paper, drawn from the content of `results/paper/*.json`; no model is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from peppermill.report.drawing import BLUE, GREY, INK, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Content = Mapping[str, Any]


@styled
def figure1(content: Content) -> Figure:
    """Mean log-likelihood against sigma: the ensemble, each member, and the members' average."""
    figure, (axis,) = new_figure(1, 4.6, 3.2)
    points = content["sweep"]["points"]
    sigmas = [point["sigma"] for point in points]
    members = np.array([point["member_log_likelihoods"] for point in points])
    ensemble = np.array([point["log_likelihood"] for point in points])
    axis.plot(sigmas, members, color=GREY, linewidth=0.6)
    axis.plot([], [], color=GREY, linewidth=0.6, label="members")
    axis.plot(sigmas, members.mean(1), color=ORANGE, linewidth=1.4, linestyle="--", label="members' average")
    axis.plot(sigmas, ensemble, color=BLUE, linewidth=2, marker="o", markersize=2.5, label="ensemble, L(σ)/N")
    axis.axhline(ensemble[0], color=INK, linewidth=0.6, linestyle=":", label="network, σ = 0")
    span = max(ensemble.max() - ensemble[0], 1e-3)
    axis.set(xlabel="σ", ylabel="mean log-likelihood", ylim=(ensemble[0] - 2 * span, ensemble.max() + 0.4 * span))
    axis.legend(frameon=False, fontsize=7)
    return figure


@styled
def figure2_reliability(content: Content) -> Figure:
    """Reliability diagrams side by side: accuracy against confidence, and the gap to the diagonal.

    Bins with fewer than `minimum_count` items are drawn, but do not count in the ECE.
    """
    tables = content["reliability"]
    figure, axes = new_figure(len(tables), 1.9 * len(tables), 2.3)
    for axis, (name, table) in zip(axes, tables.items(), strict=True):
        _draw_reliability(axis, name, table, content.get("minimum_count", 1))
    axes[0].set_ylabel("accuracy")
    return figure


@styled
def figure2_corrected(content: Content, images: np.ndarray | None, names: list[str]) -> Figure:
    """Mistakes that PEP corrects: the members' probabilities of the true class, and the image where it is given."""
    shown = content["corrected"]
    figure, axes = new_figure(2, 6.4, 1.15 * max(1, -(-len(shown) // 2)), rows=max(1, -(-len(shown) // 2)))
    for axis, one in zip(axes, shown, strict=False):
        axis.hist(one["members"], bins=[k / 20 for k in range(21)], color=GREY)
        axis.axvline(one["network"], color=ORANGE, linewidth=1.4)
        axis.axvline(one["ensemble"], color=BLUE, linewidth=1.4)
        axis.set_title(f"{names[one['predicted']]} → {names[one['label']]}", fontsize=7)
        if images is not None:
            inset = axis.inset_axes((1.02, 0.0, 0.35, 1.0))
            inset.imshow(images[one["item"]])
            inset.set_axis_off()
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    return figure


@styled
def figure3(content: Content) -> Figure:
    """(a) NLL over epochs for the first experiment; (b) ... overfitting against the PEP effect, coloured by sigma*."""
    experiments = content["experiments"]
    figure, axes = new_figure(len(experiments) + 1, 2.2 * (len(experiments) + 1), 2.3)
    _draw_epochs(axes[0], next(iter(experiments.values())))
    for axis, one in zip(axes[1:], experiments.values(), strict=True):
        points = one["points"]
        overfitting = [point["test_nll"] - point["training_nll"] for point in points]
        effect = [point["test_nll"] - point["pep_nll"] for point in points]
        drawn = axis.scatter(overfitting, effect, c=[point["sigma"] for point in points], s=9, cmap="cividis")
        bar = figure.colorbar(drawn, ax=axis, shrink=0.8)
        bar.set_label("σ*", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        rho = one["correlations"]["overfitting and effect"]
        axis.set_title(f"{one['title']}\nρ = {rho['value']:.2f} [{rho['lower']:.2f}, {rho['upper']:.2f}]", fontsize=7.5)
        axis.set_xlabel("overfitting")
    axes[1].set_ylabel("PEP effect")
    return figure


def _draw_epochs(axis: Axes, experiment: Content) -> None:
    epochs = sorted({point["epoch"] for point in experiment["points"]})
    for key, colour, label in (("test_nll", ORANGE, "baseline"), ("pep_nll", INK, "PEP")):
        means = [np.mean([p[key] for p in experiment["points"] if p["epoch"] == epoch]) for epoch in epochs]
        axis.plot(epochs, means, color=colour, label=label)
    axis.set(xlabel="epoch", ylabel="test NLL")
    axis.set_title(experiment["title"], fontsize=7.5)
    axis.legend(frameon=False, fontsize=7)


def _draw_reliability(axis: Axes, name: str, table: Content, minimum_count: int) -> None:
    rows = zip(table["lower"], table["upper"], table["count"], table["confidence"], table["accuracy"], strict=True)
    gap = 0.0
    for lower, upper, count, confidence, accuracy in rows:
        if count:
            middle, width = (lower + upper) / 2, upper - lower
            axis.bar(middle, accuracy, width, color=BLUE, alpha=0.75, edgecolor="white", linewidth=0.4)
            axis.plot([confidence, confidence], [accuracy, confidence], color=ORANGE, linewidth=1.6)
            gap += count * abs(accuracy - confidence) * (count >= minimum_count)
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle="--")
    axis.set_title(f"{name}\nECE {100 * gap / sum(table['count']):.2f} %", fontsize=7.5)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence")
