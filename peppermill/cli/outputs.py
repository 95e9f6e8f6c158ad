"""What a command leaves beside the table that it shows: a run file and a picture, where they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from peppermill.cli.console import say
from peppermill.plumbing.files import refuse_unwritable
from peppermill.report import figures as plots
from peppermill.report.run import Run, write_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def refuse_outputs(out: Path | None, picture: Path | None) -> None:
    """Raise before the work where its results could not be written after it."""
    refuse_unwritable(out)
    if picture:
        refuse_unwritable(picture)
        plots.refuse_other_formats(picture)


def write_outputs(out: Path | None, run: Callable[[], Run], picture: Path | None, draw: Callable[[], Figure]) -> None:
    """Write what is asked for, and say so; what is not asked for is not made."""
    if out:
        write_run(run(), out)
        say(f"wrote {out}")
    if picture:
        plots.save_figure(draw(), picture)
        say(f"wrote {picture}")
