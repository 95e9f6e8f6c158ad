"""`peppermill calibrate`: the best probabilities for a number of passes, by a race on validation data."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from peppermill.cli import options, which_items
from peppermill.cli.console import say, say_next
from peppermill.distributed.group import rank
from peppermill.engines import engine_named
from peppermill.noise import Noise
from peppermill.race import calibrate
from peppermill.types import LawName

EXAMPLES = "peppermill calibrate python:my_models:resnet npz:validation.npz --weights resnet.safetensors --passes 10"


def command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    tuning: options.Tuning,
    passes: Annotated[int, typer.Option(help="The most forward passes that a prediction may cost.")] = 10,
) -> None:
    """Try calibrators, noise and views on validation data, and keep the cheapest that is as good as the best."""
    source = network.source()
    labelled, split = which_items.tuning(data, source, tuning.validation, tuning.split_seed)
    chosen = {
        "noise": Noise(cast(LawName, tuning.noise), seed=tuning.seed),
        "engine": engine_named(tuning.engine, tuning.precision),
        "views": options.names(tuning.views),
    }
    pep = calibrate(source.model, labelled, passes, **{**options.arguments_of(calibrate, context), **chosen})
    if rank():
        return
    pep.with_split(split).save(tuning.out)
    race = pep.race
    assert race is not None
    say(str(race))
    plural = "es" if pep.passes > 1 else ""
    say(f"chosen: {race.choice.name}; a prediction costs {pep.passes} forward pass{plural}")
    say_next(tuning.out, network, data if split else None)
