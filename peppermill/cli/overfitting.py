"""`peppermill probe`: overfitting, sigma*, PEP effect and curvature over a series of checkpoints (Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import options, which_items
from peppermill.evaluation.overfitting import probe_overfitting
from peppermill.report import figures
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
    device: options.Device = "auto",
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
    run = Run(f"overfitting of {model}", settings, (), overfitting=overfitting_panel(found))
    results.deliver([found], run, lambda: figures.overfitting_scatter(found), seed)
