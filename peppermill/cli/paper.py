"""`peppermill paper ...`: the tables and figures of the paper, from data to numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import experiments, table1
from peppermill.cli.console import plain_errors, say
from peppermill.cli.experiments import OF_MANY_ROWS, OF_ONE_ROW, with_settings
from peppermill.paper import document, figure1, figure2, figure3, noise_laws, ood, swa, swa_schedules, table2
from peppermill.paper.machine import Machine
from peppermill.paper.work import Settings

app = typer.Typer(
    name="paper",
    help="Run the experiments of Section 3 and write them down.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

app.command("table1", epilog=table1.EXAMPLES)(plain_errors(table1.command))


@app.command(
    "table2",
    epilog="peppermill paper table2 --rows mnist-mlp,cifar10 --models 25 --device cuda --out results/paper",
)
@plain_errors
@with_settings(OF_MANY_ROWS)
def table2_command(
    *,
    settings: Settings,
    schedule: Annotated[str, typer.Option("--swa", help="The schedule of SWA.")] = swa_schedules.DEFAULT,
    perturbed: Annotated[
        str | None, typer.Option(help="Other layers than the paper's in its PEP column: a regular expression.")
    ] = None,
) -> None:
    """Table 2: the networks of the paper, trained as it did, and every method beside it."""
    table2.main(replace(settings, swa=schedule, perturbed=perturbed))


@app.command("swa", epilog="peppermill paper swa --rows cifar10 --schedules 'plain:start=4 longer:swa=1e-3,more=20'")
@plain_errors
@with_settings(OF_MANY_ROWS)
def swa_command(
    *,
    settings: Settings,
    schedules: Annotated[str, typer.Option(help="Candidates, separated by spaces; all when absent.")] = "",
) -> None:
    """Candidate schedules of stochastic weight averaging, and their distance from the printed column."""
    found = swa.main(settings, tuple(schedules.split()) or swa_schedules.CANDIDATES)
    for row, name in found["nearest"].items():
        say(f"{row}: nearest is {name}")


@app.command("figure1", epilog="peppermill paper figure1 --network demo")
@plain_errors
@with_settings(OF_ONE_ROW, models=1)
def figure1_command(
    *,
    network: Annotated[str, typer.Option(help="A row of Table 2, or demo: the embedded network.")] = "cifar10",
    settings: Settings,
) -> None:
    """Figure 1: the log-likelihood of ensemble and members along sigma."""
    figure1.main(settings, figure1.Curve(network))


@app.command("figure2", epilog="peppermill paper figure2 --device cuda")
@plain_errors
@with_settings(OF_ONE_ROW, models=1)
def figure2_command(
    *,
    row: Annotated[str, typer.Option(help="The row of Table 2 whose network is shown.")] = "cifar10",
    settings: Settings,
) -> None:
    """Figure 2: reliability before and after, and the mistakes that PEP corrects."""
    figure2.main(settings, figure2.Pictures(row))


@app.command("figure3", epilog="peppermill paper figure3 --models 5 --device cuda")
@plain_errors
@with_settings(OF_MANY_ROWS, rows=",".join(figure3.EXPERIMENTS), models=figure3.MODELS)
def figure3_command(*, settings: Settings) -> None:
    """Figure 3: overfitting against the PEP effect and sigma*, after every epoch."""
    figure3.main(settings)


@app.command("noise", epilog="peppermill paper noise --device cuda")
@plain_errors
@with_settings(OF_ONE_ROW)
def noise_command(
    *,
    row: Annotated[str, typer.Option(help="The row of Table 2.")] = "mnist-mlp",
    settings: Settings,
) -> None:
    """Uniform against Gaussian noise, paired."""
    noise_laws.main(replace(settings, rows=(row,)))


@app.command("ood", epilog="peppermill paper ood --device cuda --precision bfloat16")
@plain_errors
def ood_command(
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 30,
    device: experiments.Device = "cpu",
    data: experiments.DataFolder = None,
    out: experiments.Out = experiments.OUT,
    checkpoints: experiments.Checkpoints = experiments.CHECKPOINTS,
    precision: experiments.Precision = "bfloat16",
    tiny: experiments.Tiny = False,
) -> None:
    """Out-of-distribution detection with a WideResNet-28x10 on five classes of CIFAR-10."""
    machine = Machine(device, precision=precision)
    out, checkpoints = experiments.tiny_folders(out, checkpoints) if tiny else (out, checkpoints)
    experiments.refuse_unusable(device, out, checkpoints)
    settings = ood.Settings(epochs=epochs, data=data, out=out, checkpoints=checkpoints, machine=machine, say=say)
    ood.main(ood.tiny(settings) if tiny else settings)


@app.command("document", epilog="peppermill paper document --results results/paper --page docs/paper.md")
@plain_errors
def document_command(
    results: Annotated[Path, typer.Option(help="The folder of the results.")] = experiments.OUT,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/paper.md"),
    data: experiments.DataFolder = None,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Draw the figures.")] = True,
) -> None:
    """Write the page that shows our numbers beside the printed ones."""
    document.main(document.Settings(results, page, data, pictures, say))
