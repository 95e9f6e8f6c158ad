"""How every picture looks and is written; the one file that knows matplotlib."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from peppermill.plumbing.files import write_atomically
from peppermill.plumbing.optional import importing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#9A9A9A", "#222222"  # of Okabe and Ito
COLUMN = 3.4  # inches, the width of a column of text
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
    "svg.hashsalt": "peppermill",  # the same figure is the same file
    "pdf.fonttype": 42,
}


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Our fonts and lines while a figure is drawn, and the user's own again afterwards."""

    @functools.wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with _style():
            return draw(*args, **kwargs)

    return drawn


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of the path is the format."""
    refuse_other_formats(path)
    buffer = io.BytesIO()
    with _style():
        ending = Path(path).suffix[1:]
        figure.savefig(buffer, format=ending, metadata={"Date": None} if ending == "svg" else None)
    write_atomically(path, buffer.getvalue())


def refuse_other_formats(path: str | Path) -> None:
    """Raise if no picture can be written to this path: better before the work than after it."""
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"the picture {path} must end in one of {', '.join(FORMATS)}, which says its format.")
    _style()


def new_figure(
    columns: int, width: float, height: float, rows: int = 1, *, sharex: Any = False, sharey: Any = False, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of its own, outside pyplot's registry: no global state, no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid or None, sharex=sharex, sharey=sharey)
    return figure, list(axes.flat)


def patch(**look: Any) -> Any:
    """A filled sample for a legend."""
    from matplotlib.patches import Patch

    return Patch(**look)


def line(**look: Any) -> Any:
    """A stroke for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def pixels(png: bytes) -> Any:
    """The array in a PNG."""
    from matplotlib.image import imread

    return imread(io.BytesIO(png), format="png")


def _style() -> AbstractContextManager[None]:
    with importing("pictures need matplotlib", "matplotlib", "plots"):
        import matplotlib
    context: AbstractContextManager[None] = matplotlib.rc_context(STYLE)
    return context
