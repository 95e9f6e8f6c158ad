"""Run files -> one self-contained page: no model, no data, no GPU, no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from peppermill.evaluation.scores import row_of
from peppermill.plumbing.files import write_atomically
from peppermill.plumbing.optional import importing
from peppermill.recipe import versions
from peppermill.report.payload import payload
from peppermill.report.run import Run, plain, read_run
from peppermill.report.table import by_prominence
from peppermill.report.verdict import heading
from peppermill.report.view import compared, view

#: A report is made from a run, or from the file that `write_run` wrote.
Source: TypeAlias = Run | str | Path


def write_report(runs: Source | Sequence[Source], path: str | Path = "report.html") -> Path:
    """One HTML file that shows a run, or compares several; written whole or not at all.

    It opens by double click and loads nothing from the network: its scripts are inside.
    """
    sources = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    if not sources:
        raise ValueError("`runs` is empty: give at least one run, or the path of a run file.")
    shown, contents = [], []
    for source in sources:
        content = json.loads(json.dumps(plain(source))) if isinstance(source, Run) else read_run(source)
        try:
            shown.append((view(content), payload(content)))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            name = "the run" if isinstance(source, Run) else source
            raise ValueError(
                f"{name} is damaged ({type(error).__name__}: {error}), so no report was written: run the command that "
                "wrote it again."
            ) from error
        contents.append(content)
    with importing("the report needs plotly", "plotly", "report"):
        library: str = import_module("plotly.offline").get_plotlyjs()
    write_atomically(path, _page(shown, compared(contents) if len(contents) > 1 else [], library))
    return Path(path)


def in_script(value: Any) -> str:
    """JSON that may stand inside a <script> element: no name in it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _page(
    shown: Sequence[tuple[dict[str, Any], dict[str, Any]]], several: Sequence[Mapping[str, Any]], library: str
) -> str:
    """The page from texts and numbers of each run; every text in it is escaped unless it is marked as safe."""
    jinja2, safe = import_module("jinja2"), import_module("markupsafe").Markup
    script = "\n".join(_asset(name) for name in ("figures.js", "page.js"))
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, library))
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    names = by_prominence(dict.fromkeys(name for row in several for name in row["scores"]))
    numbers = {
        "runs": [drawn for _, drawn in shown],
        "compared": several,
        "formats": {name: ".1%" if row_of(name).percent else ".3f" for name in names},
    }
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: str = environment.get_template("page.html").render(
        runs=[texts for texts, _ in shown],
        comparison=several,
        scores={name: heading(name) for name in names},
        headlines=[name for name in names if row_of(name).headline],
        payload=safe(in_script(numbers)),
        library=safe(base64.b64encode(gzip.compress(library.encode(), 9, mtime=0)).decode()),
        script=safe(script),
        css=safe(_asset("page.css")),
        # The browser may run these two scripts, show pictures that are inside the page, and load nothing else.
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:",
        version=versions()["peppermill"],
    )
    return page


def _asset(name: str) -> str:
    return files("peppermill.report").joinpath("assets", name).read_text(encoding="utf-8")
