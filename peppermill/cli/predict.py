"""`peppermill predict`: probabilities for every item, into an npz file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from torch import Tensor

from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.predictions import likelihood_of, predict, predict_unlabelled
from peppermill.types import Likelihood

EXAMPLES = "peppermill predict python:my_models:resnet npz:new.npz --weights resnet.safetensors --pep pep.json"


def command(
    model: options.Model,
    data: options.AnyData,
    pep: options.Pep = None,
    weights: options.Weights = None,
    out: Annotated[Path, typer.Option(help="Where to write the predictions.")] = Path("predictions.npz"),
    likelihood: options.LikelihoodOrOwn = None,
    batch_size: options.BatchSize = 500,
    engine: options.EngineName = "auto",
    precision: options.Precision = None,
    device: options.Device = "cpu",
) -> None:
    """Write `log_probs` [N, K] and `predicted` [N] of the data, and `labels` [N] if they have any.

    Without --pep the predictions are the network's own. A regression gives `mean` and `log_variance` [N]. Pictures need
    no labels (a flat folder, or `?labels=none`), and their `names` [N] are written too.
    """
    refuse_unwritable(out)
    source = options.source(model, weights, device)
    network = source.model
    predictor = options.ensemble(pep, network, likelihood, engine, precision) or network
    items, labelled, names = which_items.to_predict(data, source)
    if not labelled and names is None:
        chosen = likelihood_of(predictor, likelihood)
        arrays = _arrays(predict_unlabelled(predictor, items, likelihood=chosen, batch_size=batch_size), chosen)
    else:
        known = predict(predictor, Batches(items, network, batch_size=batch_size), likelihood=likelihood)
        arrays = _arrays(known.log_probs, known.likelihood)
        arrays |= {"labels": known.labels.cpu().numpy()} if labelled else {}
        arrays |= {"names": np.array(names)} if names is not None else {}
    if rank():
        return
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(out, buffer.getvalue())
    say(f"wrote {out}: {', '.join(arrays)} of {len(next(iter(arrays.values()))):,} items")


def _arrays(predictions: Tensor, likelihood: Likelihood) -> dict[str, Any]:
    array = predictions.cpu().numpy()
    if likelihood.name == "gaussian":
        return {"mean": array[:, 0], "log_variance": array[:, 1]}
    return {"log_probs": array, "predicted": array.argmax(axis=1)}
