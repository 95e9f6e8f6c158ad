"""Every score of one predictor, each with a bootstrap interval over examples.

An example is what was drawn independently: an image, not its pixels, which are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from scipy.special import ndtri, stdtrit
from torch import Tensor

from peppermill import metrics
from peppermill.data import Batches
from peppermill.metrics import SCORES, Score
from peppermill.plumbing.display import Table, shows_table
from peppermill.predictions import Predictions, likelihood_of, predict
from peppermill.types import Data, LikelihoodLike

RESAMPLES = 2000
CHUNK = 2**24  # numbers drawn at once
ROUNDING = 1e-12  # terms above minus this are not negative

Value = TypeVar("Value")


@dataclass(frozen=True)
class Estimate:
    """A score and its interval."""

    value: float
    lower: float
    upper: float


class ByScore(Generic[Value]):
    """A result that holds a mapping by the names of the scores, each an attribute; type checkers know the names."""

    nll: Value
    brier: Value
    ece: Value
    error: Value
    aurc: Value
    rmse: Value

    def by_name(self) -> Mapping[str, Value]:
        """The mapping, or nothing while the result is being copied."""
        return next((part for part in vars(self).values() if isinstance(part, Mapping)), {})

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.by_name()]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Value:
            known = self.by_name()
            if name not in known:
                raise AttributeError(f"there is no score `{name}` here, only {', '.join(known)}")
            return known[name]


@shows_table
@dataclass(frozen=True)
class Scores(ByScore[Estimate]):
    """The scores of `metrics.SCORES` as attributes, each with its interval.

    nll, brier, ece and error of a classifier; nll and rmse of a regression.
    """

    estimates: Mapping[str, Estimate]
    items: int
    bins: int
    level: float
    examples: int

    def table(self) -> Table:
        """Each score with its interval."""
        rows = [
            (column_of(name, self.bins), number(name, e.value), f"[{number(name, e.lower)}, {number(name, e.upper)}]")
            for name, e in self.estimates.items()
        ]
        within = f" in {self.examples:,} examples" if self.examples < self.items else ""
        return Table(("score", "value", f"{100 * self.level:g} % interval"), rows, f"{self.items:,} items{within}")


def evaluate(
    predictor: Any,
    data: Data | Batches | None = None,
    *,
    bins: int = metrics.BINS,
    level: float = 0.95,
    seed: int = 0,
    likelihood: LikelihoodLike | None = None,
) -> Scores:
    """The scores of a predictor on labelled data, each with a bootstrap interval over examples.

    Pass the result of `predict(predictor, data)` as the predictor, without data, to save the forward passes.
    """
    check_level(level)
    predictions = predictions_of(predictor, data, likelihood)
    scores = item_scores(predictions, bins)
    return Scores(estimate(scores, level, seed), len(predictions.labels), bins, level, len(scores["nll"].counts))


def item_scores(predictions: Predictions, bins: int) -> dict[str, ExampleSums]:
    """The terms of every row of `metrics.SCORES` that is for this likelihood, summed over the items of each example."""
    task = "regression" if predictions.likelihood.name == "gaussian" else "classification"
    found = {}
    for name, row in SCORES.items():
        if task in row.tasks:
            cells = row.cells(predictions, bins) if row.cells else None
            found[name] = sum_by_example(row.terms(predictions, bins), predictions.examples, cells, bins, row.combine)
    return found


@dataclass(frozen=True)
class ExampleSums:
    """The terms of a score, summed over the items of each of E examples, [E] or [E, bins], and their number, [E].

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


def sum_by_example(
    terms: Tensor,
    examples: Tensor | None,
    cells: Tensor | None = None,
    bins: int = 1,
    combine: Callable[[np.ndarray], np.ndarray] | None = None,
) -> ExampleSums:
    """Terms of items, [N], summed; with `cells`, the bin of each item, [N], each bin apart."""
    rows = np.arange(len(terms)) if examples is None else examples.cpu().numpy()
    counts, values = np.bincount(rows).astype(np.float64), terms.double().cpu().numpy()
    if cells is None:
        return ExampleSums(np.bincount(rows, values), counts, combine)
    totals = np.bincount(rows * bins + cells.cpu().numpy(), values, minlength=len(counts) * bins)
    return ExampleSums(totals.reshape(-1, bins), counts, combine)


def estimate(scores: Mapping[str, ExampleSums], level: float, seed: int) -> dict[str, Estimate]:
    """Every score with its interval, from the same resamples of the examples."""
    examples = len(next(iter(scores.values())).counts)
    found = {}
    resampled = bootstrap({name: score.value for name, score in scores.items()}, examples, level, seed)
    for name, (value, lower, upper, _) in resampled.items():
        if scores[name].combine or scores[name].totals.min() > -ROUNDING:  # centering may move a bound below 0
            lower, upper = max(0.0, lower), max(0.0, upper)
        found[name] = Estimate(value, lower, upper)
    return found


def bootstrap(
    scores: Mapping[str, Callable[[np.ndarray | None], Any]], examples: int, level: float, seed: int
) -> dict[str, tuple[float, float, float, float]]:
    """Every score, both ends of its interval and its p-value against 0, from the same resamples of the examples.

    A score is a function of weights [rows, E], how often each example counts, or of None, which counts all once. The
    resampled scores are moved so that their mean is the score itself: the ECE of a resample exceeds that of the sample,
    as that of the sample exceeds the truth, because both count noise as miscalibration. The interval is their central
    part, widened as Student's t is wider than the normal distribution; and resamples of n examples spread by
    sqrt((n - 1) / n) too little. The p-value is twice the smaller share beyond 0, and at least 2 / (resamples + 1).
    """
    generator, step = np.random.default_rng(seed), max(1, CHUNK // examples)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in scores}
    for done in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - done)
        drawn = generator.integers(examples, size=(rows, examples)) + examples * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples)
        weights = counts.astype(np.float64)
        for name, score in scores.items():
            parts[name].append(score(weights))
    tail, found = (1 + level) / 2, {}
    for name, score in scores.items():
        value, resampled = float(score(None)), np.concatenate(parts[name])
        centered = resampled - (resampled.mean() - value)
        share = min((centered <= 0).mean(), (centered >= 0).mean())
        lower, upper = -math.inf, math.inf
        if examples > 1:
            width = math.sqrt(examples / (examples - 1)) * stdtrit(examples - 1, tail) / ndtri(tail)
            lower, upper = value + width * (np.quantile(centered, [1 - tail, tail]) - value)
        p_value = min(1.0, max(2 * share, 2 / (RESAMPLES + 1)))
        found[name] = (value, float(lower), float(upper), float(p_value))
    return found


def check_level(level: float) -> None:
    """Raise if the level of an interval is not a fraction."""
    if not 0 < level < 1:
        raise ValueError(f"`level={level}` must lie between 0 and 1: 0.95 gives 95 % intervals.")


def predictions_of(
    predictor: Any, data: Data | Batches | None, likelihood: LikelihoodLike | None, *others: Any
) -> Predictions:
    """Predictions themselves, or those of a predictor on the data; the likelihood may be that of the others."""
    if isinstance(predictor, Predictions):
        return predictor
    if data is None:
        raise TypeError("`data` is missing: give labelled data, or the result of `predict(predictor, data)`.")
    return predict(predictor, data, likelihood=likelihood_of(predictor, likelihood, *others))


def row_of(name: str) -> Score:
    """The row of a score in `metrics.SCORES`; a score that this version does not know is shown by its own name."""
    return SCORES.get(name) or replace(SCORES["nll"], name=name, title=name, words=name)


def column_of(name: str, bins: int) -> str:
    """The heading of a column of this score."""
    row = row_of(name)
    return row.title + (" %" if row.percent else "") + (f" ({bins} bins)" if row.cells else "")


def number(name: str, value: float | None) -> str:
    """A value of the score `name` with its decimals, a percentage without its sign; an unknown one is a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    row = row_of(name)
    return f"{100 * value:.{row.decimals - 2}f}" if row.percent else f"{value:.{row.decimals}f}"


def with_unit(name: str, value: float | None) -> str:
    """A value of the score `name`, with a percent sign after a space that does not break the line."""
    return number(name, value) + ("\u00a0%" if row_of(name).percent else "")


def signed(name: str, value: float | None) -> str:
    """A difference of the score `name`, its sign always shown."""
    text = number(name, value and abs(value))
    return text if text == "–" else f"{'−' if value and round(value, row_of(name).decimals) < 0 else '+'}{text}"


def p_text(p_value: float) -> str:
    """A p-value as people write it."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"
