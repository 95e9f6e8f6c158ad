"""Figure 2c as a static picture: items with the probabilities that the members give to their true class."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from peppermill.evaluation.item_effects import Effect
from peppermill.report.style import BLUE, COLUMN, GREY, ORANGE, new_figure, pixels, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 20  # of the histogram
ROW = 1.0  # inches, the height of an item


@styled
def members_histogram(effects: Sequence[Effect], class_names: Sequence[str] = ()) -> Figure:
    """Figure 2c: of each item its image, and the histogram of L_i(theta_j), the members' probability of its true class.

    The network's own probability and the ensemble's (eq. 9) are marked.
    """
    if not effects:
        raise ValueError("`effects` is empty: there is no item to show. Give `pm.helped_and_hurt(pep, data).helped`.")
    figure, axes = new_figure(2, COLUMN, 0.45 + ROW * len(effects), rows=len(effects), width_ratios=(1, 3.2))
    for image, histogram, effect in zip(axes[::2], axes[1::2], effects, strict=True):
        _draw_image(image, effect)
        _draw_members(histogram, effect, class_names)
    axes[-1].set_xlabel("probability of the true class")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_image(axis: Axes, effect: Effect) -> None:
    axis.axis("off")
    if effect.image:
        axis.imshow(pixels(b64decode(effect.image)), cmap="gray", vmin=0, vmax=1, interpolation="nearest")


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
