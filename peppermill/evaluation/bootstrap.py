"""The bootstrap over examples: resampled scores of weighted examples, and the intervals that they give.

An example is what was drawn independently: an image, not its pixels, which are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

RESAMPLES = 2000
CHUNK = 2**24  # numbers drawn at once

#: A score as a function of how often each example counts: weights [rows, E] give [rows]; None counts every one once.
Weighted: TypeAlias = Callable[[np.ndarray | None], Any]


@dataclass(frozen=True)
class ExampleSums:
    """A quantity summed over the items of each of E examples, [E] or [E, d], and the number of those items, [E]."""

    totals: np.ndarray
    counts: np.ndarray

    def mean(self, weights: np.ndarray | None = None) -> Any:
        """The mean over items; with weights [rows, E], one mean for each row."""
        if weights is None:
            return self.totals.sum(axis=0) / self.counts.sum()
        return ((weights @ self.totals).T / (weights @ self.counts)).T


def sum_by_example(values: Tensor, examples: Tensor | None, cells: Tensor | None = None, bins: int = 1) -> ExampleSums:
    """Values of items, [N] or [N, d], summed; with `cells`, the bin of each item, [N], each bin apart: [E, bins]."""
    values = values.double().cpu()
    rows = torch.arange(len(values)) if examples is None else examples.cpu()
    counts = torch.bincount(rows)
    places = rows if cells is None else rows * bins + cells.cpu()
    totals = values.new_zeros(len(counts) * bins, *values.shape[1:]).index_add_(0, places, values)
    return ExampleSums((totals if cells is None else totals.view(-1, bins)).numpy(), counts.double().numpy())


def resample(scores: Mapping[str, Weighted], examples: int, seed: int) -> dict[str, np.ndarray]:
    """Every score, [resamples], of the same bootstrap resamples of the examples."""
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
