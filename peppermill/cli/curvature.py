"""`peppermill curvature`: what Section 2.3 predicts for small noise, and what an ensemble shows."""

from __future__ import annotations

from typing import Annotated

import typer

from peppermill.cli import options, which_items
from peppermill.curvature.analysis import carried_by, compare_effects, local_analysis
from peppermill.likelihood import likelihood_named
from peppermill.plumbing.display import Table
from peppermill.predictions import predict
from peppermill.report import figures
from peppermill.report.record import curvature_panel
from peppermill.report.run import Run

EXAMPLES = "peppermill curvature python:my_models:resnet npz:test.npz --weights resnet.safetensors --picture effect.png"
GRID = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # in units of the largest believable sigma


def command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    results: options.Results,
    probes: Annotated[int, typer.Option(help="Random directions; errors fall with their square root.")] = 16,
    sigmas: options.Sigmas = None,
    parameters: options.Parameters = "kernels",
    size: Annotated[int, typer.Option(help="Members of the ensemble that is measured: pairs, so an even number.")] = 20,
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
) -> None:
    """Show Laplacian, Fisher trace and effect rate at the network's weights; predicted beside measured PEP effect."""
    source = network.source()
    model, labelled = source.model, which_items.labelled(data, source)
    analysis = local_analysis(model, labelled, **options.arguments_of(local_analysis, context))
    upper = analysis.believable_range[1]
    grid = options.numbers(sigmas, "--sigmas") if sigmas else [upper * step for step in GRID]
    points = compare_effects(analysis, model, labelled, grid, **options.arguments_of(compare_effects, context))
    carried = carried_by(analysis.item_rates, predict(model, labelled, likelihood=likelihood_named(likelihood)))
    settings = options.settings(context, "model", "data", "probes", "size", "parameters")
    title, panel = f"curvature of {network.model} on {data}", curvature_panel(analysis, points, carried)
    rows = [
        (
            f"{p.sigma:.4g}",
            f"{p.predicted:.4g} ± {p.predicted_error:.2g}",
            f"{p.measured:.4g} ± {p.measured_error:.2g}",
            "yes" if p.sigma <= upper * (1 + 1e-9) else "no",
        )
        for p in points
    ]
    parts = (
        f"the {100 * part.fraction:.1f} % of items {part.who} carry {100 * part.share:.0f} % of the effect rate"
        for part in carried
    )
    results.deliver(
        [analysis, Table(("sigma", "predicted B_sigma", "measured L(sigma) - L(0)", "believable"), rows), *parts],
        Run(title, settings, (), curvature=panel),
        lambda: figures.effect_curves(points, analysis.items, upper),
        seed,
        network=model,
    )
