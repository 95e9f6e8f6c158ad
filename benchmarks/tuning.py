"""What finding sigma costs, and what it misses: `python -m benchmarks.tuning [NAME ...]`.

For each network: the passes of all members that `fit` spends, and how far its L(sigma*) stays below the best of a fine
grid, as a share of the PEP effect, with a temperature also as a share of the gain over that temperature alone; beside
it the golden section, and the authors' procedure (ten iterations in 0..0.1, both inner points computed in each, so 20
passes). The fine grid is a cubic spline through nineteen values, evaluated in steps of 1 %. Needs PEPPERMILL_DATA for
all networks but the demo's. `--device cuda` spares hours; nothing here is a time.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicSpline

import peppermill as pm
from benchmarks.timing import RESULTS, table_section, where, write_result
from benchmarks.trained import IMAGES, RESNET_FILES, Trained, resnet, table2

SIZE, BATCH = 10, 250
GRID = np.geomspace(0.06, 2.0, 19)  # in units of sigma*
FINE = np.geomspace(0.06, 2.0, 352)  # in units of sigma*
VALIDATION = {"mnist-mlp": 10_000, "mnist-cnn": 2_500, "fashion-mnist": 2_500, "cifar10": 2_500, "cifar100": 2_500}
AUTHORS = pm.Golden(iterations=9, lower=0.0, upper=0.1)  # the authors' scripts
AUTHORS_PASSES = 20.0  # they compute both inner points in each of ten iterations

TITLES = {
    "demo": "the demo's",
    "mnist-mlp": "MNIST MLP",
    "mnist-cnn": "MNIST CNN",
    "fashion-mnist": "Fashion-MNIST CNN",
    "cifar10": "CIFAR-10 CNN",
    "cifar100": "CIFAR-100 CNN",
    "resnet20": "ResNet-20, CIFAR-10",
    "resnet56": "ResNet-56, CIFAR-10",
}


def networks(device: str = "cpu") -> dict[str, Callable[[], Trained]]:
    """The demo's network, those of Table 2 on the first of their validation images, and the ResNets."""
    rows = {name: lambda name=name: _first(table2(name, device), VALIDATION[name]) for name in IMAGES}
    rows |= {f"resnet{depth}": lambda depth=depth: resnet(depth, device=device) for depth in RESNET_FILES}
    return {"demo": lambda: demo(device), **rows}


def demo(device: str) -> Trained:
    """The demo's network and its validation images."""
    inputs, labels = pm.demo.validation()
    return pm.demo.network().to(device), (inputs.to(device), labels.to(device))


def measure(network: Any, data: Any) -> dict[str, Any]:
    """Passes of all members and the share of the effect that was missed, for each search."""

    def fit(**settings: Any) -> pm.PepEnsemble:
        return pm.fit(network, data, size=SIZE, batch_size=BATCH, **settings)

    plain, both, golden = fit(), fit(temperature=True), fit(search="golden")
    bracket = fit(search=AUTHORS).search
    middle = (bracket.lower + bracket.upper) / 2  # which the authors take
    sigmas = [*(plain.sigma * GRID), golden.sigma, both.sigma, middle]
    sweep = pm.sweep_sigma(network, data, sorted(set(sigmas)), size=SIZE, batch_size=BATCH)
    points = {point.sigma: point for point in sweep.points}
    zero, fine = points[0.0].log_likelihood, np.log(plain.sigma * FINE)

    def best(name: str) -> float:
        grid = [getattr(points[sigma], name) for sigma in plain.sigma * GRID]
        spline = CubicSpline(np.log(plain.sigma * GRID), grid)
        return max(*(getattr(point, name) for point in sweep.points), *map(float, spline(fine)))

    def row(passes: float | None, value: float, name: str = "log_likelihood") -> dict[str, float]:
        return {"passes": passes or 0.0, "missed": (best(name) - value) / (best(name) - zero)}

    profile = "tempered_log_likelihood"
    joint = row((both.search.passes or 0) / SIZE, points[both.sigma].tempered_log_likelihood, profile)
    over_t = best(profile) - points[0.0].tempered_log_likelihood
    joint["gain_over_t"] = over_t
    joint["missed_over_t"] = (best(profile) - points[both.sigma].tempered_log_likelihood) / over_t
    return {
        "items": sweep.items,
        "effect": best("log_likelihood") - zero,
        "sigma": plain.sigma,
        "quick": row((plain.search.passes or 0) / SIZE, plain.search.best.log_likelihood / sweep.items),
        "quick_with_temperature": {**joint, "sigma": both.sigma, "temperature": both.temperature},
        "golden": row((golden.search.passes or 0) / SIZE, points[golden.sigma].log_likelihood),
        "authors": row(AUTHORS_PASSES, points[middle].log_likelihood),
    }


def _first(trained: Trained, count: int) -> Trained:
    network, (inputs, labels) = trained
    return network, (inputs[:count], labels[:count])


def _over_t(row: dict[str, Any]) -> str:
    joint = row["quick_with_temperature"]
    if "gain_over_t" not in joint:
        return "not measured"
    return f"{row['items'] * joint['gain_over_t']:.2f}, {100 * joint['missed_over_t']:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(networks()), help="networks; others keep their results")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", pm.PepWarning)
    torch.backends.cudnn.allow_tf32 = False
    path = RESULTS / "tuning.json"
    for name in asked.names:
        row = measure(*networks(asked.device)[name]()) | {"commit": pm.provenance(0)["commit"]}
        known = json.loads(path.read_text())["networks"] if path.exists() else {}
        write_result("tuning", {"size": SIZE, "batch": BATCH, "networks": known | {name: row}})


def section(found: dict[str, Any]) -> str:
    ways = ("quick", "quick_with_temperature", "golden", "authors")
    latest = found["provenance"]["commit"]
    older = {row["commit"] for row in found["networks"].values()} - {latest}
    ages = [
        f"{', '.join(TITLES[n] for n, row in found['networks'].items() if row['commit'] == commit)} at {commit}"
        for commit in sorted(older)
    ]
    earlier = f"Measured earlier: {'; '.join(ages)}. " if ages else ""
    return table_section(
        "Finding sigma",
        f"The number of passes of all m = {found['size']} members over all validation items, and the share of the PEP "
        "effect L(σ*) − L(0) that the search misses, compared with the best sigma on a fine grid or in any search. The "
        "limits are 5 passes and 1 %. *two-stage* is `fit`. With `temperature=True` the share is that of the best "
        "L(σ, T) − L(0); *over T* is the gain of the noise over a temperature alone, in nats summed over all items, "
        'and its limit is 5 %. *golden* is `fit(search="golden")`. *authors* is their procedure: ten iterations in 0 '
        "to 0.1 that compute both inner points each time. The networks of Table 2 are one seed each, trained for 15 "
        f"epochs on part of the images (`benchmarks/trained.py`). {earlier}`python -m benchmarks.tuning`; "
        f"{where(found)}.",
        ("network", "items", "effect", "two-stage", "two-stage, with T", "golden", "authors", "over T, missed"),
        [
            (
                TITLES[name],
                f"{row['items']:,}",
                f"{row['effect']:.4f}",
                *(f"**{row[way]['passes']:.1f}**, {100 * row[way]['missed']:.2f} %" for way in ways),
                _over_t(row),
            )
            for name, row in sorted(found["networks"].items(), key=lambda item: list(TITLES).index(item[0]))
        ],
    )


if __name__ == "__main__":
    main()
