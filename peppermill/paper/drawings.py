"""The figures of the paper, drawn from the content of `results/paper/*.json`; no model is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import peppermill as pm
from peppermill.evaluation.sweep import SweepPoint
from peppermill.paper.figure3 import interval
from peppermill.report.figures import members_histogram
from peppermill.report.style import INK, ORANGE, new_figure, styled
from peppermill.report.thumbnail import thumbnail

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Content = Mapping[str, Any]


def figure1(content: Content) -> Figure:
    """Mean log-likelihood against sigma: the ensemble, each member, and the members' average."""
    found = _sweep(content["sweep"])
    return pm.plots.sigma_curve(found, found.best.sigma)


def figure2_reliability(content: Content) -> Figure:
    """Reliability diagrams side by side; bins with fewer than `minimum_count` items do not count in the ECE."""
    tables = {name: _reliability(table) for name, table in content["reliability"].items()}
    return pm.plots.reliability_diagrams(tables, content.get("minimum_count", 1))


def figure2_corrected(content: Content, images: Tensor | None, names: Sequence[str]) -> Figure:
    """Mistakes that PEP corrects: the members' probabilities of the true class, and the image where it is given."""
    effects = [
        pm.Effect(
            one["item"],
            one["label"],
            before=one["predicted"],
            after=one["label"],
            network=one["network"],
            ensemble=one["ensemble"],
            members=one["members"],
            image=None if images is None else thumbnail(images[one["item"]]),
        )
        for one in content["corrected"]
    ]
    return members_histogram(effects, names)


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
        said = interval(one["correlations"]["overfitting and effect"], digits=2)
        axis.set_title(f"{one['title']}\nρ = {said}", fontsize=7.5)
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


def _sweep(content: Content) -> pm.Sweep:
    scores = [name for name in pm.metrics.SCORES if name in content["points"][0]]
    points = (
        SweepPoint(
            **{name: value for name, value in _with_nan(point).items() if name not in (*scores, "reliability")},
            scores={name: point[name] for name in scores},
            reliability=_reliability(point["reliability"]),
        )
        for point in content["points"]
    )
    return pm.Sweep(tuple(points), content["items"], content["bins"])


def _reliability(table: Content) -> pm.metrics.Reliability:
    return pm.metrics.Reliability(**{name: torch.tensor(numbers) for name, numbers in _with_nan(table).items()})


def _with_nan(content: Any) -> Any:
    """The same where JSON, which knows no NaN, has null."""
    if isinstance(content, Mapping):
        return {name: _with_nan(part) for name, part in content.items()}
    if isinstance(content, list):
        return [_with_nan(part) for part in content]
    return math.nan if content is None else content
