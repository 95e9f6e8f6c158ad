"""`peppermill export`: the ensemble as one file for torch.export or ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import peppermill as pm
from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.export.verify import format_of
from peppermill.streaming.numbered_batches import stream_of


def export_command(
    network: options.Network,
    pep: options.RequiredPep,
    out: Annotated[Path, typer.Option(help="The file: .pt2 for torch.export or .onnx.")] = Path("model.pt2"),
    example: Annotated[str | None, typer.Option(metavar="DATA", help="Data like the later inputs; two items.")] = None,
    shape: Annotated[str | None, typer.Option(help="In place of --example: the shape of an input, 3,224,224.")] = None,
) -> None:
    """Write one file that gives the ensemble's probabilities for any number of items, without peppermill.

    It is compared with the ensemble on the example before it is written.
    """
    format_of(out)
    if (example is None) == (shape is None):
        raise ValueError("give either `--example DATA` or `--shape 3,224,224`, to say what the network's inputs are.")
    inputs: Any = None
    if shape:
        numbers = options.numbers(shape, "--shape")
        if any(number < 1 or number != int(number) for number in numbers):
            raise ValueError(f"`--shape {shape}` must be whole numbers separated by commas, as in 3,224,224.")
        inputs = torch.randn(2, *map(int, numbers), generator=torch.Generator().manual_seed(0))
    source = network.source()
    if example:
        inputs = next(stream_of(which_items.to_predict(example, source), 2).read()).inputs
    ensemble = pm.load(pep, source.model, engine="loop")
    ensemble.export(out, inputs)
    members = ensemble.passes
    say(f"wrote {out}: {members} member{'s' * (members > 1)}, {out.stat().st_size / 1e6:.1f} MB")
