"""NLL against the number of members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peppermill.evaluation.member_count import SizeCurve
from peppermill.report.style import BLUE, COLUMN, INK, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def size_curve(curve: SizeCurve, loss: float = 0.001, network: float | None = None) -> Figure:
    """NLL of k members with its interval, against k; the fewest that lose at most `loss` are marked.

    `network`, the NLL of the network itself, is drawn where it is given.
    """
    figure, (axis,) = new_figure(1, COLUMN * 1.35, COLUMN)
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
