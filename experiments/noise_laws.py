"""Non-Gaussian noise (Section 3.2): uniform against Gaussian noise on MNIST (MLP), paired.

Both laws have variance 1, so that sigma means the same for both; each has its own sigma*, found as the paper found it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

import peppermill as pm
from experiments.resume import plain, write_result
from experiments.settings import Settings as Table2Settings
from experiments.settings import arithmetic
from experiments.table2.methods import paper_pep
from experiments.table2.work import Work

KIND = "peppermill noise laws"
LAWS = ("gaussian", "uniform")


@dataclass(frozen=True)
class Settings(Table2Settings):
    """One row of Table 2."""

    rows: tuple[str, ...] = ("mnist-mlp",)  # Section 3.2


def main(settings: Settings) -> dict[str, Any]:
    """NLL and sigma* of both laws for every model, and the paired difference, into noise.json."""
    work = Work(settings.rows[0], settings)
    with arithmetic(settings.precision):
        found = work.stage("noise", lambda: compare_laws(work))
    first, second = (found["laws"][law]["nll"] for law in LAWS)
    test = stats.ttest_rel(second, first) if len(first) > 1 else None  # one model alone has no interval
    bounds = test.confidence_interval(0.95) if test else (-np.inf, np.inf)
    difference = {
        "mean": float(np.mean(second) - np.mean(first)),
        "lower": float(bounds[0]),
        "upper": float(bounds[1]),
        "models": len(first),
    }
    content = {
        "row": work.name,
        **found,
        "difference": plain(difference),
        "p_value": float(test.pvalue) if test else None,
        "settings": settings.identity(),
    }
    settings.say(f"uniform - Gaussian noise, NLL over {len(first)} models: {difference['mean']:+.5f}")
    return write_result(settings.out / "noise.json", KIND, content, settings.seeds[0])


def compare_laws(work: Work) -> dict[str, Any]:
    """The NLL of every model under both laws, and the paired test over test items of its mean over models."""
    laws, items = {}, {}
    for law in LAWS:
        each, sigmas = [], []
        for seed, network in zip(work.settings.seeds, work.networks, strict=True):
            pep = paper_pep(work, network, pm.Noise(law, antithetic=False, seed=seed))
            found = pm.predict(pep, work.data.test)
            each.append(pm.metrics.item_nll(found.log_probs, found.labels).cpu().numpy())
            sigmas.append(pep.sigma)
        laws[law] = {"nll": [float(one.mean()) for one in each], "sigma": sigmas}
        items[law] = np.mean(each, axis=0)
        work.settings.say(f"{work.row.title}, {law} noise: NLL {np.mean(laws[law]['nll']):.5f}")
    over_items = items["uniform"] - items["gaussian"]
    test = stats.ttest_1samp(over_items, 0.0)
    return {"laws": laws, "over_items": {"mean": float(over_items.mean()), "p_value": float(test.pvalue)}}
