"""The bootstrap over items: resampled scores of weighted items, and the intervals that they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

RESAMPLES = 2000
CHUNK = 2**24  # numbers drawn at once

#: A score as a function of how often each item counts: weights [rows, N] give [rows]; None counts every item once.
Weighted: TypeAlias = Callable[[np.ndarray | None], Any]


def weighted_mean(values: np.ndarray, weights: np.ndarray | None) -> Any:
    """The mean of [N, ...] over items; with weights [rows, N] of whole resamples, one mean for each row."""
    return values.mean(axis=0) if weights is None else weights @ values / len(values)


def resample(scores: Mapping[str, Weighted], items: int, seed: int) -> dict[str, np.ndarray]:
    """Every score, [resamples], of the same bootstrap resamples of the items."""
    generator = np.random.default_rng(seed)
    step = max(1, CHUNK // items)
    found: dict[str, list[np.ndarray]] = {name: [] for name in scores}
    for done in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - done)
        drawn = generator.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items)
        weights = counts.astype(np.float64)  # how often each resample holds each item
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


def interval(value: float, resampled: np.ndarray, level: float) -> tuple[float, float]:
    """The central part of the centered resamples."""
    low, high = np.quantile(centered(value, resampled), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def p_value_of(value: float, resampled: np.ndarray) -> float:
    """Twice the smaller share of resampled differences beyond zero; n resamples show no less than 2 / (n + 1)."""
    draws = centered(value, resampled)
    tail = min((draws <= 0).mean(), (draws >= 0).mean())
    return float(min(1.0, max(2 * tail, 2 / (len(draws) + 1))))
