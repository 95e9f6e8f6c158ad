"""`peppermill predict` and `peppermill export`: predictions for new items, and the ensemble itself as a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import peppermill as pm
from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.distributed.group import rank
from peppermill.export.verify import format_of
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.streaming.columns import BatchColumns
from peppermill.streaming.numbered_batches import stream_of
from peppermill.streaming.parts import FORMATS, PART_ITEMS, encoded, predict_table, write_predictions
from peppermill.uncertainty import CLASS_UNCERTAINTIES, VARIANCES


def predict_command(
    network: options.Network,
    data: options.AnyData,
    predictor: options.EnsembleFile,
    out: Annotated[Path, typer.Option(help="A folder, or a .npz, .csv or .parquet file.")] = Path("predictions.npz"),
    columns: Annotated[
        str | None,
        typer.Option(
            help="What to write, separated by commas; log_probs,predicted by default. Of classes: log_probs, "
            f"probabilities, predicted, {', '.join(CLASS_UNCERTAINTIES)}; of a regression: mean, log_variance, "
            f"{', '.join(VARIANCES)}."
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(help="Keep this many classes of each item, the most probable.")] = None,
    file_format: Annotated[str | None, typer.Option("--format", help=f"Of parts: {' or '.join(FORMATS)}.")] = None,
    part_items: Annotated[int, typer.Option(help="Items in each part of a folder, in whole batches.")] = PART_ITEMS,
) -> None:
    """Write `log_probs` [N, K] and `predicted` [N] of the data, or other --columns, and `labels` [N] if they have any.

    Without --pep the predictions are the network's own. A regression gives `mean` and `log_variance` [N]. Pictures need
    no labels (a flat folder, or `?labels=none`), and their `names` [N] are written too.

    Into a folder, the predictions are written in parts, batch by batch. The same command resumes where it was
    interrupted, and under torchrun each process writes its own parts.
    """
    is_folder = out.is_dir() or not out.suffix
    if not is_folder:
        refuse_unwritable(out)
        if out.suffix not in (".npz", ".csv", ".parquet"):
            raise ValueError(f"`--out {out}` must end in .npz, .csv or .parquet, or be a folder, without a dot.")
    source = network.source()
    model = predictor.ensemble(source.model) or source.model
    asked: Any = {"columns": columns, "top": top, "likelihood": predictor.likelihood}
    columns_of = BatchColumns(model, **asked)  # refuses what cannot be before the data are looked for
    items = which_items.to_predict(data, source)
    if is_folder:
        more: Any = {"batch_size": predictor.batch_size, "part_items": part_items, "format": file_format}
        found = write_predictions(model, items, out, **asked, **more)
        whole = f"{found.items:,} items" if found.complete else "other processes are still writing"
        say(f"wrote {found.written:,} of {found.parts:,} parts into {out}: {whole}")
        return
    table = predict_table(columns_of, stream_of(items, predictor.batch_size))
    del table["row"]
    if rank():
        return
    if out.suffix == ".csv":
        flat = {name: array for name, array in table.items() if array.ndim == 1}
        for name, array in table.items():
            flat |= {f"{name}_{k}": column for k, column in enumerate(array.T)} if array.ndim == 2 else {}
        text = io.StringIO()
        csv.writer(text).writerows([flat, *zip(*(array.tolist() for array in flat.values()), strict=True)])
        write_atomically(out, text.getvalue())
    else:
        write_atomically(out, encoded(table, out.suffix[1:]))
    say(f"wrote {out}: {', '.join(table)} of {len(next(iter(table.values()))):,} items")


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
