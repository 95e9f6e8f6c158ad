"""The options that the experiments of the paper share, each said once, and the settings that they make together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from peppermill.cli.console import say
from peppermill.cli.options import device_named
from peppermill.paper.machine import Machine
from peppermill.paper.rows import ROWS, SEEDS
from peppermill.paper.work import Settings
from peppermill.paper.work import tiny as tiny_settings
from peppermill.plumbing.files import refuse_unwritable

Command = Callable[..., None]

Rows = Annotated[str, typer.Option(help=f"Rows, separated by commas: {', '.join(ROWS)}.")]
Models = Annotated[int, typer.Option(help="Networks for each row, with seeds 17, 18, ...")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="A folder that already has the data sets.")]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Checkpoints = Annotated[Path, typer.Option(help="Folder for trained weights and finished stages; safe to delete.")]
Graphs = Annotated[bool, typer.Option("--graphs/--no-graphs", help="On a GPU: each training step as one CUDA graph.")]
Compiled = Annotated[
    bool,
    typer.Option("--compiled", help="On a GPU: train compiled layers, which takes a minute first and then saves some."),
]
Precision = Annotated[str, typer.Option(help="Of products on a GPU: float32, tf32 or bfloat16.")]
LearningRate = Annotated[float | None, typer.Option(help="Of the networks without dropout, in place of the row's own.")]
Tiny = Annotated[
    bool,
    typer.Option("--tiny", help="Few networks, two epochs: to see that it runs. Its files lie apart from the others'."),
]

OUT, CHECKPOINTS = Path("results/paper"), Path(".local/paper")

#: What each shared option is, and its value where neither the user nor the experiment says another.
SHARED: dict[str, tuple[Any, Any]] = {
    "rows": (Rows, ",".join(ROWS)),
    "models": (Models, len(SEEDS)),
    "device": (Device, "cpu"),
    "data": (DataFolder, None),
    "out": (Out, OUT),
    "checkpoints": (Checkpoints, CHECKPOINTS),
    "graphs": (Graphs, True),
    "precision": (Precision, "tf32"),
    "compiled": (Compiled, False),
    "learning_rate": (LearningRate, None),
    "tiny": (Tiny, False),
}
OF_MANY_ROWS = tuple(SHARED)
OF_ONE_ROW = tuple(name for name in SHARED if name not in ("rows", "compiled"))


def with_settings(names: tuple[str, ...], **defaults: Any) -> Callable[[Command], Command]:
    """On the command line the shared options of these names stand where the command has its argument `settings`."""
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name, SHARED[name][1]), annotation=SHARED[name][0])
        for name in names
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            made = settings_from(**{name: given.pop(name) for name in names})
            refuse_unusable(made.machine.device, made.out, made.checkpoints)
            command(settings=made, **given)

        own = signature(command, eval_str=True)
        shown = [one for each in own.parameters.values() for one in (shared if each.name == "settings" else [each])]
        run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in shown}  # typer reads both
        return run

    return decorate


def settings_from(
    models: int,
    device: str,
    data: Path | None,
    out: Path,
    checkpoints: Path,
    graphs: bool,
    precision: str,
    tiny: bool,
    rows: str = ",".join(ROWS),
    compiled: bool = False,
    learning_rate: float | None = None,
) -> Settings:
    """What the shared options say."""
    if models < 1:
        raise ValueError(f"`--models {models}` must be at least 1.")
    if not names_in(rows):
        raise ValueError(f"`--rows '{rows}'` names no row of Table 2: choose from {', '.join(ROWS)}.")
    out, checkpoints = tiny_folders(out, checkpoints) if tiny else (out, checkpoints)
    settings = Settings(
        rows=names_in(rows),
        seeds=tuple(range(SEEDS[0], SEEDS[0] + models)),
        data=data,
        out=out,
        checkpoints=checkpoints,
        machine=Machine(device, graphs, precision, compiled),
        learning_rate=learning_rate,
        say=say,
    )
    return tiny_settings(settings) if tiny else settings


def tiny_folders(out: Path, checkpoints: Path) -> tuple[Path, Path]:
    """Where a tiny run writes: it must replace neither the results nor the weights of a whole one."""
    apart = checkpoints / "tiny"
    return apart if out == OUT else out, apart


def refuse_unusable(device: str, *folders: Path) -> None:
    """What cannot be used is told now, and not after an hour of training."""
    device_named(device)
    for folder in folders:
        refuse_unwritable(folder / "result.json")


def names_in(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
