"""`peppermill report`: runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import peppermill as pm
from peppermill.cli.console import say


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run files; several are compared.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page from run files alone; neither model nor data are needed."""
    pm.write_report(runs, out)
    say(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB): open it in a browser.")
