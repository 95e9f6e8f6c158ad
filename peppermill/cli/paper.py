"""`peppermill paper ...`: the tables and figures of the paper, from data to numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from peppermill.cli import table1
from peppermill.cli.console import plain_errors, say
from peppermill.paper import document, figure1, figure2, figure3, noise_laws, ood, swa, swa_schedules, table2
from peppermill.paper.machine import Machine
from peppermill.paper.rows import ROWS, SEEDS
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
Streams = Annotated[int, typer.Option(help="Train the networks one by one on so many streams; 0: as one stack.")]
Compiled = Annotated[
    bool,
    typer.Option("--compiled", help="On a GPU: train compiled layers; it takes a minute first, and then saves some."),
]
Precision = Annotated[str, typer.Option(help="Of products on a GPU: float32, tf32 or bfloat16.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Few networks, two epochs: to see that it runs.")]
OUT, CHECKPOINTS = Path("results/paper"), Path(".local/paper")

app = typer.Typer(
    name="paper",
    help="Run the experiments of Section 3 and write them down.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

app.command("table1", epilog=table1.EXAMPLES)(plain_errors(table1.command))


@app.command("table2", epilog=EXAMPLES)
@plain_errors
def table2_command(
    rows: Rows = ALL_ROWS,
    models: Models = 25,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    schedule: Annotated[str, typer.Option("--swa", help="The schedule of SWA.")] = swa_schedules.DEFAULT,
    perturbed: Annotated[
        str | None, typer.Option(help="Other layers than the paper's in its PEP column: a regular expression.")
    ] = None,
    graphs: Graphs = True,
    streams: Streams = 0,
    precision: Precision = "tf32",
    compiled: Compiled = False,
    tiny: Tiny = False,
) -> None:
    """Table 2: the networks of the paper, trained as it did, and every method beside it."""
    machine = Machine(device, graphs, streams, precision, compiled)
    table2.main(_settings(rows, models, data, out, checkpoints, machine, tiny, swa=schedule, perturbed=perturbed))


@app.command("swa", epilog="peppermill paper swa --rows cifar10 --schedules 'plain:start=4 longer:swa=1e-3,more=20'")
@plain_errors
def swa_command(
    rows: Rows = ALL_ROWS,
    models: Models = 25,
    schedules: Annotated[str, typer.Option(help="Candidates, separated by spaces; all when absent.")] = "",
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    graphs: Graphs = True,
    streams: Streams = 0,
    precision: Precision = "tf32",
    compiled: Compiled = False,
    tiny: Tiny = False,
) -> None:
    """Candidate schedules of stochastic weight averaging, and their distance from the printed column."""
    machine = Machine(device, graphs, streams, precision, compiled)
    settings = _settings(rows, models, data, out, checkpoints, machine, tiny)
    found = swa.main(settings, tuple(schedules.split()) or swa_schedules.CANDIDATES)
    for row, name in found["nearest"].items():
        say(f"{row}: nearest is {name}")


@app.command("figure1", epilog="peppermill paper figure1 --network demo")
@plain_errors
def figure1_command(
    network: Annotated[str, typer.Option(help="A row of Table 2, or demo: the embedded network.")] = "cifar10",
    models: Models = 1,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    graphs: Graphs = True,
    precision: Precision = "tf32",
    tiny: Tiny = False,
) -> None:
    """Figure 1: the log-likelihood of ensemble and members along sigma."""
    settings = _settings("", models, data, out, checkpoints, Machine(device, graphs, precision=precision), tiny)
    figure1.main(settings, figure1.Curve(network))


@app.command("figure2", epilog="peppermill paper figure2 --device cuda")
@plain_errors
def figure2_command(
    row: Annotated[str, typer.Option(help="The row of Table 2 whose network is shown.")] = "cifar10",
    models: Models = 1,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    graphs: Graphs = True,
    precision: Precision = "tf32",
    tiny: Tiny = False,
) -> None:
    """Figure 2: reliability before and after, and the mistakes that PEP corrects."""
    settings = _settings("", models, data, out, checkpoints, Machine(device, graphs, precision=precision), tiny)
    figure2.main(settings, figure2.Pictures(row))


@app.command("figure3", epilog="peppermill paper figure3 --models 5 --device cuda")
@plain_errors
def figure3_command(
    rows: Rows = ",".join(figure3.EXPERIMENTS),  # noqa: B008
    models: Models = figure3.MODELS,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    graphs: Graphs = True,
    streams: Streams = 0,
    precision: Precision = "tf32",
    compiled: Compiled = False,
    tiny: Tiny = False,
) -> None:
    """Figure 3: overfitting against the PEP effect and sigma*, after every epoch."""
    machine = Machine(device, graphs, streams, precision, compiled)
    figure3.main(_settings(rows, models, data, out, checkpoints, machine, tiny))


@app.command("noise", epilog="peppermill paper noise --device cuda")
@plain_errors
def noise_command(
    row: Annotated[str, typer.Option(help="The row of Table 2.")] = "mnist-mlp",
    models: Models = 25,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    graphs: Graphs = True,
    precision: Precision = "tf32",
    tiny: Tiny = False,
) -> None:
    """Uniform against Gaussian noise, paired."""
    machine = Machine(device, graphs, precision=precision)
    noise_laws.main(_settings(row, models, data, out, checkpoints, machine, tiny))


@app.command("ood", epilog="peppermill paper ood --device cuda --precision bfloat16")
@plain_errors
def ood_command(
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 60,
    device: Device = "cpu",
    data: DataFolder = None,
    out: Out = OUT,
    checkpoints: Checkpoints = CHECKPOINTS,
    precision: Precision = "bfloat16",
    tiny: Tiny = False,
) -> None:
    """Out-of-distribution detection with a WideResNet-28x10 on five classes of CIFAR-10."""
    settings = ood.Settings(
        epochs=epochs,
        data=data,
        out=out,
        checkpoints=checkpoints,
        machine=Machine(device, precision=precision),
        say=say,
    )
    ood.main(ood.tiny(settings) if tiny else settings)


@app.command("document", epilog="peppermill paper document --results results/paper --page docs/paper.md")
@plain_errors
def document_command(
    results: Annotated[Path, typer.Option(help="The folder of the results.")] = OUT,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/paper.md"),
    data: DataFolder = None,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Draw the figures.")] = True,
) -> None:
    """Write the page that shows our numbers beside the printed ones."""
    document.main(document.Settings(results, page, data, pictures, say))


def _settings(
    rows: str,
    models: int,
    data: Path | None,
    out: Path,
    checkpoints: Path,
    machine: Machine,
    tiny: bool,
    **more: Any,
) -> Settings:
    if models < 1:
        raise ValueError(f"`--models {models}` must be at least 1.")
    seeds = tuple(range(SEEDS[0], SEEDS[0] + models))
    settings = Settings(
        _names(rows), seeds, data=data, out=out, checkpoints=checkpoints, machine=machine, say=say, **more
    )
    return tiny_settings(settings) if tiny else settings


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
