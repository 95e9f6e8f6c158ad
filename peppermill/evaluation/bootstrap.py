"""The bootstrap over examples: resampled scores of weighted examples, and the intervals that they give.

An example is what was drawn independently: an image, not its pixels, which are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

RESAMPLES = 2000
CHUNK = 2**24  # numbers drawn at once
ROUNDING = 1e-12  # terms above minus this are not negative


@dataclass(frozen=True)
class Estimate:
    """A score and its interval."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class ExampleSums:
    """The terms of a score, summed over the items of each of E examples, [E] or [E, d], and the number of items, [E].

    The score is their mean over items, or `combine` of it.
    """

    totals: np.ndarray
    counts: np.ndarray
    combine: Callable[[np.ndarray], np.ndarray] | None = None

    def value(self, weights: np.ndarray | None = None) -> Any:
        """The score of all items; with weights [rows, E], how often each example counts, one score for each row."""
        if weights is None:
            mean = self.totals.sum(axis=0) / self.counts.sum()
        else:
            mean = ((weights @ self.totals).T / (weights @ self.counts)).T
        return self.combine(mean) if self.combine else mean


def sum_by_example(values: Tensor, examples: Tensor | None, cells: Tensor | None = None, bins: int = 1) -> ExampleSums:
    """Values of items, [N] or [N, d], summed; with `cells`, the bin of each item, [N], each bin apart: [E, bins]."""
    values = values.double().cpu()
    rows = torch.arange(len(values)) if examples is None else examples.cpu()
    counts = torch.bincount(rows)
    places = rows if cells is None else rows * bins + cells.cpu()
    totals = values.new_zeros(len(counts) * bins, *values.shape[1:]).index_add_(0, places, values)
    return ExampleSums((totals if cells is None else totals.view(-1, bins)).numpy(), counts.double().numpy())


def estimate(scores: Mapping[str, ExampleSums], level: float, seed: int) -> dict[str, Estimate]:
    """Every score with its interval, from the same resamples of the examples."""
    examples = len(next(iter(scores.values())).counts)
    resampled = resample({name: score.value for name, score in scores.items()}, examples, seed)
    found = {}
    for name, score in scores.items():
        value = float(score.value())
        lower, upper = interval(value, resampled[name], level, examples)
        if score.combine or score.totals.min() > -ROUNDING:  # centering may move a bound below 0, where it never is
            lower, upper = max(0.0, lower), max(0.0, upper)
        found[name] = Estimate(value, lower, upper)
    return found


def resample(
    scores: Mapping[str, Callable[[np.ndarray], np.ndarray]], examples: int, seed: int
) -> dict[str, np.ndarray]:
    """Every score, [resamples], a function of weights [rows, E], of the same bootstrap resamples of the examples."""
    generator = np.random.default_rng(seed)
    step = max(1, CHUNK // examples)
    found: dict[str, list[np.ndarray]] = {name: [] for name in scores}
    for done in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - done)
        drawn = generator.integers(examples, size=(rows, examples)) + examples * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples)
        weights = counts.astype(np.float64)  # how often each resample holds each example
        for name, score in scores.items():
            found[name].append(score(weights))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def centered(value: float, resampled: np.ndarray) -> np.ndarray:
    """The resampled scores, moved so that their mean is the score itself.

    The ECE of a resample exceeds that of the sample, as that of the sample exceeds the truth: both count noise as
    miscalibration. What is left after centering is the spread of the number that is reported.
    """
    moved: np.ndarray = resampled - (resampled.mean() - value)
    return moved


def interval(value: float, resampled: np.ndarray, level: float, examples: int) -> tuple[float, float]:
    """The central part of the centered resamples, widened as Student's t is wider than the normal distribution.

    Resamples of n examples spread by sqrt((n - 1) / n) too little; the few images of a segmentation show both.
    """
    if examples == 1:
        return -math.inf, math.inf
    tail = (1 + level) / 2
    width = math.sqrt(examples / (examples - 1)) * stdtrit(examples - 1, tail) / ndtri(tail)
    low, high = np.quantile(centered(value, resampled), [1 - tail, tail])
    return float(value + width * (low - value)), float(value + width * (high - value))


def p_value_of(value: float, resampled: np.ndarray) -> float:
    """Twice the smaller share of resampled differences beyond zero; n resamples show no less than 2 / (n + 1)."""
    draws = centered(value, resampled)
    tail = min((draws <= 0).mean(), (draws >= 0).mean())
    return float(min(1.0, max(2 * tail, 2 / (len(draws) + 1))))
