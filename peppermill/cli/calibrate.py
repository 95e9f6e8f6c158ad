"""`peppermill calibrate`: the best probabilities for a number of passes, by a race on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import options, which_items
from peppermill.cli.console import say, say_next
from peppermill.distributed.group import rank
from peppermill.engines import engine_named
from peppermill.noise import Noise
from peppermill.plumbing.files import refuse_unwritable
from peppermill.race import calibrate

EXAMPLES = "peppermill calibrate python:my_models:resnet npz:validation.npz --weights resnet.safetensors --passes 10"


def command(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    passes: Annotated[int, typer.Option(help="The most forward passes that a prediction may cost.")] = 10,
    views: options.Views = None,
    out: options.Ensemble = Path("pep.json"),
    weights: options.Weights = None,
    validation: options.Validation = None,
    split_seed: options.SplitSeed = None,
    parameters: options.Parameters = "kernels",
    noise: options.Noise = "gaussian",
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
    engine: options.EngineName = "auto",
    precision: options.Precision = None,
    device: options.Device = "cpu",
    trust: options.Trust = False,
) -> None:
    """Try calibrators, noise and views on validation data, and keep the cheapest that is as good as the best."""
    refuse_unwritable(out)
    source = options.source(model, weights, device, trust)
    labelled, split = which_items.tuning(data, source, validation, split_seed)
    chosen = {
        "noise": Noise(noise, seed=seed),
        "engine": engine_named(engine, precision),
        "views": options.names(views),
    }
    pep = calibrate(source.model, labelled, passes, **{**options.arguments_of(calibrate, context), **chosen})
    if rank():
        return
    pep.with_split(split).save(out)
    race = pep.race
    assert race is not None
    say(str(race))
    plural = "es" if pep.passes > 1 else ""
    say(f"chosen: {race.choice.name}; a prediction costs {pep.passes} forward pass{plural}")
    say_next(out, model, data if split else None, weights, trust)
