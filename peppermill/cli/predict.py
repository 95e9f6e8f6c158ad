"""`peppermill predict`: probabilities for every item, into an npz file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from peppermill.cli import options
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.ensemble import load
from peppermill.files import write_atomically
from peppermill.predictions import predict

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
    batch_size: options.BatchSize = 500,
    device: options.Device = "cpu",
) -> None:
    """Write `log_probs` [N, K], `predicted` and `labels` [N] of the data; of the network alone without --pep."""
    network = options.network(model, weights, device)
    batches = Batches(options.labelled(data), network, batch_size=batch_size)
    found = predict(load(pep, network) if pep else network, batches)
    log_probs, labels = found.log_probs.cpu().numpy(), found.labels.cpu().numpy()
    buffer = io.BytesIO()
    np.savez(buffer, log_probs=log_probs, predicted=log_probs.argmax(axis=1), labels=labels)
    write_atomically(out, buffer.getvalue())
    say(f"wrote {out}: {len(labels):,} items, {log_probs.shape[1]} classes")
