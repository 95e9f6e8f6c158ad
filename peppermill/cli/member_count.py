"""`peppermill size`: NLL against the number of members."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from peppermill.cli import options, which_items
from peppermill.cli.console import say, show
from peppermill.data import Batches
from peppermill.ensemble import load
from peppermill.evaluation.member_count import SizeCurve, size_curve
from peppermill.report import figures
from peppermill.report.provenance import provenance
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
        lambda: _show(curve, loss),
        lambda: Run(f"size of {pep}", settings, (), provenance=provenance(seed, source.model), sizes=curve),
        lambda: figures.size_curve(curve, loss),
    )


def _show(curve: SizeCurve, loss: float) -> None:
    most = curve.sizes[-1]
    table = Table("members", "NLL", f"lost against {most}")
    for size, nll, lost in zip(curve.sizes, curve.nll, curve.loss, strict=True):
        table.add_row(f"{size}", *(f"{e.value:.4f} [{e.lower:.4f}, {e.upper:.4f}]" for e in (nll, lost)))
    show(table)
    few = curve.smallest(loss)
    say(f"{few} of {most} members lose at most {loss:g} of the NLL on these {curve.items:,} items")
