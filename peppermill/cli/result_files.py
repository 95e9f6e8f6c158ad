"""`peppermill report` and `peppermill info`: runs as one page, and what a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import peppermill as pm
from peppermill import pep_json
from peppermill.cli.console import say
from peppermill.plumbing.files import read_object
from peppermill.report import run as results


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run files; several are compared.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page from run files alone; neither model nor data are needed."""
    pm.write_report(runs, out)
    say(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB): open it in a browser.")


def info_command(path: Annotated[Path, typer.Argument(metavar="FILE", help="A pep.json or a run.json.")]) -> None:
    """Show what an ensemble or a run file holds; neither model nor data are needed."""
    found = read_object(path)
    is_run = isinstance(found, dict) and found.get("format") == results.KIND
    del found  # it can be large
    content = results.read_run(path) if is_run else pep_json.read_content(path)
    try:
        if not is_run:
            _show_ensemble(content)
            return
        say(results.run_table(content))
        if content["methods"] and content.get("sweep"):
            say(results.run_table({**content, "methods": []}))
        say(json.dumps({"settings": content["settings"], "provenance": content["provenance"]}, indent=2))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): write it again.") from error


def _show_ensemble(content: dict[str, Any]) -> None:
    noise, selection, network = (content[key] for key in ("noise", "selection", "fingerprint"))
    pairs = "antithetic pairs" if noise["antithetic"] else "independent members"
    calibrator, of = content["calibrator"], f"of a network with {network['numbers']:,} numbers"
    if content["sigma"]:
        say(f"an ensemble of {content['size']} members, {noise['law']} noise, {pairs}, seed {noise['seed']}")
        say(f"sigma = {content['sigma']:.6g}; perturbs {selection['arrays']} arrays ({selection['rule']}) {of}")
    else:
        say(f"the predictions {of}, without noise")
    views = f"; views: {', '.join(content['views'])}" if content["views"] else ""
    say(f"calibrator: {calibrator['name']}, temperature = {calibrator['temperature']:.6g}{views}")
    say(f"likelihood: {content['likelihood']['name']}")
    if split := content.get("split"):
        drawn = f"{split['validation']:,} of the {split['items']:,} items of {split['data']}, seed {split['seed']}"
        say(f"tuned on {drawn}; the others are for testing")
    if content["sigma"] or not pep_json.race_of(content):
        say(pep_json.search_of(content))
    if race := pep_json.race_of(content):
        say(f"chosen by a race:\n{race}")
    say(f"written by {', '.join(f'{name} {number}' for name, number in content['versions'].items())}")
