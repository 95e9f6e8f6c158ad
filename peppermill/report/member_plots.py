"""Figure 2c as a static picture: items with the probabilities that the members give to their true class."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from peppermill.effects import Effect
from peppermill.report.plots import BLUE, COLUMN, GREY, ORANGE, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 20  # of the histogram
ROW = 1.0  # inches, the height of an item


def members_histogram(effects: Sequence[Effect], class_names: Sequence[str] = ()) -> Figure:
    """Figure 2c: of each item its image, and the histogram of L_i(theta_j), the members' probability of its true class.

    The network's own probability and the ensemble's (eq. 9) are marked.
    """
    if not effects:
        raise ValueError("`effects` is empty: there is no item to show. Give `pm.item_effects(pep, data).helped`, say.")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: `pip install "peppermill[plots]"`.') from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 0.45 + ROW * len(effects)), layout="constrained")
        axes = figure.subplots(len(effects), 2, squeeze=False, width_ratios=(1, 3.2))
        for (image, histogram), effect in zip(axes, effects, strict=True):
            _draw_image(image, effect)
            _draw_members(histogram, effect, class_names)
        axes[-1, 1].set_xlabel("probability of the true class")
        handles, labels = axes[0, 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_image(axis: Axes, effect: Effect) -> None:
    axis.axis("off")
    if effect.image:
        from matplotlib.image import imread

        pixels = imread(io.BytesIO(b64decode(effect.image)), format="png")
        axis.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def _draw_members(axis: Axes, effect: Effect, class_names: Sequence[str]) -> None:
    label, before, after = (_name(k, class_names) for k in (effect.label, effect.before, effect.after))
    axis.hist(effect.members, bins=BINS, range=(0, 1), color=GREY, edgecolor="white", linewidth=0.4, label="members")
    axis.axvline(effect.network, color=ORANGE, linewidth=1.6, linestyle="--", label="network")
    axis.axvline(effect.ensemble, color=BLUE, linewidth=1.6, label="ensemble")
    axis.set_title(f"{label}: {before} → {after}", parse_math=False)
    axis.set(xlim=(0, 1), yticks=())
    axis.spines["left"].set_visible(False)


def _name(k: int, class_names: Sequence[str]) -> str:
    return class_names[k] if k < len(class_names) else f"class {k}"
