"""`peppermill probe`: overfitting, sigma*, PEP effect and curvature over a series of checkpoints (Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from peppermill.cli import options, which_items
from peppermill.cli.console import say, show
from peppermill.evaluation.overfitting import NAMES, OverfittingProbe, probe_overfitting
from peppermill.report import figures
from peppermill.report.provenance import provenance
from peppermill.report.record import overfitting_panel
from peppermill.report.run import Run

EXAMPLES = (
    "peppermill probe epoch-*.safetensors --model python:my_models:resnet --train npz:train.npz --validation "
    "npz:validation.npz --test npz:test.npz --picture overfitting.png"
)


def command(
    context: typer.Context,
    checkpoints: Annotated[list[Path], typer.Argument(metavar="CHECKPOINT...", help="Weight files of one network.")],
    model: Annotated[str, typer.Option(help="The network: python:package.module:factory.")],
    train: Annotated[str, typer.Option(help="The data that the network was trained on, as DATA of `fit`.")],
    validation: Annotated[str, typer.Option(help="The data on which sigma and the curvature are found.")],
    test: Annotated[str, typer.Option(help="The data on which overfitting and the PEP effect are measured.")],
    results: options.Results,
    parameters: options.Parameters = "kernels",
    size: options.Size = 10,
    probes: Annotated[int, typer.Option(help="Random directions of the local analysis.")] = 8,
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
    device: options.Device = "cpu",
    trust: options.Trust = False,
) -> None:
    """Compare the train-test gap of each checkpoint with sigma*, PEP effect and curvature (Figure 3)."""
    source = options.Network(model, None, device, trust).source()
    data = {name: which_items.labelled(context.params[name], source) for name in ("train", "validation", "test")}
    found = probe_overfitting(source.model, checkpoints, **{**options.arguments_of(probe_overfitting, context), **data})
    settings = {
        **options.settings(context, "model", "train", "validation", "test", "parameters", "size", "probes"),
        "checkpoints": [str(path) for path in checkpoints],
    }
    title = f"overfitting of {model}"
    results.deliver(
        lambda: _show(found),
        lambda: Run(title, settings, (), provenance=provenance(seed), overfitting=overfitting_panel(found)),
        lambda: figures.overfitting_scatter(found),
    )


def _show(found: OverfittingProbe) -> None:
    table = Table("checkpoint", "training NLL", "test NLL", "overfitting", "sigma*", "PEP effect", "effect rate")
    for p in found.points:
        scores = (p.train_nll, p.test_nll, p.overfitting)
        table.add_row(
            Path(p.name).name,
            *(f"{score:.4f}" for score in scores),
            f"{p.sigma:.4g}",
            f"{p.pep_effect:.4f}",
            f"{p.effect_rate:.4g} ± {p.effect_rate_error:.2g}",
        )
    show(table)
    say("rank correlation with overfitting, as if checkpoints were independent:")
    for name, title in NAMES.items():
        rho = found.correlations.get(name)
        text = f"{rho.rho:+.2f}  [{rho.lower:+.2f}, {rho.upper:+.2f}]" if rho else "only one value"
        say(f"  {title:<26} {text}")
