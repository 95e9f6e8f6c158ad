"""`peppermill calibrate`: the best probabilities for a number of passes, by a race on validation data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.distributed.group import rank
from peppermill.engines import engine_named
from peppermill.noise import Noise
from peppermill.plumbing.files import refuse_unwritable
from peppermill.race import calibrate
from peppermill.views import VIEWS

EXAMPLES = "peppermill calibrate python:my_models:resnet npz:validation.npz --weights resnet.safetensors --passes 10"


def command(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    passes: Annotated[int, typer.Option(help="The most forward passes that a prediction may cost.")] = 10,
    views: Annotated[
        list[str] | None, typer.Option(help=f"Views of pictures that may compete: {options.listed(VIEWS)}.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the ensemble.")] = Path("pep.json"),
    weights: options.Weights = None,
    validation: Annotated[
        int | None, typer.Option(help="Tune on this many items of DATA; the rest is for tests.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="The seed by which --validation draws its items; 0.")] = None,
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
    chosen = {"noise": Noise(noise, seed=seed), "engine": engine_named(engine, precision), "views": views or None}
    pep = calibrate(source.model, labelled, passes, **{**options.arguments_of(calibrate, context), **chosen})
    if rank():
        return
    pep.with_split(split).save(out)
    race = pep.race
    assert race is not None
    say(str(race))
    plural = "es" if pep.passes > 1 else ""
    say(f"chosen: {race.choice.name}; a prediction costs {pep.passes} forward pass{plural}")
    say(f"wrote {out} ({out.stat().st_size:,} bytes). Next:")
    with_weights = f" --weights {weights}" if weights else ""
    tested = shlex.quote(data) if split else "TEST-DATA"
    say(f"peppermill evaluate {shlex.quote(model)} {tested}{with_weights} --pep {out}{' --trust' * trust}")
