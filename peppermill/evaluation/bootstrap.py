"""Every score of one predictor as a function of item weights: what a bootstrap over items needs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from peppermill import metrics
from peppermill.predictions import Predictions

RESAMPLES = 2000
CHUNK = 2**24  # numbers drawn at once

#: A score of items that count so many times, [rows, N]; of all, once, where no weights are given.
Weighted: TypeAlias = Callable[[np.ndarray | None], Any]


@dataclass(frozen=True)
class Score:
    """A score of weighted items, and each item's share where it is a plain mean."""

    value: Weighted
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


def resample(scores: Mapping[str, Weighted], items: int, seed: int) -> dict[str, np.ndarray]:
    """Every score, [resamples], of the same bootstrap resamples of the items."""
    generator = np.random.default_rng(seed)
    rows = max(1, CHUNK // items)
    found: dict[str, list[np.ndarray]] = {name: [] for name in scores}
    for done in range(0, RESAMPLES, rows):
        weights = _draw(generator, items, min(rows, RESAMPLES - done))
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


def _draw(generator: np.random.Generator, items: int, rows: int) -> np.ndarray:
    """How often each resample holds each item, [rows, N]."""
    drawn = generator.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)


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
