"""`peppermill sweep`: L(sigma) along a grid."""

from __future__ import annotations

import typer

from peppermill.cli import options, which_items
from peppermill.distributed.group import rank
from peppermill.evaluation.sweep import sweep_sigma
from peppermill.report import figures
from peppermill.report.run import Run

EXAMPLES = (
    "peppermill sweep python:my_models:resnet npz:validation.npz --weights resnet.safetensors --picture curve.png"
)


def command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    results: options.Results,
    sigmas: options.Sigmas = None,
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
) -> None:
    """Compute the log-likelihood of the ensemble and of its members, and every score, along a grid of sigma."""
    grid = options.numbers(sigmas, "--sigmas") if sigmas else None
    source = network.source()
    labelled = which_items.labelled(data, source)
    swept = sweep_sigma(source.model, labelled, grid, **options.arguments_of(sweep_sigma, context))
    if rank():
        return
    settings = options.settings(context, "model", "weights", "data", "parameters", "size", "noise", "antithetic")
    run = Run(f"sweep of {network.model}", settings, (), swept)
    results.deliver([swept], run, lambda: figures.sigma_curve(swept, swept.best.sigma), seed)
