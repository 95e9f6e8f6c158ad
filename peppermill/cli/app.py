"""`peppermill`: the table of commands. A command's module, and with it torch, is imported when the command is used."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.resources import files
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup
from typer.main import get_command

from peppermill.cli import console, torchrun


@dataclass(frozen=True)
class CommandRow:
    """A command: its module in `peppermill.cli`, its line in `peppermill --help`, and whether processes share it."""

    module: str
    help: str
    shared: bool = False


#: A new command is a row here, a row of EXAMPLES, and a function of its module, `fit_command` for `fit`.
COMMANDS = {
    "demo": CommandRow("demo", "Calibrate the embedded network and write a report: the whole job in a minute."),
    "calibrate": CommandRow(
        "tuning", "Find the best probabilities for a number of passes, by a race; write pep.json.", shared=True
    ),
    "fit": CommandRow("tuning", "Find sigma on validation data and write the ensemble, pep.json.", shared=True),
    "evaluate": CommandRow("testing", "Score the network, and the ensemble beside it, on labelled data.", shared=True),
    "predict": CommandRow("outputs", "Write probabilities and uncertainties of every item into a file.", shared=True),
    "abstain": CommandRow("testing", "Find which predictions to keep for an error rate that you name.", shared=True),
    "export": CommandRow("outputs", "Write the ensemble as one file for torch.export or ONNX."),
    "sweep": CommandRow("measurements", "Compute L(sigma) and every score along a grid of sigma.", shared=True),
    "curvature": CommandRow("measurements", "Predict the PEP effect from the curvature at the network's weights."),
    "probe": CommandRow("measurements", "Relate overfitting to sigma*, PEP effect and curvature over checkpoints."),
    "size": CommandRow("measurements", "Show how the NLL depends on the number of members."),
    "report": CommandRow("result_files", "Turn run files into one HTML page."),
    "info": CommandRow("result_files", "Show what a pep.json or a run.json holds."),
}

#: How each command may be used, after `peppermill` and its name.
EXAMPLES = {
    "demo": "--out peppermill-demo",
    "calibrate": "python:my_models:resnet npz:validation.npz --weights resnet.safetensors --passes 10",
    "fit": "python:my_models:resnet npz:validation.npz --weights resnet.safetensors --temperature",
    "evaluate": "python:my_models:resnet npz:test.npz --weights resnet.safetensors --pep pep.json "
    "--sweep npz:validation.npz --out run.json",
    "predict": "python:my_models:resnet npz:new.npz --weights resnet.safetensors --pep pep.json "
    "--columns predicted,confidence,mutual_information --out predictions/",
    "abstain": "python:my_models:resnet npz:test.npz --weights resnet.safetensors --pep pep.json --risk 0.01",
    "export": "python:my_models:resnet --weights resnet.safetensors --pep pep.json --out model.onnx "
    "--example npz:new.npz",
    "sweep": "python:my_models:resnet npz:validation.npz --weights resnet.safetensors --picture curve.png",
    "curvature": "python:my_models:resnet npz:test.npz --weights resnet.safetensors --picture effect.png",
    "probe": "epoch-*.safetensors --model python:my_models:resnet --train npz:train.npz "
    "--validation npz:validation.npz --test npz:test.npz --picture overfitting.png",
    "size": "python:my_models:resnet npz:test.npz --weights resnet.safetensors --pep pep.json",
    "report": "run.json -o report.html",
    "info": "pep.json",
}

MOVED = "`peppermill paper` moved out of the package: in a clone of the repository run `python -m experiments table2`."


class Commands(TyperGroup):
    """The group of commands: it imports the one that runs, and turns every mistake into one line and an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "paper" and not ctx.resilient_parsing:
            raise ValueError(MOVED)
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = outline(name) if ctx.resilient_parsing else load(name)  # resilient: a shell completes a line
        return name, command, rest

    def main(self, *args: Any, **options: Any) -> Any:
        with torchrun.silence_others():
            try:
                code = super().main(*args, **{**options, "standalone_mode": False})
            except Exception as error:
                if console.debug["on"] and not isinstance(error, console.UsageError):
                    raise
                code = console.complain_of(error)
            if code == console.INTERRUPTED:
                raise KeyboardInterrupt
        if options.get("standalone_mode", True):
            sys.exit(code)
        return code


def load(name: str) -> Any:
    """Import a command's module and build the command with all its options."""
    row = COMMANDS[name]
    command = getattr(import_module(f"peppermill.cli.{row.module}"), f"{name}_command")
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {argument: kind for argument, kind in hints.items() if is_dataclass(kind)}

    def run(**given: Any) -> None:
        with console.notes(), torchrun.processes(row.shared, given.get("device", "cpu")) as works:
            if works:
                for argument, group in groups.items():
                    given[argument] = group(**{field.name: given.pop(field.name) for field in fields(group)})
                command(**given)

    parameters: list[Parameter] = []  # what typer reads: the options of a group in place of the group
    for argument, parameter in signature(command).parameters.items():
        group = groups.get(argument)
        hints |= get_type_hints(group, include_extras=True) if group else {}
        options = signature(group).parameters.values() if group else [parameter]
        parameters += [one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in options]
    run.__doc__ = "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))
    return _command(name, run, parameters, f"peppermill {name} {EXAMPLES[name]}")


def outline(name: str) -> Any:
    """A command with its options and nothing behind them: completing a line imports neither torch nor the command.

    They stand in options.json, which `python scripts/update_docs.py` writes.
    """
    rows = json.loads(files("peppermill.cli").joinpath("options.json").read_text(encoding="utf-8"))[name]
    kinds = {"flag": bool, "path": Path}
    parameters = []
    for k, (names, kind, text) in enumerate(rows):
        annotation: Any = Annotated[kinds.get(kind, str), typer.Option(names, help=text)]
        parameters.append(Parameter(f"option_{k}", Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return _command(name, lambda **_: None, parameters, "")


def _command(name: str, run: Any, parameters: list[Parameter], epilog: str) -> Any:
    """A command of typer, which reads a function's signature."""
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = Signature(parameters)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    single.command(name, epilog=epilog)(run)
    return get_command(single)


app = typer.Typer(
    name="peppermill",
    cls=Commands,
    help="Honest probabilities from any trained network, without training it again (PEP, NeurIPS 2020).",
    epilog="Start with `peppermill demo`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for name, row in COMMANDS.items():
    app.command(name, short_help=row.help)(lambda: None)  # `resolve_command` replaces it


def show_version(asked: bool) -> None:
    """Print the version of the package and end."""
    if asked:
        console.say(f"peppermill {import_module('peppermill').__version__}")
        raise typer.Exit()


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """The options before the name of a command."""
    console.debug["on"] = debug


def main() -> None:
    """The command line; `--debug` may stand anywhere on it."""
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    console.harden_streams()
    app(arguments)
