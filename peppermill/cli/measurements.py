"""`peppermill sweep`, `curvature`, `probe` and `size`: print a measurement, write it for a report, and draw it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from torch import nn

import peppermill as pm
from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.likelihood import likelihood_named
from peppermill.plumbing.display import Table
from peppermill.plumbing.files import refuse_unwritable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of `curvature`, in units of the largest believable sigma

Sigmas = Annotated[str | None, typer.Option(help="Values separated by commas; chosen automatically by default.")]


@dataclass(frozen=True)
class Results:
    """The files that a command can write beside what it prints; refused before the work if they cannot be written."""

    out: options.RunFile = None
    picture: Annotated[Path | None, typer.Option(help="Also draw the results: .png, .svg or .pdf.")] = None

    def __post_init__(self) -> None:
        refuse_unwritable(self.out)
        refuse_unwritable(self.picture)
        if self.picture:
            pm.plots.refuse_other_formats(self.picture)

    def deliver(
        self,
        shown: Iterable[object],
        run: pm.Run,
        draw: Callable[[], Figure],
        seed: int,
        network: nn.Module | None = None,
    ) -> None:
        """Write the files that are asked for, and then print; the first process does it.

        In this order, because a broken pipe, or a full disk under a log, must not lose the results.
        """
        if rank():
            return
        if self.out:
            pm.write_run(replace(run, provenance=pm.provenance(seed, network)), self.out)
        if self.picture:
            pm.plots.save_figure(draw(), self.picture)
        for text in (*shown, *(f"wrote {path}" for path in (self.out, self.picture) if path)):
            say(text)


def sweep_command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    results: Results,
    sigmas: Sigmas = None,
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
    swept = pm.sweep_sigma(source.model, labelled, grid, **options.arguments_of(pm.sweep_sigma, context))
    settings = options.settings(context, "model", "weights", "data", "parameters", "size", "noise", "antithetic")
    run = pm.Run(f"sweep of {network.model}", settings, (), swept)
    results.deliver([swept], run, lambda: pm.plots.sigma_curve(swept, swept.best.sigma), seed)


def curvature_command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    results: Results,
    probes: Annotated[int, typer.Option(help="Random directions; errors fall with their square root.")] = 16,
    sigmas: Sigmas = None,
    parameters: options.Parameters = "kernels",
    size: Annotated[int, typer.Option(help="Members of the ensemble that is measured: pairs, so an even number.")] = 20,
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
) -> None:
    """Show Laplacian, Fisher trace and effect rate at the network's weights; predicted beside measured PEP effect."""
    source = network.source()
    model, labelled = source.model, which_items.labelled(data, source)
    analysis = pm.local_analysis(model, labelled, **options.arguments_of(pm.local_analysis, context))
    upper = analysis.believable_range[1]
    grid = options.numbers(sigmas, "--sigmas") if sigmas else [upper * step for step in GRID]
    points = pm.compare_effects(analysis, model, labelled, grid, **options.arguments_of(pm.compare_effects, context))
    carried = pm.carried_by(analysis.item_rates, pm.predict(model, labelled, likelihood=likelihood_named(likelihood)))
    rows = []
    for point in points:
        effects = (point.predicted, point.predicted_error), (point.measured, point.measured_error)
        texts = (f"{value:.4g} ± {error:.2g}" for value, error in effects)
        rows.append((f"{point.sigma:.4g}", *texts, "yes" if point.sigma <= upper * (1 + 1e-9) else "no"))
    parts = (
        f"the {100 * part.fraction:.1f} % of items {part.who} carry {100 * part.share:.0f} % of the effect rate"
        for part in carried
    )
    shown = [analysis, Table(("sigma", "predicted B_sigma", "measured L(sigma) - L(0)", "believable"), rows), *parts]
    settings = options.settings(context, "model", "data", "probes", "size", "parameters")
    panel = {name: value for name, value in vars(analysis).items() if name != "item_rates"}  # which would fill the file
    panel |= {"rate_from_traces": analysis.rate_from_traces, "believable_range": analysis.believable_range}
    for name in ("predicted", "predicted_error", "measured", "measured_error"):
        panel[name] = [getattr(point, name) for point in points]
    panel |= {"sigmas": [point.sigma for point in points], "carried": carried}
    run = pm.Run(f"curvature of {network.model} on {data}", settings, (), curvature=panel)
    results.deliver(shown, run, lambda: pm.plots.effect_curves(points, analysis.items, upper), seed, model)


def probe_command(
    context: typer.Context,
    checkpoints: Annotated[list[Path], typer.Argument(metavar="CHECKPOINT...", help="Weight files of one network.")],
    model: Annotated[str, typer.Option(help="The network: python:package.module:factory.")],
    train: Annotated[str, typer.Option(help="The data that the network was trained on, as DATA of `fit`.")],
    validation: Annotated[str, typer.Option(help="The data on which sigma and the curvature are found.")],
    test: Annotated[str, typer.Option(help="The data on which overfitting and the PEP effect are measured.")],
    results: Results,
    parameters: options.Parameters = "kernels",
    size: options.Size = 10,
    probes: Annotated[int, typer.Option(help="Random directions of the local analysis.")] = 8,
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
    device: options.Device = "auto",
    trust: options.Trust = False,
) -> None:
    """Compare the train-test gap of each checkpoint with sigma*, PEP effect and curvature (Figure 3)."""
    source = options.Network(model, None, device, trust).source()
    asked = options.arguments_of(pm.probe_overfitting, context)
    asked |= {name: which_items.labelled(context.params[name], source) for name in ("train", "validation", "test")}
    found = pm.probe_overfitting(source.model, checkpoints, **asked)
    settings = options.settings(context, "model", "train", "validation", "test", "parameters", "size", "probes")
    settings |= {"checkpoints": [str(path) for path in checkpoints]}
    effect = found.correlations.get("pep_effect")
    panel = {
        "points": [vars(p) | {"overfitting": p.overfitting, "effect": p.pep_effect} for p in found.points],
        "spearman": effect and effect.rho,
        "spearman_lower": effect and effect.lower,
        "spearman_upper": effect and effect.upper,
        "correlations": found.correlations,
    }
    run = pm.Run(f"overfitting of {model}", settings, (), overfitting=panel)
    results.deliver([found], run, lambda: pm.plots.overfitting_scatter(found), seed)


def size_command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    pep: options.RequiredPep,
    results: Results,
    loss: Annotated[float, typer.Option(help="The loss in NLL that you accept.")] = 0.001,
    seed: options.BootstrapSeed = 0,
    batch_size: options.BatchSize = 500,
) -> None:
    """Show the NLL against the number of members, from one pass of those in the ensemble, and how many are enough."""
    source = network.source()
    ensemble = pm.load(pep, source.model)
    labelled = which_items.labelled(data, source)
    curve = pm.size_curve(ensemble, Batches(labelled, source.model, batch_size=batch_size), seed=seed)
    shown = [replace(curve.table(), note=f"{curve.enough(loss)} on these {curve.items:,} items")]
    run = pm.Run(f"size of {pep}", options.settings(context, "model", "data", "weights", "pep"), (), sizes=curve)
    results.deliver(shown, run, lambda: pm.plots.size_curve(curve, loss), seed, source.model)
