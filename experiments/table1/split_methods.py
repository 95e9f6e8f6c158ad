"""The columns of Table 1 for one seed of the noise, on every split of the images: the paper's three methods, then ours.

All splits share the passes over all images at a grid of sigmas; the search of each split is then arithmetic. So sigma*
is the best value of the grid, not the end of a golden section as in the paper or of the search of `pm.fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import peppermill as pm

TITLES = {
    "network": "Network",
    "temperature": "Temp. scaling",
    "pep": "PEP",
    "pep_temperature": "PEP with T",
    "pep_antithetic": "PEP, antithetic",
    "pep_antithetic_temperature": "PEP with T, antithetic",
}
SCORES = ("nll", "brier", "error")  # that every image has

#: Which methods are compared on the test images, the second less the first.
PAIRS = (
    ("network", "temperature"),
    *((first, second) for second in list(TITLES)[2:] for first in ("network", "temperature")),
    ("pep", "pep_temperature"),
)


@dataclass(frozen=True)
class Passes:
    """All members over all images, for one seed: the averages [N, K] of both kinds of noise at every sigma."""

    labels: Tensor
    network: Tensor  # log-probabilities without noise, [N, K]
    independent: dict[float, Tensor]
    antithetic: dict[float, Tensor]
    few: dict[float, Tensor]  # the log-likelihood of every image with the few independent members of the paper's search


def passes_of(
    model: Any,
    data: tuple[Tensor, Tensor],
    network: Tensor,
    settings: Any,
    seed: int,
    grid: tuple[float, ...],
    zero: bool,
) -> Passes:
    """Run the members of one seed at every sigma of the grid; with `zero` the paper's search may find sigma = 0.

    The first half of the independent members are the first members of the antithetic pairs, so both kinds of noise
    share their passes: draw 2j of `pm.Noise` is +epsilon_j, and draw 2j + 1 is -epsilon_j.
    """
    size, half = settings.size, max(1, settings.size // 2)
    draws = {
        "plus": range(0, 2 * half, 2),
        "minus": range(1, 2 * half * (size > 1), 2),
        "more": range(2 * half, 2 * size, 2),
    }
    ensembles = {
        part: pm.PepEnsemble.at_sigma(
            model,
            grid[0],
            parameters=settings.parameters,
            size=len(chosen),
            noise=pm.Noise("gaussian", seed=seed, draws=tuple(chosen)),
            engine=settings.engine,
        )
        for part, chosen in draws.items()
        if chosen
    }
    labels = data[1].to(network.device)
    independent, antithetic = dict[float, Tensor](), dict[float, Tensor]()
    few = {0.0: -pm.metrics.item_nll(network, labels)} if zero else {}
    for sigma in grid:
        found = {part: pep.with_sigma(sigma).member_pass(data) for part, pep in ensembles.items()}
        for averages, parts in ((independent, ("plus", "more")), (antithetic, ("plus", "minus"))):
            used = [(found[part].averaged, len(draws[part])) for part in parts if part in found]
            total = sum(count for _, count in used)
            mixture = torch.stack([averaged + math.log(count / total) for averaged, count in used]).logsumexp(0)
            averages[sigma] = mixture.float()
        rows = torch.cat([found[part].member_log_likelihoods for part in ("plus", "more") if part in found])
        few[sigma] = rows[: settings.tuning_size].logsumexp(0) - math.log(min(settings.tuning_size, len(rows)))
    return Passes(labels, network, independent, antithetic, few)


@dataclass
class Case:
    """One split: the passes of one seed, and the images that tune."""

    passes: Passes
    tuning: Tensor

    @cached_property
    def labels(self) -> Tensor:
        return self.passes.labels[self.tuning]

    def temperature(self, log_probs: Tensor) -> float:
        """The T that is best on the tuning images."""
        logits = nn.Identity().eval()  # log-probabilities are logits: a network that gives them back, on their device
        logits.register_buffer("place", log_probs.new_zeros(()))
        return float(pm.fit_temperature(logits, (log_probs[self.tuning], self.labels)).temperature)

    def best(self, averages: dict[float, Tensor], tempered: bool) -> tuple[float, float]:
        """The sigma of the grid and the T with the lowest NLL on the tuning images; sigma = 0 competes."""
        found = []
        for sigma, log_probs in {0.0: self.passes.network, **averages}.items():
            temperature = self.temperature(log_probs) if tempered else 1.0
            tuned = (log_probs[self.tuning].double() / temperature).log_softmax(1)
            found.append((pm.metrics.nll(tuned, self.labels), sigma, temperature))
        _, sigma, temperature = min(found)
        return sigma, temperature


#: What a method chooses on the tuning images: sigma, T, and the averages [N, K] by sigma that it chooses from.
Choice = tuple[float, float, dict[float, Tensor]]


def network(case: Case) -> Choice:
    """The network as it is."""
    return 0.0, 1.0, {}


def temperature(case: Case) -> Choice:
    """Temperature scaling: T by maximum likelihood on the tuning images."""
    return 0.0, case.temperature(case.passes.network), {}


def pep(case: Case) -> Choice:
    """PEP as in the paper: few members while tuning, and sigma = 0 does not compete on the paper's networks."""
    few = case.passes.few
    return max(few, key=lambda sigma: float(few[sigma][case.tuning].sum())), 1.0, case.passes.independent


def pep_temperature(case: Case) -> Choice:
    """Ours: sigma and T tuned together, with all ten members while tuning too."""
    return *case.best(case.passes.independent, tempered=True), case.passes.independent


def pep_antithetic(case: Case) -> Choice:
    """Ours: members in pairs, ten of them while tuning too."""
    return *case.best(case.passes.antithetic, tempered=False), case.passes.antithetic


def pep_antithetic_temperature(case: Case) -> Choice:
    """Ours: members in pairs, sigma and T tuned together, as `pm.fit(..., temperature=True)` does."""
    return *case.best(case.passes.antithetic, tempered=True), case.passes.antithetic


#: The columns: the paper's in its order, then ours. A new one is one function and one row here and in `TITLES`.
METHODS: dict[str, Callable[[Case], Choice]] = {
    "network": network,
    "temperature": temperature,
    "pep": pep,
    "pep_temperature": pep_temperature,
    "pep_antithetic": pep_antithetic,
    "pep_antithetic_temperature": pep_antithetic_temperature,
}


def examine(passes: Passes, splits: list[tuple[Tensor, Tensor]], bins: int, minimum_count: int) -> dict[str, Any]:
    """Every method on every split with one seed: its scores, what it chose, and the scores of every image.

    `images` holds the mean score of an image over the splits that test it, NaN where no split does.
    """
    columns: dict[str, Any] = {}
    images: dict[str, Any] = {}
    for method, choose in METHODS.items():
        column: dict[str, Any] = {"scores": {}, "sigma": [], "temperature": []}
        sums = passes.network.new_zeros(len(SCORES), len(passes.labels), dtype=torch.float64)
        counts = sums.new_zeros(len(passes.labels))
        for number, (tuning, test) in enumerate(splits):
            sigma, warmth, averages = choose(Case(passes, tuning))
            log_probs = ({0.0: passes.network, **averages}[sigma][test].double() / warmth).log_softmax(1)
            labels = passes.labels[test]
            items = torch.stack(
                [
                    pm.metrics.item_nll(log_probs, labels),
                    pm.metrics.item_brier(log_probs, labels),
                    (log_probs.argmax(1) != labels).double(),
                ]
            )
            sums[:, test] += items
            counts[test] += 1
            # ECE without the bins of few images (the authors' scripts)
            ece = pm.metrics.expected_calibration_error(log_probs, labels, bins, minimum_count=minimum_count)
            scores = dict(zip(SCORES, items.mean(1).tolist(), strict=True)) | {"ece": float(ece)}
            for name, value in scores.items():
                column["scores"].setdefault(name, []).append(value)
            column["sigma"].append(float(sigma))
            column["temperature"].append(float(warmth))
            if not number:
                column["reliability"] = pm.metrics.reliability(log_probs, labels, bins)
        columns[method], images[method] = column, dict(zip(SCORES, sums / counts, strict=True))
    return {"columns": columns, "images": images}


def mixed(differences: np.ndarray) -> dict[str, float]:
    """The mean of differences [images, seeds] with its 95 % interval and p-value, if images and seeds are both samples.

    Two crossed random effects: the variance of the mean is (MS_images + MS_seeds - MS_rest) / (images * seeds), with
    the degrees of freedom of Satterthwaite. One seed leaves the paired t test over images.
    """
    differences = differences[~np.isnan(differences).any(1)]
    images, seeds = differences.shape
    mean = float(differences.mean())
    if not differences.any():
        return {"mean": 0.0, "lower": 0.0, "upper": 0.0, "p": 1.0, "seeds": 0.0}
    rows, columns = differences.mean(1), differences.mean(0)
    squares = np.array([seeds * rows.var(ddof=1), 0.0, 0.0])
    freedom = np.array([images - 1, 1, 1])
    if seeds > 1:
        rest = differences - rows[:, None] - columns + mean
        freedom = np.array([images - 1, seeds - 1, (images - 1) * (seeds - 1)])
        squares[1:] = images * columns.var(ddof=1), (rest**2).sum() / freedom[2]
    total = max(squares[0] + squares[1] - squares[2], squares[0])  # an estimate of a variance may be below 0
    degrees = total**2 / (squares**2 / freedom).sum()
    error = math.sqrt(total / (images * seeds))
    half = float(stats.t.ppf(0.975, degrees)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, degrees))
    spread = float(columns.std(ddof=1)) if seeds > 1 else 0.0
    return {"mean": mean, "lower": mean - half, "upper": mean + half, "p": p, "seeds": spread}


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
