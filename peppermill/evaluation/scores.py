"""Every score of one predictor, each with a bootstrap interval over items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from peppermill import metrics
from peppermill.data import Batches
from peppermill.evaluation.bootstrap import interval, resample, weighted_mean
from peppermill.metrics import SCORES, Score
from peppermill.predictions import Predictions, predict
from peppermill.types import Data, Likelihood

ROUNDING = 1e-12  # scores above minus this are not negative


@dataclass(frozen=True)
class Estimate:
    """A score and its interval."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Scores:
    """The scores of `metrics.SCORES` as attributes, each with its interval.

    nll, brier, ece and error of a classifier; nll and rmse of a regression.
    """

    estimates: Mapping[str, Estimate]
    items: int
    bins: int
    level: float

    def __getattr__(self, name: str) -> Estimate:
        return score_named(name, self.__dict__.get("estimates", {}))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ItemScore:
    """A row of `metrics.SCORES` and its terms, [N] or [N, d], for the items of one predictor."""

    row: Score
    terms: np.ndarray

    def value(self, weights: np.ndarray | None = None) -> Any:
        """The score of all items, or of each row of weights, [rows, N]."""
        means = weighted_mean(self.terms, weights)
        return self.row.combine(means) if self.row.combine else means


def evaluate(
    predictor: Any,
    data: Data | Batches | None = None,
    *,
    bins: int = metrics.BINS,
    level: float = 0.95,
    seed: int = 0,
    likelihood: str | Likelihood | None = None,
) -> Scores:
    """The scores of a predictor on labelled data, each with a bootstrap interval over items.

    The result of `predict(predictor, data)` may stand in place of the predictor; the data are then not needed.
    """
    check_level(level)
    predictions = predictions_of(predictor, data, likelihood)
    scores, items = item_scores(predictions, bins), len(predictions.labels)
    resampled = resample({name: score.value for name, score in scores.items()}, items, seed)
    estimates = {}
    for name, score in scores.items():
        value = float(score.value())
        bounds = interval(value, resampled[name], level)
        if resampled[name].min() > -ROUNDING:  # centering may move a bound below 0, where this score never is
            bounds = max(0.0, bounds[0]), max(0.0, bounds[1])
        estimates[name] = Estimate(value, *bounds)
    return Scores(estimates, items, bins, level)


def item_scores(predictions: Predictions, bins: int) -> dict[str, ItemScore]:
    """Every row of `metrics.SCORES` that is for this likelihood, with its terms."""
    task = "regression" if predictions.likelihood.name == "gaussian" else "classification"
    rows = {name: row for name, row in SCORES.items() if task in row.tasks}
    return {name: ItemScore(row, row.terms(predictions, bins).double().cpu().numpy()) for name, row in rows.items()}


def score_named(name: str, known: Mapping[str, Any]) -> Any:
    """What is known under the name of a score, as an attribute of a result."""
    if name not in known:
        raise AttributeError(f"there is no score `{name}` here, only {', '.join(known)}")
    return known[name]


def check_level(level: float) -> None:
    """Raise if the level of an interval is not a fraction."""
    if not 0 < level < 1:
        raise ValueError(f"`level={level}` must lie between 0 and 1: 0.95 gives 95 % intervals.")


def predictions_of(predictor: Any, data: Data | Batches | None, likelihood: str | Likelihood | None) -> Predictions:
    """Predictions themselves, or those of a predictor on the data."""
    if isinstance(predictor, Predictions):
        return predictor
    if data is None:
        raise TypeError("`data` is missing: give labelled data, or the result of `predict(predictor, data)`.")
    return predict(predictor, data, likelihood=likelihood)
