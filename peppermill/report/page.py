"""Run files -> one self-contained page: no model, no data, no GPU, no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from peppermill.plumbing.files import write_atomically
from peppermill.report.library import plotly_script
from peppermill.report.payload import payload
from peppermill.report.run import Run, plain, read_run
from peppermill.report.verdict import TITLES
from peppermill.report.view import compared, view

#: What a report is made from: a run, or the file that `write_run` wrote.
Source: TypeAlias = Run | str | Path


def write_report(runs: Source | Sequence[Source], path: str | Path = "report.html") -> Path:
    """One HTML file that shows a run, or compares several; written whole or not at all.

    It opens by double click and asks no network for anything: its scripts are inside.
    """
    sources = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    if not sources:
        raise ValueError("`runs` is empty: give at least one run, or the path of a run file.")
    named = [(_name(source), _content(source)) for source in sources]
    write_atomically(path, _page(named, plotly_script()))
    return Path(path)


def in_script(value: Any) -> str:
    """JSON that may stand inside a <script> element: no name in it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _name(source: Source) -> str:
    return "the run" if isinstance(source, Run) else str(source)


def _content(source: Source) -> dict[str, Any]:
    return json.loads(json.dumps(plain(source))) if isinstance(source, Run) else read_run(source)


def _page(named: Sequence[tuple[str, Mapping[str, Any]]], library: str) -> str:
    shown = [_shown(name, content) for name, content in named]
    contents = [content for _, content in named]
    several = compared(contents) if len(contents) > 1 else []
    script = "\n".join(_asset(name) for name in ("figures.js", "page.js"))
    return _template(
        runs=[texts for texts, _ in shown],
        comparison=several,
        scores={name: TITLES[name] for name in TITLES if any(name in row["scores"] for row in several)},
        payload=_safe(in_script({"runs": [numbers for _, numbers in shown], "compared": several})),
        library=_safe(base64.b64encode(gzip.compress(library.encode(), 9, mtime=0)).decode()),
        script=_safe(script),
        css=_safe(_asset("page.css")),
        policy=_policy(script, library),
        version=_version(),
    )


def _shown(name: str, content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The texts and the numbers of one run."""
    try:
        return view(content), payload(content)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{name} is damaged ({type(error).__name__}: {error}), so no report was written: run the command that "
            "wrote it again."
        ) from error


def _template(**values: Any) -> str:
    """The page, every text in it escaped unless it was marked as safe."""
    jinja2 = import_module("jinja2")
    loader = jinja2.FunctionLoader(_asset)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page: str = environment.get_template("page.html").render(**values)
    return page


def _safe(text: str) -> Any:
    return import_module("markupsafe").Markup(text)


def _policy(*scripts: str) -> str:
    """What the browser may do: run these very scripts, show pictures from inside the page, and ask nobody else."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _asset(name: str) -> str:
    return files("peppermill.report").joinpath("assets", name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return version("peppermill")
    except PackageNotFoundError:
        return ""
