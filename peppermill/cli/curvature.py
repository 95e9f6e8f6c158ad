"""`peppermill curvature`: what Section 2.3 predicts for small noise, and what an ensemble shows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from peppermill.cli import options, which_items
from peppermill.cli.console import say, show
from peppermill.curvature.analysis import LocalAnalysis, local_analysis
from peppermill.curvature.prediction import Carried, EffectPoint, carried_by, compare_effects
from peppermill.predictions import predict
from peppermill.report import figures
from peppermill.report.provenance import provenance
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
    carried = carried_by(analysis.item_rates, predict(model, labelled, likelihood=likelihood))
    title, panel = f"curvature of {network.model} on {data}", curvature_panel(analysis, points, carried)
    settings = options.settings(context, "model", "data", "probes", "size", "parameters")
    results.deliver(
        lambda: _show(analysis, points, carried),
        lambda: Run(title, settings, (), provenance=provenance(seed, model), curvature=panel),
        lambda: figures.effect_curves(points, analysis.items, upper),
    )


def _show(found: LocalAnalysis, points: tuple[EffectPoint, ...], carried: tuple[Carried, ...]) -> None:
    upper = found.believable_range[1]
    table = Table("quantity", "sum over items", "standard error", "per item")
    for name, value, error in (
        ("Laplacian of the log-likelihood", found.laplacian, found.laplacian_error),
        ("trace of the empirical Fisher information", found.fisher_trace, found.fisher_trace_error),
        ("effect rate, sum of Laplacian(L_i)/L_i", found.effect_rate, found.effect_rate_error),
        ("  of it, kinks that derivatives miss", found.kinks, found.kinks_error),
    ):
        shown = "exact" if error == 0 else f"{error:.3g}"
        table.add_row(name, f"{value:.5g}", shown, f"{value / found.items:.4g}")
    show(table)
    say(
        f"{found.items:,} items, {found.dimensions:,} perturbed numbers, {found.probes} probes; the prediction is "
        f"believable up to sigma = {upper:.3g}"
    )
    table = Table("sigma", "predicted B_sigma", "measured L(sigma) - L(0)", "believable")
    for p in points:
        table.add_row(
            f"{p.sigma:.4g}",
            f"{p.predicted:.4g} ± {p.predicted_error:.2g}",
            f"{p.measured:.4g} ± {p.measured_error:.2g}",
            "yes" if p.sigma <= upper * (1 + 1e-9) else "no",
        )
    show(table)
    for part in carried:
        fraction, share = 100 * part.fraction, 100 * part.share
        say(f"the {fraction:.1f} % of items {part.who} carry {share:.0f} % of the effect rate")
