"""Every score of one predictor as a function of item weights: what a bootstrap over items needs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from peppermill import metrics
from peppermill.predictions import Predictions

RESAMPLES = 2000
CHUNK = 2**24  # numbers drawn at once


@dataclass(frozen=True)
class Score:
    """A score of weighted items (of all, once, where no weights are given), and each item's share where it is a plain
    mean."""

    value: Callable[[np.ndarray | None], Any]
    items: np.ndarray | None = None
    binary: bool = False
    signed: bool = False  # whether it may be negative, as the NLL of a density may


def scores_of(predictions: Predictions, bins: int) -> dict[str, Score]:
    """nll, brier, ece and error of a classifier; nll and rmse of a regression."""
    log_probs, labels = predictions.log_probs, predictions.labels
    nll = _mean(-predictions.log_likelihoods)
    if predictions.likelihood.name == "gaussian":
        return {"nll": replace(nll, signed=True), "rmse": _root_mean((labels - log_probs[:, 0]).square())}
    return {
        "nll": nll,
        "brier": _mean(metrics.item_brier(log_probs, labels)),
        "ece": _ece(log_probs, labels, bins),
        "error": _mean(metrics.item_errors(log_probs, labels), binary=True),
    }


class Resampler:
    """The same bootstrap resamples for every score: how often each item was drawn, [resamples, N]."""

    def __init__(self, items: int, seed: int) -> None:
        self.items, self.seed = items, seed

    def __call__(self, score: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The score of each resample, [resamples]."""
        generator = np.random.default_rng(self.seed)
        rows = max(1, CHUNK // self.items)
        parts = [score(self._draw(generator, min(rows, RESAMPLES - k))) for k in range(0, RESAMPLES, rows)]
        return np.concatenate(parts)

    def _draw(self, generator: np.random.Generator, rows: int) -> np.ndarray:
        drawn = generator.integers(self.items, size=(rows, self.items)) + self.items * np.arange(rows)[:, None]
        return np.bincount(drawn.ravel(), minlength=rows * self.items).reshape(rows, self.items).astype(np.float64)


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


def _mean(values: Tensor, binary: bool = False) -> Score:
    items = values.double().cpu().numpy()
    return Score(lambda weights: items.mean() if weights is None else weights @ items / len(items), items, binary)


def _root_mean(squares: Tensor) -> Score:
    mean = _mean(squares)
    return Score(lambda weights: np.sqrt(mean.value(weights)))


def _ece(log_probs: Tensor, labels: Tensor, bins: int) -> Score:
    """ECE = sum over bins of |sum over their items of (confidence - correct)| / N."""
    confidence, correct = metrics.top_label(log_probs, labels)
    index = metrics.bin_index(confidence, metrics.equal_width_edges(bins, confidence.device))
    gaps = np.zeros((len(labels), bins))
    gaps[np.arange(len(labels)), index.cpu().numpy()] = (confidence - correct.double()).cpu().numpy()
    return Score(lambda weights: np.abs(gaps.sum(0) if weights is None else weights @ gaps).sum(-1) / len(labels))
