"""`peppermill export`: the ensemble as one file for torch.export or ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from peppermill.cli import options
from peppermill.cli import which_items as items
from peppermill.cli.console import say
from peppermill.data import Batches, map_tensors
from peppermill.export.verify import format_of
from peppermill.sources.source import Source

EXAMPLES = (
    "peppermill export python:my_models:resnet --weights resnet.safetensors --pep pep.json --out model.onnx --example "
    "npz:new.npz"
)


def command(
    model: options.Model,
    pep: Annotated[Path, typer.Option(help="The ensemble, which `peppermill fit` wrote.")],
    weights: options.Weights = None,
    out: Annotated[Path, typer.Option(help="Where to write: .pt2 for torch.export, .onnx for ONNX.")] = Path(
        "model.pt2"
    ),
    example: Annotated[
        str | None, typer.Option(metavar="DATA", help="Data like those that the file will see; two items are read.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="In place of --example, the shape of one input of numbers: 3,224,224.")
    ] = None,
    device: options.Device = "cpu",
) -> None:
    """Write one file that gives the ensemble's probabilities for any number of items, without peppermill.

    It is compared with the ensemble on the example before it is written.
    """
    format_of(out)
    _refuse_both(example, shape)
    shaped = _of_shape(shape) if shape else None
    source = options.source(model, weights, device)
    inputs = _of_data(str(example), source) if shaped is None else shaped
    found = options.ensemble(pep, source.model, None, "loop", None)
    assert found is not None
    found.export(out, inputs)
    members = found.size if found.sigma else 1
    say(f"wrote {out}: {members} member{'s' * (members > 1)}, {out.stat().st_size / 1e6:.1f} MB")


def _refuse_both(example: str | None, shape: str | None) -> None:
    if (example is None) == (shape is None):
        raise ValueError("give either `--example DATA` or `--shape 3,224,224`, to say what the network's inputs are.")


def _of_shape(shape: str) -> Any:
    return torch.randn(2, *_whole_numbers(shape), generator=torch.Generator().manual_seed(0))


def _of_data(example: str, source: Source) -> Any:
    inputs, _ = next(iter(Batches(items.labelled(example, source), argument="example", batch_size=2)))
    return map_tensors(lambda t: t[:2], inputs)


def _whole_numbers(text: str) -> list[int]:
    found = options.numbers(text, "--shape")
    if any(number < 1 or number != int(number) for number in found):
        raise ValueError(f"`--shape {text}` must be whole numbers separated by commas, as in 3,224,224.")
    return [int(number) for number in found]
