"""`peppermill evaluate` and `peppermill abstain`: how good predictions are on test data, and which of them to keep."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import peppermill as pm
from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.likelihood import likelihood_named
from peppermill.plumbing.files import refuse_unwritable
from peppermill.sources.image_folder import lines_of


def evaluate_command(
    context: typer.Context,
    network: options.Network,
    data: options.Data,
    predictor: options.EnsembleFile,
    out: options.RunFile = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="DATA", help="Also sweep sigma on this data, for the report.")
    ] = None,
    class_names: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A class on each line.")] = None,
    images: Annotated[bool, typer.Option("--images/--no-images", help="Keep pictures of notable items.")] = True,
    all_items: Annotated[bool, typer.Option("--all-items", help="Test also on items used for tuning.")] = False,
    rule: Annotated[Path | None, typer.Option(help="Mark what a rule of `peppermill abstain` keeps.")] = None,
    bins: options.Bins = 20,
    seed: options.BootstrapSeed = 0,
) -> None:
    """Score the network with intervals; with --pep, also the ensemble and its paired differences from the network."""
    refuse_unwritable(out)
    source = network.source()
    ensemble = predictor.ensemble(source.model)
    if sweep and ensemble is None:
        raise ValueError("`--sweep` shows the noise of an ensemble: name it with `--pep pep.json`.")
    labelled, names = which_items.testing(data, source, ensemble, all_items)
    settings = options.settings(context, "model", "data", "weights", "pep", "bins", "sweep")
    if ensemble and ensemble.recipe.split:
        settings |= {"split": asdict(ensemble.recipe.split), "all items": all_items}
    swept = None
    if sweep and ensemble:
        tuned = which_items.labelled(sweep, source, ensemble)
        swept = pm.sweep_around(ensemble, tuned, bins=bins, batch_size=predictor.batch_size)
    likelihood = likelihood_named(predictor.likelihood) if predictor.likelihood else None
    rivals = [pep for pep in (ensemble.one_pass, ensemble) if pep] if ensemble else []
    run = pm.record_run(
        {"network": source.model, **{rival.method: rival for rival in rivals}},
        Batches(labelled, source.model, batch_size=predictor.batch_size),
        title=f"{network.model} on {data}",
        sweep=swept,
        class_names=lines_of(class_names, "a file of classes", "the name of a class") if class_names else names,
        settings=settings,
        likelihood=likelihood,
        bins=bins,
        seed=seed,
        images=images,
        rule=pm.load_abstention(rule, ensemble or source.model, likelihood=likelihood) if rule else None,
    )
    if rank():
        return
    if out:
        pm.write_run(run, out)
    say(run)
    if run.sizes:
        say(run.sizes.enough())
    if out:
        say(f"wrote {out}. Next: peppermill report {out}")


def abstain_command(
    network: options.Network,
    data: options.Data,
    predictor: options.EnsembleFile,
    out: Annotated[Path, typer.Option(help="Where to write the rule, for `pm.load_abstention`.")] = Path("rule.json"),
    risk: Annotated[float, typer.Option(help="The error rate of what is kept, at most.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="With which this is promised.")] = 0.95,
) -> None:
    """Find the confidence above which at most --risk of the predictions are wrong.

    Items used for tuning are left out. If nothing can be promised, it writes no file and exits with code 1.
    """
    refuse_unwritable(out)
    source = network.source()
    pep = predictor.ensemble(source.model)
    items, _ = which_items.testing(data, source, pep, False)
    batches = Batches(items, source.model, batch_size=predictor.batch_size)
    likelihood = likelihood_named(predictor.likelihood) if predictor.likelihood else None
    rule = pm.abstain(pep or source.model, batches, risk=risk, confidence=confidence, likelihood=likelihood)
    if rank():
        return
    if not rule.coverage:
        raise typer.Exit(1)
    rule.save(out)
    say(
        f"wrote {out}: keep predictions with a confidence above {rule.threshold:.4g}, {100 * rule.coverage:.4g} % of "
        f"these items; at most {100 * risk:g} % of such are wrong, with {100 * confidence:g} % confidence"
    )
