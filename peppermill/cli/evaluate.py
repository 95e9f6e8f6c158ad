"""`peppermill evaluate`: the network, and the ensemble beside it, on labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from peppermill.cli import options
from peppermill.cli.console import say, show_methods
from peppermill.data import Batches
from peppermill.evaluation import compare_all, evaluate
from peppermill.files import refuse_unwritable
from peppermill.predictions import Predictions, predict
from peppermill.results import Method, Run, method_of, plain, provenance, write_run

EXAMPLES = (
    "peppermill evaluate python:my_models:resnet npz:test.npz --weights resnet.safetensors --pep pep.json --out "
    "run.json"
)


def command(
    model: options.Model,
    data: options.Data,
    pep: options.Pep = None,
    weights: options.Weights = None,
    out: Annotated[Path | None, typer.Option(help="Also write the run as JSON.")] = None,
    bins: options.Bins = 20,
    likelihood: options.LikelihoodOrOwn = None,
    seed: Annotated[int, typer.Option(help="The seed of the bootstrap.")] = 0,
    batch_size: options.BatchSize = 500,
    device: options.Device = "cpu",
) -> None:
    """NLL, Brier, ECE and error with intervals; with --pep, paired differences between ensemble and network."""
    refuse_unwritable(out)
    network = options.network(model, weights, device)
    ensemble = options.ensemble(pep, network, likelihood)
    batches = Batches(options.labelled(data), network, batch_size=batch_size)
    chosen = likelihood or (ensemble.likelihood if ensemble else None)
    predictions = {"network": predict(network, batches, likelihood=chosen)}
    fitted: dict[str, dict[str, float]] = {}
    if ensemble:
        predictions["PEP"] = predict(ensemble, batches)
        fitted["PEP"] = {"sigma": ensemble.sigma} | (
            {"temperature": ensemble.temperature} if ensemble.temperature != 1 else {}
        )
    passes = {"PEP": ensemble.size if ensemble and ensemble.sigma else 1}
    methods = compared_methods(predictions, bins, seed, fitted, passes)
    paths = {"weights": str(weights) if weights else None, "pep": str(pep) if pep else None}
    settings = {"model": model, "data": data, **paths, "bins": bins}
    run = Run(f"{model} on {data}", settings, methods, provenance=provenance(seed))
    show_methods(plain(run))
    if out:
        write_run(run, out)
        say(f"wrote {out}")


def compared_methods(
    predictions: dict[str, Predictions],
    bins: int,
    seed: int,
    fitted: dict[str, dict[str, float]],
    passes: dict[str, int],
) -> tuple[Method, ...]:
    """Scores of every method and paired differences from the first."""
    first, *others = predictions
    compared: dict[str, Any] = compare_all(
        predictions[first], {name: predictions[name] for name in others}, bins=bins, seed=seed
    )
    return tuple(
        method_of(
            name,
            found,
            evaluate(found, bins=bins, seed=seed),
            compared.get(name),
            fitted=fitted.get(name, {}),
            forward_passes=passes.get(name, 1),
        )
        for name, found in predictions.items()
    )
