"""`peppermill evaluate`: the network, and the ensemble beside it, on labelled data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from peppermill.cli import options
from peppermill.cli import which_items as items
from peppermill.cli.console import say, show_methods
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.evaluation.sweep import Sweep
from peppermill.plumbing.files import refuse_unwritable
from peppermill.processes.group import rank
from peppermill.report.record import record_run, sweep_around
from peppermill.report.run import plain, write_run
from peppermill.sources.source import Source

EXAMPLES = (
    "peppermill evaluate python:my_models:resnet npz:test.npz --weights resnet.safetensors --pep pep.json --sweep "
    "npz:validation.npz --out run.json"
)

ENOUGH = 0.001  # what may be lost of the NLL by using fewer members


def command(
    model: options.Model,
    data: options.Data,
    pep: options.Pep = None,
    weights: options.Weights = None,
    out: Annotated[Path | None, typer.Option(help="Also write the run as JSON, for `peppermill report`.")] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="DATA", help="Also sweep sigma on these data, for the slider of the report.")
    ] = None,
    class_names: Annotated[Path | None, typer.Option(help="A text file with the name of each class on a line.")] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Keep small pictures of the items most helped and hurt.")
    ] = True,
    all_items: Annotated[
        bool, typer.Option("--all-items", help="Test also on the items that `fit --validation` tuned on.")
    ] = False,
    bins: options.Bins = 20,
    likelihood: options.LikelihoodOrOwn = None,
    seed: Annotated[int, typer.Option(help="The seed of the bootstrap.")] = 0,
    batch_size: options.BatchSize = 500,
    engine: options.EngineName = "auto",
    precision: options.Precision = None,
    device: options.Device = "cpu",
) -> None:
    """NLL, Brier, ECE and error with intervals; with --pep, paired differences between ensemble and network."""
    refuse_unwritable(out)
    source = options.source(model, weights, device)
    network = source.model
    ensemble = options.ensemble(pep, network, likelihood, engine, precision)
    labelled, names = items.testing(data, source, ensemble, all_items, batch_size)
    paths = {"weights": str(weights) if weights else None, "pep": str(pep) if pep else None}
    run = record_run(
        {"network": network, "PEP": ensemble} if ensemble else {"network": network},
        Batches(labelled, network, batch_size=batch_size),
        title=f"{model} on {data}",
        sweep=_swept(ensemble, sweep, source, bins, batch_size) if sweep else None,
        class_names=options.lines(class_names) if class_names else names,
        settings={"model": model, "data": data, **paths, "bins": bins, "sweep": sweep, **_split(ensemble, all_items)},
        likelihood=likelihood or (ensemble.likelihood if ensemble else None),
        bins=bins,
        seed=seed,
        images=images,
    )
    if rank():
        return
    show_methods(plain(run))
    if run.sizes:
        say(f"{run.sizes.smallest(ENOUGH)} of the {run.sizes.sizes[-1]} members lose at most {ENOUGH:g} of the NLL")
    if out:
        write_run(run, out)
        say(f"wrote {out}. Next: peppermill report {out}")


def _split(ensemble: PepEnsemble | None, all_items: bool) -> dict[str, Any]:
    """How the items on which sigma was tuned were drawn, if they were."""
    split = ensemble.recipe.split if ensemble else None
    return {"split": asdict(split), "all items": all_items} if split else {}


def _swept(ensemble: PepEnsemble | None, data: str, source: Source, bins: int, batch_size: int) -> Sweep:
    if ensemble is None:
        raise ValueError("`--sweep` shows the noise of an ensemble: name it with `--pep pep.json`.")
    return sweep_around(ensemble, items.tuned(data, source, ensemble, batch_size), bins=bins, batch_size=batch_size)
