"""Scores with intervals, and paired comparisons of predictors on the same items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats

from peppermill import metrics
from peppermill.data import Batches
from peppermill.evaluation.bootstrap import CHUNK, Score, Weighted, centered, interval, resample, scores_of
from peppermill.predictions import Predictions, predict
from peppermill.types import Data, Likelihood

PERMUTATIONS = 9999


@dataclass(frozen=True)
class Estimate:
    """A score and its interval."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Difference:
    """second - first on the same items: below zero where the second is better.

    `p_value` is that of `test`, corrected where several methods were compared; `permutation_p_value` is there for
    scores that are means over items.
    """

    value: float
    lower: float
    upper: float
    p_value: float
    test: str
    permutation_p_value: float | None = None


@dataclass(frozen=True)
class Scores:
    """nll, brier, ece and error of a classifier, or nll and rmse of a regression, as attributes.

    Each with its interval.
    """

    estimates: Mapping[str, Estimate]
    items: int
    bins: int
    level: float

    def __getattr__(self, name: str) -> Estimate:
        return _score_named(name, self.__dict__.get("estimates", {}))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Comparison:
    """nll, brier, ece and error (or nll and rmse) as attributes, each the paired difference of two predictors."""

    differences: Mapping[str, Difference]
    items: int
    bins: int
    level: float

    def __getattr__(self, name: str) -> Difference:
        return _score_named(name, self.__dict__.get("differences", {}))  # type: ignore[no-any-return]


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

    What `predict(predictor, data)` returned may stand in place of the predictor; the data are then not needed.
    """
    _check_level(level)
    predictions = _predictions(predictor, data, likelihood)
    scores, items = scores_of(predictions, bins), len(predictions.labels)
    resampled = resample({name: score.value for name, score in scores.items()}, items, seed)
    estimates = {name: _estimate(score, resampled[name], level) for name, score in scores.items()}
    return Scores(estimates, items, bins, level)


def compare(
    first: Any,
    second: Any,
    data: Data | Batches | None = None,
    *,
    bins: int = metrics.BINS,
    level: float = 0.95,
    seed: int = 0,
    likelihood: str | Likelihood | None = None,
) -> Comparison:
    """Is the second predictor better than the first? Paired differences, intervals and p-values on the same items.

    NLL and Brier: paired t test and sign-flip permutation test; error: exact McNemar test; ECE: bootstrap over items.
    """
    _check_level(level)
    one, other = _predictions(first, data, likelihood), _predictions(second, data, likelihood)
    if not torch.equal(one.labels.cpu(), other.labels.cpu()):
        raise ValueError(
            "the two predictors were not given the same items in the same order, so their scores cannot be paired."
        )
    firsts, seconds, items = scores_of(one, bins), scores_of(other, bins), len(one.labels)
    resampled = resample({name: _minus(seconds[name], firsts[name]) for name in firsts}, items, seed)
    differences = {name: _difference(firsts[name], seconds[name], resampled[name], level, seed) for name in firsts}
    return Comparison(differences, items, bins, level)


def compare_all(
    first: Any, others: Mapping[str, Any], data: Data | Batches | None = None, **options: Any
) -> dict[str, Comparison]:
    """Each of several predictors against the first; p-values corrected, score by score, for their number (Holm)."""
    one = _predictions(first, data, options.get("likelihood"))
    found = {name: compare(one, other, data, **options) for name, other in others.items()}
    for score in next(iter(found.values())).differences if found else ():
        corrected = holm([comparison.differences[score].p_value for comparison in found.values()])
        for (name, comparison), p_value in zip(list(found.items()), corrected, strict=True):
            changed = {score: replace(comparison.differences[score], p_value=p_value)}
            found[name] = replace(comparison, differences={**comparison.differences, **changed})
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for testing several methods at once (Holm, 1979).

    The chance of any false alarm stays at the level.
    """
    order = np.argsort(p_values)
    scaled = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(p) for p in corrected]


def _score_named(name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise AttributeError(f"there is no score `{name}` here, only {', '.join(known)}")
    return known[name]


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"`level={level}` must lie between 0 and 1: 0.95 gives 95 % intervals.")


def _predictions(predictor: Any, data: Data | Batches | None, likelihood: str | Likelihood | None) -> Predictions:
    if isinstance(predictor, Predictions):
        return predictor
    if data is None:
        raise TypeError("`data` is missing: give labelled data, or the result of `predict(predictor, data)`.")
    return predict(predictor, data, likelihood=likelihood)


def _minus(second: Score, first: Score) -> Weighted:
    return lambda weights: second.value(weights) - first.value(weights)


def _estimate(score: Score, resampled: np.ndarray, level: float) -> Estimate:
    value = float(score.value(None))
    lower, upper = interval(value, resampled, level)
    return Estimate(value, lower if score.signed else max(0.0, lower), upper if score.signed else max(0.0, upper))


def _difference(first: Score, second: Score, resampled: np.ndarray, level: float, seed: int) -> Difference:
    value = float(second.value(None) - first.value(None))
    bounds = interval(value, resampled, level)
    if first.items is None or second.items is None:
        return Difference(value, *bounds, _bootstrap_p_value(value, resampled), "bootstrap")
    if first.binary:
        return Difference(value, *bounds, _mcnemar(first.items, second.items), "McNemar")
    p_value, permutation = _paired_tests(second.items - first.items, seed)
    return Difference(value, *bounds, p_value, "paired t", permutation)


def _bootstrap_p_value(value: float, resampled: np.ndarray) -> float:
    """Twice the smaller share of resampled differences beyond zero, and never below what so many can show."""
    draws = centered(value, resampled)
    tail = min((draws <= 0).mean(), (draws >= 0).mean())
    return float(min(1.0, max(2 * tail, 2 / (len(draws) + 1))))


def _mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """The exact test on the items that only one of the two gets right."""
    only_first, only_second = int((first < second).sum()), int((first > second).sum())
    return float(stats.binomtest(only_first, only_first + only_second).pvalue) if only_first + only_second else 1.0


def _paired_tests(differences: np.ndarray, seed: int) -> tuple[float, float]:
    """The p-values of the t test and of the test that flips signs: under the null, either sign is as likely."""
    if len(differences) < 2 or not differences.any():
        return 1.0, 1.0
    generator = np.random.default_rng(seed)
    # scipy's `permutation_test` with `permutation_type="samples"` draws the same signs, at five times the cost.
    permuted = stats.monte_carlo_test(
        differences,
        lambda size: differences * (2 * generator.integers(2, size=size, dtype=np.int8) - 1),
        lambda x, axis: x.mean(axis=axis),
        vectorized=True,
        n_resamples=PERMUTATIONS,
        batch=max(1, CHUNK // len(differences)),
    )
    return float(stats.ttest_1samp(differences, 0.0).pvalue), float(permuted.pvalue)
