"""`peppermill fit`: find sigma, write pep.json."""

from __future__ import annotations

import json
from typing import Annotated, cast

import typer

from peppermill.cli import options, which_items
from peppermill.cli.console import say, say_next
from peppermill.distributed.group import rank
from peppermill.engines import engine_named
from peppermill.fitting import fit
from peppermill.noise import Noise
from peppermill.tuning import SEARCHES, search_named
from peppermill.types import LawName

EXAMPLES = "peppermill fit python:my_models:resnet npz:validation.npz --weights resnet.safetensors --temperature"


def command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    tuning: options.Tuning,
    temperature: Annotated[bool, typer.Option("--temperature", help="Tune a temperature together with sigma.")] = False,
    size: options.Size = 10,
    antithetic: options.Antithetic = True,
    lower: Annotated[float | None, typer.Option(help="Search sigma from here.")] = None,
    upper: Annotated[float | None, typer.Option(help="Search sigma up to here; by default, automatic.")] = None,
    search: Annotated[str | None, typer.Option(help=f"How sigma is searched: {options.listed(SEARCHES)}.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations of the golden section; 7 in the paper.")] = None,
) -> None:
    """Find the size of the noise on validation data and write the ensemble, about a kilobyte."""
    source = network.source()
    labelled, split = which_items.tuning(data, source, tuning.validation, tuning.split_seed)
    chosen = {
        "noise": Noise(cast(LawName, tuning.noise), antithetic, tuning.seed),
        "search": search_named(search, lower=lower, upper=upper, iterations=iterations),
        "engine": engine_named(tuning.engine, tuning.precision),
        "views": options.names(tuning.views),
    }
    pep = fit(source.model, labelled, **{**options.arguments_of(fit, context), **chosen})
    if rank():
        return
    pep.with_split(split).save(tuning.out)
    count, best, passes = pep.search.items, pep.search.best, pep.search.passes or 0.0
    found = best.tempered_log_likelihood if temperature else best.log_likelihood
    with_temperature = f", T = {pep.temperature:.4g}" if temperature else ""
    drawn = f" drawn from {split.items:,}" if split else ""
    say(
        f"sigma = {pep.sigma:.4g}{with_temperature}, found with {len(pep.search.evaluations)} values of sigma on "
        f"{count:,} items{drawn} and {passes:.1f} forward passes ({passes / size:.1f} of all {size} members)"
    )
    say(f"validation NLL {-pep.search.baseline.log_likelihood / count:.4f} -> {-found / count:.4f}")
    if temperature and network.model.startswith("hf:"):
        alone = json.dumps({"logit_sigma": float(f"{pep.search.baseline.temperature:.4g}")})
        say(f"vLLM serves the network without noise; its own temperature is: --pooler-config '{alone}'")
    say_next(tuning.out, network, data if split else None)
