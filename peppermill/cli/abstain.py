"""`peppermill abstain`: which predictions to keep, for an error rate that you name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import peppermill as pm
from peppermill.cli import options, which_items
from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.plumbing.files import refuse_unwritable


def abstain_command(
    network: options.Network,
    data: options.Data,
    predictor: options.EnsembleFile,
    out: Annotated[Path, typer.Option(help="Where to write the rule, for `pm.load_abstention`.")] = Path("rule.json"),
    risk: Annotated[float, typer.Option(help="The error rate of what is kept, at most.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="With which this is promised.")] = 0.95,
) -> None:
    """Find the confidence above which at most --risk of the predictions are wrong.

    Items on which sigma was tuned are left out. Exit code 1 and no file: nothing can be promised at this risk.
    """
    refuse_unwritable(out)
    source = network.source()
    pep = predictor.ensemble(source.model)
    items, _ = which_items.testing(data, source, pep, False)
    batches = Batches(items, source.model, batch_size=predictor.batch_size)
    asked: Any = {"risk": risk, "confidence": confidence, "likelihood": predictor.likelihood}
    rule = pm.abstain(pep or source.model, batches, **asked)
    if rank():
        return
    if not rule.coverage:
        raise typer.Exit(1)
    rule.save(out)
    say(
        f"wrote {out}: keep predictions with a confidence above {rule.threshold:.4g}, {100 * rule.coverage:.4g} % of "
        f"these items; at most {100 * risk:g} % of such are wrong, with {100 * confidence:g} % confidence"
    )
