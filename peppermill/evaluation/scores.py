"""Every score of one predictor, each with a bootstrap interval over examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from peppermill import metrics
from peppermill.data import Batches
from peppermill.evaluation.bootstrap import Estimate, ExampleSums, estimate, sum_by_example
from peppermill.metrics import SCORES, Score
from peppermill.plumbing.display import Table, shows_table
from peppermill.predictions import Predictions, likelihood_of, predict
from peppermill.types import Data, LikelihoodLike

Value = TypeVar("Value")


class ByScore(Generic[Value]):
    """A result that holds a mapping by the names of the scores, each an attribute; type checkers know the names."""

    nll: Value
    brier: Value
    ece: Value
    error: Value
    aurc: Value
    rmse: Value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_mapping(self)]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Value:
            known = _mapping(self)
            if name not in known:
                raise AttributeError(f"there is no score `{name}` here, only {', '.join(known)}")
            return known[name]


def _mapping(result: Any) -> Mapping[str, Any]:
    """The scores of a result, or nothing while it is being copied."""
    return next((part for part in vars(result).values() if isinstance(part, Mapping)), {})


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
    examples = len(scores["nll"].counts)
    return Scores(estimate(scores, level, seed), len(predictions.labels), bins, level, examples)


def item_scores(predictions: Predictions, bins: int) -> dict[str, ExampleSums]:
    """The terms of every row of `metrics.SCORES` that is for this likelihood, summed over the items of each example."""
    task = "regression" if predictions.likelihood.name == "gaussian" else "classification"
    found = {}
    for name, row in SCORES.items():
        if task in row.tasks:
            cells, width = (row.cells(predictions, bins), bins) if row.cells else (None, 1)
            sums = sum_by_example(row.terms(predictions, bins), predictions.examples, cells, width)
            found[name] = replace(sums, combine=row.combine)
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
    return row.title + (" %" if row.percent else "") + (f" ({bins} bins)" if row.binned else "")


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
    return number(name, value) if value is None else f"{'+' if value >= 0 else '−'}{number(name, abs(value))}"


def p_text(p_value: float) -> str:
    """A p-value as people write it."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"
