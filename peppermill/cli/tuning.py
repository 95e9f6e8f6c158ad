"""`peppermill fit` and `peppermill calibrate`: tune an ensemble on validation data and write pep.json."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import peppermill as pm
from peppermill.calibrators import CALIBRATORS
from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.engines import engine_named
from peppermill.tuning import SEARCHES, search_named
from peppermill.types import LawName


def fit_command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    tuning: options.Tuning,
    temperature: Annotated[bool, typer.Option("--temperature", help="Tune a temperature together with sigma.")] = False,
    calibrator: Annotated[
        str | None, typer.Option(help=f"Fitted after averaging: {options.listed(CALIBRATORS)}.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="Find a sigma for every layer or for every filter.")] = None,
    size: options.Size = 10,
    pool: Annotated[int | None, typer.Option(help="Draw this many members and keep the best.")] = None,
    antithetic: options.Antithetic = True,
    lower: Annotated[float | None, typer.Option(help="Search sigma from here.")] = None,
    upper: Annotated[float | None, typer.Option(help="Search sigma up to here; by default, automatic.")] = None,
    search: Annotated[str | None, typer.Option(help=f"How sigma is searched: {options.listed(SEARCHES)}.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations of the golden section; 7 in the paper.")] = None,
) -> None:
    """Find the size of the noise on validation data and write the ensemble, about a kilobyte."""
    chosen = search_named(search, lower=lower, upper=upper, iterations=iterations)
    pep = tune(pm.fit, context, network, data, tuning, search=chosen)
    if rank():
        return
    count, passes = pep.search.items, pep.search.passes or 0.0
    nll = -pep.search.baseline.log_likelihood / count
    with_temperature = f", T = {pep.temperature:.4g}" if pep.search.joint else ""
    drawn = f" drawn from {pep.recipe.split.items:,}" if pep.recipe.split else ""
    say(
        f"sigma = {pep.sigma:.4g}{with_temperature}, found with {len(pep.search.evaluations)} values of sigma on "
        f"{count:,} items{drawn} and {passes:.1f} forward passes ({passes / size:.1f} of all {size} members)"
    )
    after = f", before {calibrator} scaling" if calibrator not in (None, "temperature") else ""
    say(f"validation NLL {nll:.4f} -> {nll - pep.search.gain:.4f}{after}")
    if pep.search.joint and network.model.startswith("hf:"):
        alone = json.dumps({"logit_sigma": float(f"{pep.search.baseline.temperature:.4g}")})
        say(f"vLLM serves the network without noise; its own temperature is: --pooler-config '{alone}'")
    say_next(pep, network, data, tuning.out)


def calibrate_command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    tuning: options.Tuning,
    passes: Annotated[int, typer.Option(help="The most forward passes that a prediction may cost.")] = 10,
) -> None:
    """Try calibrators, noise and views on validation data, and keep the cheapest that is as good as the best."""
    pep = tune(pm.calibrate, context, network, data, tuning, passes=passes)
    if rank():
        return
    race = pep.race
    assert race is not None
    say(str(race))
    plural = "es" if pep.passes > 1 else ""
    say(f"chosen: {race.choice.name}; a prediction costs {pep.passes} forward pass{plural}")
    say_next(pep, network, data, tuning.out)


def tune(
    function: Callable[..., pm.PepEnsemble],
    context: typer.Context,
    network: options.Network,
    data: str,
    tuning: options.Tuning,
    **chosen: Any,
) -> pm.PepEnsemble:
    """Tune by `fit` or `calibrate` with the options of this command; the first process writes the ensemble."""
    source = network.source()
    labelled, split = which_items.tuning(data, source, tuning.validation, tuning.split_seed)
    asked = options.arguments_of(function, context) | chosen
    asked["noise"] = pm.Noise(cast(LawName, tuning.noise), context.params.get("antithetic", True), tuning.seed)
    asked["engine"] = engine_named(tuning.engine, tuning.precision)
    asked["views"] = [name.strip() for text in tuning.views or () for name in text.split(",")]
    pep = function(source.model, labelled, **asked).with_recipe(split=split)
    if pep.sigma and function is pm.fit and pep.one_pass is None and pep.likelihood.name != "gaussian":
        alone = pep.with_recipe(sigma=0.0, size=1, views=())  # for `evaluate` to show beside the members
        again = Batches(labelled, source.model, batch_size=tuning.batch_size)
        pep = pep.with_recipe(one_pass=pm.fit_temperature(alone, again).calibrator)
    if rank() == 0:
        pep.save(tuning.out)
    return pep


def say_next(pep: pm.PepEnsemble, network: options.Network, data: str, out: Path) -> None:
    """Say which ensemble was written, and the command that tests it; on the same data if part of them is left."""
    given = (f" --weights {network.weights}" if network.weights else "") + " --trust" * network.trust
    say(f"wrote {out} ({out.stat().st_size:,} bytes). Next:")
    tested = shlex.quote(data) if pep.recipe.split else "TEST-DATA"
    say(f"peppermill evaluate {shlex.quote(network.model)} {tested}{given} --pep {out}")
