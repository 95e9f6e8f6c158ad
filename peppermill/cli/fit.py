"""`peppermill fit`: find sigma, write pep.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import options
from peppermill.cli.console import say
from peppermill.ensemble import fit
from peppermill.files import refuse_unwritable

EXAMPLES = (
    "peppermill fit python:my_models:resnet npz:validation.npz --weights resnet.safetensors --temperature --out "
    "pep.json"
)


def command(
    model: options.Model,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Where to write the ensemble.")] = Path("pep.json"),
    weights: options.Weights = None,
    temperature: Annotated[bool, typer.Option("--temperature", help="Tune a temperature together with sigma.")] = False,
    parameters: options.Parameters = "kernels",
    size: options.Size = 10,
    noise: options.Noise = "gaussian",
    antithetic: options.Antithetic = True,
    seed: options.Seed = 0,
    lower: Annotated[float | None, typer.Option(help="Search sigma from here.")] = None,
    upper: Annotated[float | None, typer.Option(help="Search sigma up to here; found by itself when absent.")] = None,
    search: Annotated[
        str | None, typer.Option(help="quick (at most five passes of all members) or golden (the paper's).")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of the golden-section search, which is then used; 7 in the paper.")
    ] = None,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
    device: options.Device = "cpu",
) -> None:
    """Find the size of the noise on validation data and write the ensemble, a few hundred bytes."""
    refuse_unwritable(out)
    pep = fit(
        options.network(model, weights, device),
        options.labelled(data),
        parameters=parameters,
        size=size,
        noise=noise,
        antithetic=antithetic,
        seed=seed,
        lower=lower,
        upper=upper,
        search=search,
        iterations=iterations,
        temperature=temperature,
        likelihood=likelihood,
        batch_size=batch_size,
    )
    pep.save(out)
    items, base, best, passes = pep.search.items, pep.search.baseline, pep.search.best, pep.search.passes or 0.0
    found = best.tempered_log_likelihood if temperature else best.log_likelihood
    with_temperature = f", T = {pep.temperature:.4g}" if temperature else ""
    say(
        f"sigma = {pep.sigma:.4g}{with_temperature}, found with {len(pep.search.evaluations)} values of sigma on "
        f"{items:,} items and {passes:.1f} forward passes ({passes / size:.1f} of all {size} members)"
    )
    say(f"validation NLL {-base.log_likelihood / items:.4f} -> {-found / items:.4f}")
    say(f"wrote {out} ({out.stat().st_size:,} bytes). Next:")
    with_weights = f" --weights {weights}" if weights else ""
    say(f"peppermill evaluate {model} TEST-DATA{with_weights} --pep {out}")
