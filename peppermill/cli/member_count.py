"""`peppermill size`: NLL against the number of members."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from peppermill.cli import options, which_items
from peppermill.data import Batches
from peppermill.ensemble import load
from peppermill.evaluation.member_count import size_curve
from peppermill.report import figures
from peppermill.report.run import Run

EXAMPLES = "peppermill size python:my_models:resnet npz:test.npz --weights resnet.safetensors --pep pep.json"


def command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    pep: options.RequiredPep,
    results: options.Results,
    loss: Annotated[float, typer.Option(help="The loss in NLL that you accept.")] = 0.001,
    seed: options.BootstrapSeed = 0,
    batch_size: options.BatchSize = 500,
) -> None:
    """Show the NLL against the number of members, from one pass of those in the ensemble, and how many are enough."""
    source = network.source()
    ensemble = load(pep, source.model)
    labelled = which_items.labelled(data, source)
    curve = size_curve(ensemble, Batches(labelled, source.model, batch_size=batch_size), seed=seed)
    settings = options.settings(context, "model", "data", "weights", "pep")
    results.deliver(
        [replace(curve.table(), note=f"{curve.enough(loss)} on these {curve.items:,} items")],
        Run(f"size of {pep}", settings, (), sizes=curve),
        lambda: figures.size_curve(curve, loss),
        seed,
        network=source.model,
    )
