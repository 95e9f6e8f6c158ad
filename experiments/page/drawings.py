"""The figures of the paper, drawn from the content of `results/paper/*.json`; no model is needed."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import peppermill as pm
from experiments.figure3 import interval, layer_choices
from experiments.table1.split_methods import TITLES

PALETTE = ("#bbbbbb", "#e69f00", "#f0e442", "#cc79a7", "#0072b2", "#56b4e9", "#009e73")  # Okabe and Ito
ORANGE, INK = "#d55e00", "#222222"  # colour-blind safe (Okabe and Ito), and readable in grey


def figure1(content: Mapping[str, Any]) -> Any:
    """Mean log-likelihood against sigma: the ensemble, each member, and the members' average."""
    points = []
    for point in content["sweep"]["points"]:
        members = point["member_log_likelihoods"]
        points.append(SimpleNamespace(**_with_nan(point), mean_member_log_likelihood=float(np.mean(members))))
    sweep = pm.Sweep(tuple(points), content["sweep"]["items"], content["sweep"]["bins"])
    return pm.plots.sigma_curve(sweep, sweep.best.sigma)


def reliability(tables: Mapping[str, Any], minimum_count: int = 1) -> Any:
    """Reliability diagrams side by side; bins with fewer than `minimum_count` items do not count in the ECE."""
    found = {
        name: pm.metrics.Reliability(**{key: torch.tensor(numbers) for key, numbers in _with_nan(one).items()})
        for name, one in tables.items()
    }
    return pm.plots.reliability_diagrams(found, minimum_count)


def table1_reliability(row: Mapping[str, Any]) -> Any:
    """Every method of a network of Table 1, on the first split."""
    tables = {title: row["reliability"][method] for method, title in TITLES.items()}
    return reliability(tables, row["settings"]["minimum_count"])


def corrected(content: Mapping[str, Any], images: Tensor | None, names: Sequence[str]) -> Any:
    """Mistakes that PEP corrects: the members' probabilities of the true class, and the images if they are given."""
    effects = []
    for one in content["corrected"]:
        options = {key: one[key] for key in ("item", "label", "network", "ensemble", "members")}
        image = None if images is None else _png(images[one["item"]])
        effects.append(pm.Effect(before=one["predicted"], after=one["label"], image=image, **options))
    return pm.plots.members_histogram(effects, names)


def figure3(content: Mapping[str, Any]) -> Any:
    """NLL over epochs for the first experiment; overfitting against the PEP effect, coloured by sigma*, for all.

    One row of panels for each choice of the layers that are perturbed.
    """
    import matplotlib
    from matplotlib import pyplot

    experiments = [layer_choices(one) for one in content["experiments"].values()]
    titles = [one["title"] for one in content["experiments"].values()]
    choices = list(experiments[0])
    style = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "peppermill"}
    with matplotlib.rc_context(style):
        columns = len(experiments) + 1
        size = (2.2 * columns, 2.3 * len(choices))
        figure, axes = pyplot.subplots(
            len(choices), columns, figsize=size, layout="constrained", squeeze=False, sharey="col"
        )
        for row, choice in zip(axes, choices, strict=True):
            points = experiments[0][choice]["points"]
            epochs = sorted({point["epoch"] for point in points})
            for key, colour, label in (("test_nll", ORANGE, "baseline"), ("pep_nll", INK, "PEP")):
                means = [np.mean([point[key] for point in points if point["epoch"] == epoch]) for epoch in epochs]
                row[0].plot(epochs, means, color=colour, label=label)
            row[0].set(xlabel="epoch", ylabel="test NLL")
            row[0].set_title(f"{titles[0]}\n{choice}", fontsize=7.5)
            row[0].legend(frameon=False, fontsize=7)
            for axis, title, experiment in zip(row[1:], titles, experiments, strict=True):
                one = experiment[choice]
                overfitting = [point["test_nll"] - point["training_nll"] for point in one["points"]]
                effect = [point["test_nll"] - point["pep_nll"] for point in one["points"]]
                sigmas = [point["sigma"] for point in one["points"]]
                drawn = axis.scatter(overfitting, effect, c=sigmas, s=9, cmap="cividis")
                bar = figure.colorbar(drawn, ax=axis, shrink=0.8)
                bar.set_label("σ*", fontsize=8)
                bar.ax.tick_params(labelsize=7)
                rho = interval(one["correlations"]["overfitting and effect"], digits=2)
                axis.set_title(f"{title}\nρ = {rho}", fontsize=7.5)
                axis.set_xlabel("overfitting")
            row[1].set_ylabel("PEP effect")
        pyplot.close(figure)  # which still can be saved
    return figure


def shift_boxes(content: Mapping[str, Any]) -> Any:
    """NLL, ECE and AURC by severity: for every method a box over the corruptions."""
    import matplotlib
    from matplotlib import pyplot

    levels = sorted({int(key.split()[-1]) for key in content["cells"]})
    methods = list(next(iter(content["cells"].values())))
    style = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "peppermill"}
    with matplotlib.rc_context(style):
        figure, axes = pyplot.subplots(3, 1, figsize=(7.5, 7.2), layout="constrained", sharex=True)
        for axis, (score, title) in zip(axes, {"nll": "NLL", "ece": "ECE", "aurc": "AURC"}.items(), strict=True):
            for place, method in enumerate(methods):
                values = [
                    [cell[method][score] for key, cell in content["cells"].items() if int(key.split()[-1]) == level]
                    for level in levels
                ]
                width = 0.8 / len(methods)
                centres = [level + width * (place - (len(methods) - 1) / 2) for level in range(len(levels))]
                boxes = axis.boxplot(
                    values,
                    positions=centres,
                    widths=0.8 * width,
                    patch_artist=True,
                    showfliers=False,
                    manage_ticks=False,
                )
                for box in boxes["boxes"]:
                    box.set(facecolor=PALETTE[place % len(PALETTE)], linewidth=0.5, label=method)
                for line in (*boxes["medians"], *boxes["whiskers"], *boxes["caps"]):
                    line.set(color=INK, linewidth=0.7)
            axis.set(ylabel=title, ylim=(0, None))
        axes[-1].set_xticks(range(len(levels)), ["clean" if level == 0 else f"severity {level}" for level in levels])
        handles, labels = axes[0].get_legend_handles_labels()
        shown = dict(zip(labels, handles, strict=True))
        figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=4, frameon=False)
        pyplot.close(figure)  # which still can be saved
    return figure


def _png(pixels: Tensor) -> str:
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(pixels.movedim(0, 2).squeeze(2).contiguous().numpy()).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


def _with_nan(content: Any) -> Any:
    """The same with NaN in place of null, which JSON has for it."""
    if isinstance(content, Mapping):
        return {name: _with_nan(part) for name, part in content.items()}
    if isinstance(content, list):
        return [_with_nan(part) for part in content]
    return math.nan if content is None else content
