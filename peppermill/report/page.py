"""Run files -> one self-contained page: no model, no data, no GPU, no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
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
from peppermill.report.verdict import by_prominence, heading
from peppermill.report.view import amount, compared, view

#: A report is made from a run, or from the file that `write_run` wrote.
Source: TypeAlias = Run | str | Path


def write_report(runs: Source | Sequence[Source], path: str | Path = "report.html") -> Path:
    """One HTML file that shows a run, or compares several `runs`; written whole or not at all.

    It opens by double click and loads nothing from the network: its scripts are inside.
    """
    sources = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    if not sources:
        raise ValueError("`runs` is empty: give at least one run, or the path of a run file.")
    jinja2, safe = import_module("jinja2"), import_module("markupsafe").Markup
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,  # every text is escaped unless it is marked as safe
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"amount": amount, "count": "{:,}".format}
    contents, articles, drawn = [], [], []
    for k, source in enumerate(sources):
        content = json.loads(json.dumps(plain(source))) if isinstance(source, Run) else read_run(source)
        try:
            drawn.append(payload(content))
            articles.append(safe(environment.get_template("run.html").render(run=view(content), index=k)))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, jinja2.TemplateError) as error:
            name = "the run" if isinstance(source, Run) else source
            raise ValueError(
                f"{name} is damaged ({type(error).__name__}: {error}), so no report was written: run the command that "
                "wrote it again."
            ) from error
        contents.append(content)
    with importing("the report needs plotly", "plotly", "report"):
        library: str = import_module("plotly.offline").get_plotlyjs()
    script = "\n".join(_asset(name) for name in ("figures.js", "page.js"))
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, library))
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    several = compared(contents) if len(contents) > 1 else []
    names = by_prominence(dict.fromkeys(name for row in several for name in row["scores"]))
    formats = {name: ".1%" if row_of(name).percent else ".3f" for name in names}
    page = environment.get_template("page.html").render(
        titles=[str(content["title"]) for content in contents],
        articles=articles,
        comparison=several,
        scores={name: heading(name) for name in names},
        headlines=[name for name in names if row_of(name).headline],
        payload=safe(in_script({"runs": drawn, "compared": several, "formats": formats})),
        library=safe(base64.b64encode(gzip.compress(library.encode(), 9, mtime=0)).decode()),
        script=safe(script),
        css=safe(_asset("page.css")),
        # The browser may run these two scripts, show pictures that are inside the page, and load nothing else.
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:",
        version=versions()["peppermill"],
    )
    write_atomically(path, page)
    return Path(path)


def in_script(value: Any) -> str:
    """JSON that may stand inside a <script> element: no name in it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return files("peppermill.report").joinpath("assets", name).read_text(encoding="utf-8")
