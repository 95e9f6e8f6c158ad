"""`peppermill paper ...`: the tables and figures of the paper, from data to numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli.console import plain_errors, say
from peppermill.paper import swa, swa_schedules, table2
from peppermill.paper.rows import ROWS, SEEDS
from peppermill.paper.training import Machine
from peppermill.paper.work import Settings
from peppermill.paper.work import tiny as tiny_settings

EXAMPLES = "peppermill paper table2 --rows mnist-mlp,cifar10 --models 25 --device cuda --out results/paper"

ALL_ROWS = ",".join(ROWS)
Rows = Annotated[str, typer.Option(help=f"Rows, separated by commas: {', '.join(ROWS)}.")]
Models = Annotated[int, typer.Option(help="Networks for each row, with seeds 17, 18, ...")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="A folder that already has the data sets.")]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Checkpoints = Annotated[Path, typer.Option(help="Folder for trained weights and finished stages; safe to delete.")]
Graphs = Annotated[bool, typer.Option("--graphs/--no-graphs", help="On a GPU: each training step as one CUDA graph.")]
Unfold = Annotated[bool, typer.Option("--unfold/--grouped", help="Convolutions as products of patches, or grouped.")]
Precision = Annotated[str, typer.Option(help="Of products on a GPU: float32, tf32 or bfloat16.")]

app = typer.Typer(
    name="paper",
    help="Run the experiments of Section 3.2 and write them down.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("table2", epilog=EXAMPLES)
@plain_errors
def table2_command(
    rows: Rows = ALL_ROWS,
    models: Models = 25,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = Path("results/paper"),
    checkpoints: Checkpoints = Path(".local/paper"),
    schedule: Annotated[str, typer.Option("--swa", help="The schedule of SWA.")] = swa_schedules.DEFAULT,
    graphs: Graphs = True,
    unfold: Unfold = False,
    precision: Precision = "tf32",
    tiny: Annotated[bool, typer.Option("--tiny", help="Three networks, two epochs: to see that it runs.")] = False,
) -> None:
    """Table 2: the networks of the paper, trained as it did, and every method beside it."""
    settings = Settings(
        rows=_names(rows),
        seeds=_seeds(models),
        swa=schedule,
        data=data,
        out=out,
        checkpoints=checkpoints,
        machine=Machine(device, graphs, unfold, precision),
        say=say,
    )
    table2.main(tiny_settings(settings) if tiny else settings)


@app.command("swa", epilog="peppermill paper swa --rows cifar10 --models 5 --device cuda")
@plain_errors
def swa_command(
    rows: Rows = ALL_ROWS,
    models: Models = 25,
    schedules: Annotated[str, typer.Option(help="Candidates, separated by commas; all when absent.")] = "",
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = Path("results/paper"),
    checkpoints: Checkpoints = Path(".local/paper"),
    graphs: Graphs = True,
    unfold: Unfold = False,
    precision: Precision = "tf32",
) -> None:
    """Candidate schedules of stochastic weight averaging, and their distance from the printed column."""
    settings = Settings(
        rows=_names(rows),
        seeds=_seeds(models),
        data=data,
        out=out,
        checkpoints=checkpoints,
        machine=Machine(device, graphs, unfold, precision),
        say=say,
    )
    found = swa.main(settings, _names(schedules) or tuple(swa_schedules.CANDIDATES))
    for row, name in found["nearest"].items():
        say(f"{row}: nearest is {name}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(models: int) -> tuple[int, ...]:
    if models < 1:
        raise ValueError(f"`--models {models}` must be at least 1.")
    return tuple(range(SEEDS[0], SEEDS[0] + models))
