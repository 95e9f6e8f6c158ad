"""The columns of Table 1 on one split of the images: the paper's three methods, then ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import peppermill as pm
from experiments.table1.imagenet_networks import Network, Preparation

TITLES = {
    "network": "Network",
    "temperature": "Temp. scaling",
    "pep": "PEP",
    "pep_temperature": "PEP with T",
    "pep_antithetic": "PEP, antithetic",
    "pep_antithetic_temperature": "PEP with T, antithetic",
}

#: Which methods are compared on the test images, the second less the first.
PAIRS = (
    ("network", "temperature"),
    *((first, second) for second in list(TITLES)[2:] for first in ("network", "temperature")),
    ("pep", "pep_temperature"),
)


@dataclass(frozen=True)
class ImageBatches:
    """Labelled batches of some of the images, prepared for the network when they are read."""

    pixels: Tensor
    labels: Tensor
    items: Tensor
    prepare: Preparation
    device: str
    batch_size: int
    channels_last: bool  # Keras' order of dimensions

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in self.items.split(self.batch_size):
            inputs = self.prepare(self.pixels[chosen].to(self.device))
            yield inputs.movedim(1, 3).contiguous() if self.channels_last else inputs, self.labels[chosen]


@dataclass
class Case:
    """One split: the images that tune, those that test, and the settings of Section 3.1."""

    model: Any
    network: Network
    tuning: ImageBatches
    test: ImageBatches
    parameters: str
    tuning_size: int
    size: int
    iterations: int
    seed: int

    def fit(self, size: int, antithetic: bool, **options: Any) -> pm.PepEnsemble:
        """`pm.fit` on the tuning images."""
        noise = pm.Noise("gaussian", antithetic=antithetic, seed=self.seed)
        return pm.fit(self.model, self.tuning, parameters=self.parameters, size=size, noise=noise, **options)

    @cached_property
    def antithetic(self) -> pm.PepEnsemble:
        """Members in pairs, sigma and T tuned together: two columns share this fit."""
        return self.fit(max(1, self.size // 2 * 2), antithetic=True, temperature=True)


def network(case: Case) -> Any:
    """The network as it is."""
    return case.model


def temperature(case: Case) -> Any:
    """Temperature scaling: T by maximum likelihood on the tuning images."""
    return pm.fit_temperature(case.model, case.tuning)


def pep(case: Case) -> Any:
    """PEP by the paper's own search: the midpoint of the two inner points of the last iteration."""
    if case.network.range is None:
        return case.fit(case.tuning_size, antithetic=False).with_size(case.size)
    lower, upper = case.network.range
    # the midpoint of the inner points of iteration 7 is that of its bracket, which 6 sections leave
    search = pm.Golden(iterations=case.iterations - 1, lower=lower, upper=upper)
    found = case.fit(case.tuning_size, antithetic=False, search=search)
    return found.with_sigma((found.search.lower + found.search.upper) / 2).with_size(case.size)


def pep_temperature(case: Case) -> Any:
    """Ours: sigma and T tuned together, with all ten members while tuning too."""
    return case.fit(case.size, antithetic=False, temperature=True)


def pep_antithetic(case: Case) -> Any:
    """Ours: members in pairs, ten of them while tuning too."""
    return case.antithetic.without_temperature()


def pep_antithetic_temperature(case: Case) -> Any:
    """Ours: members in pairs, sigma and T tuned together; what `pm.fit(..., temperature=True)` does."""
    return case.antithetic


#: The columns: the paper's in its order, then ours. A new one is one function and one row here and in `TITLES`.
METHODS: dict[str, Callable[[Case], Any]] = {
    "network": network,
    "temperature": temperature,
    "pep": pep,
    "pep_temperature": pep_temperature,
    "pep_antithetic": pep_antithetic,
    "pep_antithetic_temperature": pep_antithetic_temperature,
}


def examine(case: Case, bins: int, minimum_count: int) -> dict[str, Any]:
    """Every method on one split: its scores, what was fitted, its reliability table, and the paired comparisons."""
    columns, items = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)  # a best sigma of 0, or at an end, is a number of the table
        for method, predictor_of in METHODS.items():
            predictor = predictor_of(case)
            found = pm.predict(predictor, case.test)
            scores = {
                "nll": pm.metrics.item_nll(found.log_probs, found.labels).cpu(),
                "brier": pm.metrics.item_brier(found.log_probs, found.labels).cpu(),
                "error": (found.log_probs.argmax(1) != found.labels).double().cpu(),
            }
            # ECE without the bins of few images (the authors' scripts)
            ece = pm.metrics.expected_calibration_error(
                found.log_probs, found.labels, bins, minimum_count=minimum_count
            )
            means = {score: float(values.mean()) for score, values in scores.items()}
            items[method], search = scores, getattr(predictor, "search", None)
            columns[method] = {
                "scores": {"nll": means["nll"], "brier": means["brier"], "ece": float(ece), "error": means["error"]},
                "sigma": float(getattr(predictor, "sigma", 0.0)),
                "temperature": float(getattr(predictor, "temperature", 1.0)),
                "points": search.points if search else (),
                "reliability": pm.metrics.reliability(found.log_probs, found.labels, bins),
            }
    comparisons = {f"{second} - {first}": paired(items[first], items[second]) for first, second in PAIRS}
    return {"columns": columns, "comparisons": comparisons}


def paired(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """second - first over the same images: mean, 95 % interval and p-value.

    A paired t test; for the error, where each difference is -1, 0 or 1, the exact test of McNemar.
    """
    found = {}
    for score in ("nll", "brier", "error"):
        differences = (second[score] - first[score]).numpy()
        if not differences.any():
            found[score] = {"mean": 0.0, "lower": 0.0, "upper": 0.0, "p": 1.0}
            continue
        test = stats.ttest_1samp(differences, 0.0)
        bounds = test.confidence_interval(0.95)
        better, worse = int((differences < 0).sum()), int((differences > 0).sum())
        p = stats.binomtest(better, better + worse).pvalue if score == "error" else test.pvalue
        numbers = (differences.mean(), bounds.low, bounds.high, p)
        found[score] = dict(zip(("mean", "lower", "upper", "p"), map(float, numbers), strict=True))
    return found


def splits_of(items: int, tuning: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """(tuning, test) images: the paper's split, the first against the others, then random ones (seeds 1, 2, ...)."""
    if not 0 < tuning < items:
        raise ValueError(
            f"`tuning={tuning}` must leave images to tune on and to test on, and there are {items:,} in all: the "
            "paper took a tenth; with few images a fifth is a good choice."
        )
    if count < 1:
        raise ValueError(f"`splits={count}` must be at least 1.")
    found = []
    for seed in range(count):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(items)) if seed else torch.arange(items)
        found.append((order[:tuning].sort().values, order[tuning:].sort().values))
    return found
