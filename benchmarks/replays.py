"""How often the quick search misses, on other validation items: `python -m benchmarks.replays [NAME ...]`.

`tuning.py` has one network of each kind and one set of items, and a search may be lucky. Here the members pass over all
validation items at sixteen sigmas; every item's log-likelihood between them is interpolated, so that `fit`'s search can
be run again, at no cost, on a hundred random draws of items. Each time it misses some share of the effect on its items.
Needs PEPPERMILL_DATA for all but the demo.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

import peppermill.demo
from benchmarks.timing import RESULTS, where, write_result
from benchmarks.trained import Trained, table2
from benchmarks.tuning import TITLES, Case
from peppermill.data import Batches
from peppermill.engines.loop import MemberPass
from peppermill.likelihood import Categorical, ensemble_log_likelihoods
from peppermill.tuning.subsample import Sample, sample_of
from peppermill.tuning.two_stage import tune_quickly
from peppermill.types import PepWarning

GRID = np.geomspace(0.1, 4.0, 16)  # in units of sigma*
DRAWS, COUNTS = 100, (2_500, 1_000)
SIZE, BATCH = 10, 250
TOLERATED = 0.01  # of the effect

NETWORKS: dict[str, Callable[[], Trained]] = {
    "demo": lambda: (peppermill.demo.network(), peppermill.demo.validation()),
    "mnist-mlp": lambda: table2("mnist-mlp"),
    "cifar10": lambda: table2("cifar10"),
    "cifar100": lambda: table2("cifar100"),
}


@dataclass(frozen=True)
class Curves:
    """The ensemble's log-likelihood of every item along sigma: at 0, and as gain / sigma^2 along ln sigma."""

    network: Tensor  # [N]
    rates: CubicSpline
    scale: float

    def __call__(self, sigma: float, items: Tensor) -> Tensor:
        """Of some items, [n]; beyond the grid the rates are those at its ends."""
        place = np.clip(math.log(max(sigma, 1e-12)), *self.rates.x[[0, -1]])
        return self.network[items] + sigma**2 * torch.from_numpy(self.rates(place))[items]


def curves_of(case: Case) -> Curves:
    """Sixteen passes of all members over all items."""
    middle = case.quick(joint=False).best.sigma
    network = ensemble_log_likelihoods(case.run(0.0).member_log_likelihoods)
    sigmas = middle * GRID
    rows = [(ensemble_log_likelihoods(case.run(sigma).member_log_likelihoods) - network) / sigma**2 for sigma in sigmas]
    return Curves(network, CubicSpline(np.log(sigmas), torch.stack(rows).numpy()), case.perturbation.scale())


def replay(curves: Curves, items: Tensor) -> tuple[float, float]:
    """The share of the effect that the search misses on these items, and its passes of all members."""
    data = Batches((items.double().unsqueeze(1), torch.zeros_like(items)), batch_size=BATCH)  # an input is its number
    list(data)

    def run(sigma: float, sample: Sample | None) -> MemberPass:
        shown = torch.cat([inputs[:, 0] for inputs, _ in (sample.data if sample else data)]).long()
        row = curves(sigma, shown)
        return MemberPass(sigma, row.expand(SIZE, -1), row.unsqueeze(1), torch.zeros_like(shown))

    found = tune_quickly(run, lambda network: sample_of(data, network, Categorical()), scale=curves.scale)
    fine = np.exp(np.linspace(*curves.rates.x[[0, -1]], 400))
    best = max(found.best.log_likelihood, *(float(curves(sigma, items).sum()) for sigma in fine))
    zero = found.baseline.log_likelihood
    return (best - found.best.log_likelihood) / (best - zero), (found.passes or 0.0) / SIZE


def measure(name: str) -> dict[str, Any]:
    """A hundred draws of each number of items."""
    curves, rows = curves_of(Case(*NETWORKS[name]())), {}
    for count in COUNTS:
        generator = torch.Generator().manual_seed(count)
        draws = [torch.randperm(len(curves.network), generator=generator)[:count] for _ in range(DRAWS)]
        missed, passes = zip(*(replay(curves, items) for items in draws), strict=True)
        rows[str(count)] = {"missed": missed, "passes": passes}
        print(name, count, f"{sum(one > TOLERATED for one in missed)} of {DRAWS} over 1 %", flush=True)
    return {"items": len(curves.network), "draws": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS), help="networks; others keep their results")
    warnings.simplefilter("ignore", PepWarning)
    path = RESULTS / "replays.json"
    for name in parser.parse_args().names:
        known = json.loads(path.read_text())["networks"] if path.exists() else {}
        write_result("replays", {"size": SIZE, "networks": known | {name: measure(name)}})


def section(found: dict[str, Any]) -> str:
    """The words of the page."""
    table = [
        _line(name, row["items"], count, **draws)
        for name, row in sorted(found["networks"].items(), key=lambda item: list(TITLES).index(item[0]))
        for count, draws in row["draws"].items()
    ]
    return "\n".join(
        [
            "## Finding sigma on other items",
            "",
            "The same search on random draws of a network's validation items, from log-likelihoods that were computed "
            f"at {len(GRID)} sigmas and interpolated: what it misses of the effect on those items, and its passes of "
            f"all m = {found['size']} members. A sample can mislead: rarely on 2,500 items, more often on 1,000. "
            f"`python -m benchmarks.replays`; {where(found)}.",
            "",
            "| network | items drawn | missed: median | 95 % of draws | worst | over 1 % | most passes |",
            "|---|---|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def _line(name: str, items: int, count: str, missed: list[float], passes: list[float]) -> str:
    shares = " | ".join(f"{100 * np.quantile(missed, level):.2f} %" for level in (0.5, 0.95, 1.0))
    over = f"{sum(one > TOLERATED for one in missed)} of {len(missed)}"
    return f"| {TITLES[name]} | {int(count):,} of {items:,} | {shares} | **{over}** | {max(passes):.1f} |"


if __name__ == "__main__":
    main()
