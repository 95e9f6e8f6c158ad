"""`peppermill sweep`: L(sigma) along a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peppermill.cli import options
from peppermill.cli import which_items as items
from peppermill.cli.console import show_sweep
from peppermill.cli.outputs import refuse_outputs, write_outputs
from peppermill.evaluation.sweep import sweep_sigma
from peppermill.processes.group import rank
from peppermill.report import figures as plots
from peppermill.report.provenance import provenance
from peppermill.report.run import Run, plain

EXAMPLES = (
    "peppermill sweep python:my_models:resnet npz:validation.npz --weights resnet.safetensors --sigmas 0.01,0.02,0.04 "
    "--picture curve.png"
)


def command(
    model: options.Model,
    data: options.Data,
    sigmas: Annotated[str | None, typer.Option(help="Values separated by commas; found by itself when absent.")] = None,
    weights: options.Weights = None,
    out: Annotated[Path | None, typer.Option(help="Also write the run as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the curve: .png, .svg or .pdf.")] = None,
    parameters: options.Parameters = "kernels",
    size: options.Size = 10,
    noise: options.Noise = "gaussian",
    antithetic: options.Antithetic = True,
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    bins: options.Bins = 20,
    batch_size: options.BatchSize = 500,
    engine: options.EngineName = "auto",
    precision: options.Precision = None,
    device: options.Device = "cpu",
) -> None:
    """The log-likelihood of the ensemble and of its members, and every score, along a grid of sigma (Figure 1)."""
    refuse_outputs(out, picture)
    source = options.source(model, weights, device)
    swept = sweep_sigma(
        source.model,
        items.labelled(data, source, batch_size),
        options.numbers(sigmas, "--sigmas") if sigmas else None,
        parameters=parameters,
        size=size,
        noise=noise,
        antithetic=antithetic,
        seed=seed,
        likelihood=likelihood,
        bins=bins,
        batch_size=batch_size,
        engine=engine,
        precision=precision,
    )
    if rank():
        return
    show_sweep(plain(swept))
    settings = {
        "model": model,
        "weights": str(weights) if weights else None,
        "data": data,
        "parameters": parameters,
        "size": size,
        "noise": noise,
        "antithetic": antithetic,
    }
    write_outputs(
        out,
        lambda: Run(f"sweep of {model}", settings, (), swept, provenance(seed)),
        picture,
        lambda: plots.sigma_curve(swept, swept.best.sigma),
    )
