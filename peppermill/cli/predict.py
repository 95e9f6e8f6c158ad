"""`peppermill predict`: probabilities and uncertainties of every item, into an npz or csv file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.plumbing.files import refuse_unwritable, write_atomically
from peppermill.predictions import likelihood_of, predict, predict_unlabelled
from peppermill.types import Likelihood
from peppermill.uncertainty import CLASS_UNCERTAINTIES, VARIANCES

WITHOUT_MEMBERS = ("probabilities", "confidence", "entropy", "variance")

EXAMPLES = (
    "peppermill predict python:my_models:resnet npz:new.npz --weights resnet.safetensors --pep pep.json --columns "
    "predicted,confidence,mutual_information --out new.csv"
)


def command(
    network: options.Network,
    data: options.AnyData,
    predictor: options.EnsembleFile,
    out: Annotated[Path, typer.Option(help="Where to write the predictions: .npz or .csv.")] = Path("predictions.npz"),
    columns: Annotated[
        str | None,
        typer.Option(
            help="What to write, separated by commas; log_probs,predicted by default. Of classes: log_probs, "
            f"probabilities, predicted, {', '.join(CLASS_UNCERTAINTIES)}; of a regression: mean, log_variance, "
            f"{', '.join(VARIANCES)}."
        ),
    ] = None,
) -> None:
    """Write `log_probs` [N, K] and `predicted` [N] of the data, or other --columns, and `labels` [N] if they have any.

    Without --pep the predictions are the network's own. A regression gives `mean` and `log_variance` [N]. Pictures need
    no labels (a flat folder, or `?labels=none`), and their `names` [N] are written too.
    """
    refuse_unwritable(out)
    if out.suffix not in (".npz", ".csv"):
        raise ValueError(f"`--out {out}` must end in .npz or .csv.")
    source = network.source()
    model, likelihood = predictor.ensemble(source.model) or source.model, predictor.likelihood
    wanted = _columns(columns, likelihood_of(model, likelihood), predictor.pep is not None)
    items, labelled, names = which_items.to_predict(data, source)
    asked: Any = {"likelihood": likelihood, "uncertainty": columns is not None}
    if not labelled and names is None:
        found = predict_unlabelled(model, items, batch_size=predictor.batch_size, **asked)
    else:
        found = predict(model, Batches(items, source.model, batch_size=predictor.batch_size), **asked)
    known = {"mean": found.log_probs[:, 0], "log_variance": found.log_probs[:, 1], "log_probs": found.log_probs}
    known |= {"predicted": found.log_probs.argmax(dim=1), "probabilities": found.log_probs.exp()}
    known |= found.uncertainty.values if found.uncertainty else {}
    arrays: dict[str, Any] = {name: known[name].cpu().numpy() for name in wanted}
    arrays |= {"labels": found.labels.cpu().numpy()} if labelled else {}
    arrays |= {"names": np.array(names)} if names is not None else {}
    if rank():
        return
    buffer = io.BytesIO()
    if out.suffix == ".csv":
        flat = {name: array for name, array in arrays.items() if array.ndim == 1}
        for name, array in arrays.items():
            flat |= {f"{name}_{k}": column for k, column in enumerate(array.T)} if array.ndim == 2 else {}
        text = io.StringIO()
        csv.writer(text).writerows([flat, *zip(*(array.tolist() for array in flat.values()), strict=True)])
        buffer.write(text.getvalue().encode())
    else:
        np.savez(buffer, **arrays)
    write_atomically(out, buffer.getvalue())
    say(f"wrote {out}: {', '.join(arrays)} of {len(next(iter(arrays.values()))):,} items")


def _columns(asked: str | None, likelihood: Likelihood, members: bool) -> list[str]:
    """The columns to write: known before anything is computed."""
    own = ["mean", "log_variance"] if likelihood.name == "gaussian" else ["log_probs", "predicted"]
    if asked is None:
        return own
    sure = VARIANCES if likelihood.name == "gaussian" else {"probabilities": "", **CLASS_UNCERTAINTIES}
    known = [*own, *(sure if members else [name for name in sure if name in WITHOUT_MEMBERS])]
    for name in (columns := [name.strip() for name in asked.split(",")]):
        if name not in known:
            cure = "" if members else " Members, and what they do not agree on, come with `--pep`."
            raise ValueError(f"`--columns {asked}`: there is no {name!r} here, only {', '.join(known)}.{cure}")
    return columns
