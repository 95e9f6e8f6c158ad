"""`peppermill size`: NLL against the number of members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from peppermill.cli import options
from peppermill.cli import which_items as items
from peppermill.cli.console import out as console
from peppermill.cli.console import say
from peppermill.cli.outputs import refuse_outputs, write_outputs
from peppermill.data import Batches
from peppermill.ensemble import load
from peppermill.evaluation.member_count import SizeCurve, size_curve
from peppermill.report import figures
from peppermill.report.provenance import provenance
from peppermill.report.run import Run

EXAMPLES = (
    "peppermill size python:my_models:resnet npz:validation.npz --weights resnet.safetensors --pep pep.json "
    "--loss 0.002 --picture size.png"
)


def command(
    model: options.Model,
    data: options.Data,
    pep: Annotated[Path, typer.Option(help="An ensemble that `peppermill fit` wrote.")],
    loss: Annotated[float, typer.Option(help="What may be lost of the NLL.")] = 0.001,
    weights: options.Weights = None,
    out: Annotated[Path | None, typer.Option(help="Also write the curve as JSON, for `peppermill report`.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the curve: .png, .svg or .pdf.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the bootstrap.")] = 0,
    batch_size: options.BatchSize = 500,
    device: options.Device = "cpu",
) -> None:
    """NLL against the number of members, from one pass of those at hand, and how many are enough."""
    refuse_outputs(out, picture)
    source = options.source(model, weights, device)
    network = source.model
    ensemble = load(pep, network)
    curve = size_curve(ensemble, Batches(items.labelled(data, source), network, batch_size=batch_size), seed=seed)
    enough = curve.smallest(loss)
    _show(curve)
    say(f"{enough} of {ensemble.size} members lose at most {loss:g} of the NLL on these {curve.items:,} items")
    settings = {"model": model, "data": data, "weights": str(weights) if weights else None, "pep": str(pep)}
    write_outputs(
        out,
        lambda: Run(f"size of {pep}", settings, (), provenance=provenance(seed, network), sizes=curve),
        picture,
        lambda: figures.size_curve(curve, loss),
    )


def _show(curve: SizeCurve) -> None:
    table = Table("members", "NLL", f"lost against {curve.sizes[-1]}")
    for size, nll, lost in zip(curve.sizes, curve.nll, curve.loss, strict=True):
        table.add_row(f"{size}", *(f"{e.value:.4f} [{e.lower:.4f}, {e.upper:.4f}]" for e in (nll, lost)))
    console().print(table)
