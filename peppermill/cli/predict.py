"""`peppermill predict`: probabilities for every item, into an npz file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from peppermill.cli import options
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.files import refuse_unwritable, write_atomically
from peppermill.predictions import Predictions, predict

EXAMPLES = (
    "peppermill predict python:my_models:resnet npz:new.npz --weights resnet.safetensors --pep pep.json --out "
    "predictions.npz"
)


def command(
    model: options.Model,
    data: options.Data,
    pep: options.Pep = None,
    weights: options.Weights = None,
    out: Annotated[Path, typer.Option(help="Where to write the predictions.")] = Path("predictions.npz"),
    likelihood: options.LikelihoodOrOwn = None,
    batch_size: options.BatchSize = 500,
    engine: options.EngineName = "auto",
    precision: options.Precision = None,
    device: options.Device = "cpu",
) -> None:
    """Write `log_probs` [N, K], `predicted` and `labels` [N] of the data; of the network alone without --pep.

    Of a regression, `mean`, `log_variance` and `labels` [N].
    """
    refuse_unwritable(out)
    network = options.network(model, weights, device)
    batches = Batches(options.labelled(data), network, batch_size=batch_size)
    predictor = options.ensemble(pep, network, likelihood, engine, precision) or network
    found = predict(predictor, batches, likelihood=likelihood)
    arrays = _arrays(found)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(out, buffer.getvalue())
    say(f"wrote {out}: {', '.join(arrays)} of {len(arrays['labels']):,} items")


def _arrays(found: Predictions) -> dict[str, Any]:
    labels, predictions = found.labels.cpu().numpy(), found.log_probs.cpu().numpy()
    if found.likelihood.name == "gaussian":
        return {"mean": predictions[:, 0], "log_variance": predictions[:, 1], "labels": labels}
    return {"log_probs": predictions, "predicted": predictions.argmax(axis=1), "labels": labels}
