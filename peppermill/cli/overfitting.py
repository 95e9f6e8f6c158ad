"""`peppermill probe`: overfitting, sigma*, PEP effect and curvature over a series of checkpoints (Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from peppermill.cli import options
from peppermill.cli import which_items as items
from peppermill.cli.console import out as console
from peppermill.cli.console import say
from peppermill.cli.outputs import refuse_outputs, write_outputs
from peppermill.evaluation.overfitting import NAMES, OverfittingProbe, probe_overfitting
from peppermill.report import figures
from peppermill.report.provenance import provenance
from peppermill.report.run import Run

EXAMPLES = (
    "peppermill probe epoch-*.safetensors --model python:my_models:resnet --train npz:train.npz --validation "
    "npz:validation.npz --test npz:test.npz --picture overfitting.png"
)
DATA_HELP = "imagefolder:folder, npz:file.npz (arrays x, y), ... or python:module:factory."


def command(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT...", help="Files of weights of one network, safetensors best.")
    ],
    model: Annotated[str, typer.Option(help="The network: python:package.module:factory.")],
    train: Annotated[str, typer.Option(help=f"What the network was trained on: {DATA_HELP}")],
    validation: Annotated[str, typer.Option(help=f"Where sigma and the curvature are found: {DATA_HELP}")],
    test: Annotated[str, typer.Option(help=f"Where overfitting and the PEP effect are measured: {DATA_HELP}")],
    out: Annotated[Path | None, typer.Option(help="Also write the probe as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw every checkpoint: .png, .svg or .pdf.")] = None,
    parameters: options.Parameters = "kernels",
    size: options.Size = 10,
    probes: Annotated[int, typer.Option(help="Random directions of the local analysis.")] = 8,
    seed: options.Seed = 0,
    likelihood: options.LikelihoodName = "categorical",
    batch_size: options.BatchSize = 500,
    device: options.Device = "cpu",
) -> None:
    """Does PEP see overfitting? The train-test gap against sigma*, PEP effect and curvature of each checkpoint."""
    refuse_outputs(out, picture)
    source = options.source(model, None, device)
    found = probe_overfitting(
        source.model,
        checkpoints,
        train=items.labelled(train, source),
        validation=items.labelled(validation, source),
        test=items.labelled(test, source),
        parameters=parameters,
        size=size,
        probes=probes,
        seed=seed,
        likelihood=likelihood,
        batch_size=batch_size,
    )
    _show(found)
    settings = {
        "model": model,
        "checkpoints": [str(path) for path in checkpoints],
        "train": train,
        "validation": validation,
        "test": test,
        "parameters": parameters,
        "size": size,
        "probes": probes,
    }
    write_outputs(
        out,
        lambda: Run(f"overfitting of {model}", settings, (), provenance=provenance(seed), overfitting=_panel(found)),
        picture,
        lambda: figures.overfitting_scatter(found),
    )


def _show(found: OverfittingProbe) -> None:
    table = Table("checkpoint", "training NLL", "test NLL", "overfitting", "sigma*", "PEP effect", "effect rate")
    for p in found.points:
        scores = (p.train_nll, p.test_nll, p.overfitting)
        table.add_row(
            Path(p.name).name,
            *(f"{score:.4f}" for score in scores),
            f"{p.sigma:.4g}",
            f"{p.pep_effect:.4f}",
            f"{p.effect_rate:.4g} ± {p.effect_rate_error:.2g}",
        )
    console().print(table)
    say("rank correlation with overfitting, as if checkpoints were independent:")
    for name, title in NAMES.items():
        rho = found.correlations.get(name)
        text = f"{rho.rho:+.2f}  [{rho.lower:+.2f}, {rho.upper:+.2f}]" if rho else "one value only"
        say(f"  {title:<26} {text}")


def _panel(found: OverfittingProbe) -> dict[str, Any]:
    """One object for each checkpoint, and all correlations with overfitting; that of the PEP effect stands out."""
    points = [vars(p) | {"overfitting": p.overfitting, "effect": p.pep_effect} for p in found.points]
    effect = found.correlations.get("pep_effect")
    return {
        "points": points,
        "spearman": effect and effect.rho,
        "spearman_lower": effect and effect.lower,
        "spearman_upper": effect and effect.upper,
        "correlations": found.correlations,
    }
