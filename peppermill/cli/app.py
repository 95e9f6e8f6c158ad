"""`peppermill`: the commands, together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from peppermill.cli import (
    console,
    curvature,
    demo,
    evaluate,
    export,
    fit,
    info,
    member_count,
    overfitting,
    paper,
    predict,
    report,
    sweep,
)
from peppermill.recipe import versions

app = typer.Typer(
    name="peppermill",
    cls=console.Commands,
    help="Honest probabilities from any trained network, without training it again (PEP, NeurIPS 2020).",
    epilog="Start with `peppermill demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

SHARED = {"fit", "evaluate", "predict", "sweep"}  # under torchrun, by all processes

for name, module in {
    "demo": demo,
    "fit": fit,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "sweep": sweep,
    "curvature": curvature,
    "probe": overfitting,
    "size": member_count,
    "report": report,
    "info": info,
}.items():
    app.command(name, epilog=module.EXAMPLES)(console.plain_errors(module.command, shared=name in SHARED))

app.add_typer(paper.app)


def _show_version(asked: bool) -> None:
    if asked:
        console.say(f"peppermill {versions()['peppermill']}")
        raise typer.Exit()


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What stands before the name of a command."""
    console.debug["on"] = debug


def main() -> None:
    """The command line; `--debug` may stand anywhere on it."""
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    app(arguments)
