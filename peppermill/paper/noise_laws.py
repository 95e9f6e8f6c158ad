"""Non-Gaussian distributions (Section 3.2): uniform noise against Gaussian noise on MNIST (MLP), paired.

Both laws have variance 1, so sigma means the same for both; each has its own sigma*, found as the paper found it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import stats

import peppermill as pm
from peppermill.paper.members import Directions, StackedMembers
from peppermill.paper.result import write_result
from peppermill.paper.rows import row_data
from peppermill.paper.tables import paired_difference
from peppermill.paper.tuned import paper_sigma, tune_together
from peppermill.paper.work import Settings, Work, kept_stage, paper_layers, row_of
from peppermill.report.provenance import provenance
from peppermill.report.run import plain

KIND = "peppermill noise laws"
VERSION = 1
LAWS = ("gaussian", "uniform")


def main(settings: Settings) -> dict[str, Any]:
    """NLL and sigma* of both laws for every model, and the paired difference, into noise.json."""
    name = settings.rows[0]
    found = kept_stage(settings, f"noise-{name}", lambda: _both_laws(name, settings), row_of(name, settings))
    first, second = (found["laws"][law]["nll"] for law in LAWS)
    content = {
        "format": KIND,
        "version": VERSION,
        "row": name,
        **found,
        "difference": plain(paired_difference(first, second)),
        "p_value": float(stats.ttest_rel(second, first).pvalue) if len(first) > 1 else None,
        "settings": settings.identity(),
        "provenance": provenance(settings.seeds[0]),
    }
    write_result(settings.out / "noise.json", content)
    settings.say(f"uniform - Gaussian noise, NLL over {len(first)} models: {paired_difference(first, second)}")
    return content


def _both_laws(name: str, settings: Settings) -> dict[str, Any]:
    row = row_of(name, settings)
    data = row_data(row, settings.data, settings.machine.device, settings.validation)
    work = Work(name, row, settings, data)
    laws, items = {}, {}
    for law in LAWS:
        baseline = work.baseline()
        stack = replace(baseline, directions=Directions(baseline.state, settings.seeds, law), kept={})
        names = paper_layers(row)
        validation = StackedMembers(stack, data.validation, names, row.tuning_size, antithetic=False)
        found = tune_together(validation, paper_sigma)[0]
        test = StackedMembers(stack, data.test, names, settings.size, antithetic=False)
        passes = test.run({index: one.sigma for index, one in enumerate(found)})
        each = torch.stack([pm.metrics.item_nll(one.averaged, one.labels) for one in passes.values()])
        laws[law] = {"nll": each.mean(1).tolist(), "sigma": [one.sigma for one in found]}
        items[law] = each.mean(0).cpu().numpy()
        settings.say(f"{row.title}, {law} noise: NLL {np.mean(laws[law]['nll']):.5f}")
    over_items = items["uniform"] - items["gaussian"]
    tested = {"mean": float(over_items.mean()), "p_value": float(stats.ttest_1samp(over_items, 0.0).pvalue)}
    return {"laws": laws, "over_items": tested}
