"""Paired comparisons of predictors on the same items: differences, intervals and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from peppermill import metrics
from peppermill.data import Batches
from peppermill.evaluation.scores import (
    CHUNK,
    ByScore,
    bootstrap,
    check_level,
    column_of,
    item_scores,
    number,
    p_text,
    predictions_of,
    signed,
)
from peppermill.metrics import SCORES
from peppermill.plumbing.display import Table, shows_table
from peppermill.types import Data, LikelihoodLike

PERMUTATIONS = 9999


@dataclass(frozen=True)
class Difference:
    """second - first on the same items: for scores where lower is better, below zero if the second is better.

    `p_value` is that of `test`, corrected if several methods were compared; only scores that are means over items have
    a `permutation_p_value`. `before` is the score of the first.
    """

    value: float
    lower: float
    upper: float
    p_value: float
    test: str
    permutation_p_value: float | None
    before: float


@shows_table
@dataclass(frozen=True)
class Comparison(ByScore[Difference]):
    """The scores of `metrics.SCORES` as attributes, each the paired difference of two predictors."""

    differences: Mapping[str, Difference]
    items: int
    bins: int
    level: float

    def __str__(self) -> str:
        d, nll = self.differences["nll"], partial(number, "nll")
        if not d.value:
            return f"NLL {nll(d.before)} for both"
        way, lower, upper = ("better", -d.upper, -d.lower) if d.value < 0 else ("worse", d.lower, d.upper)
        scores = f"NLL {nll(d.before)} -> {nll(d.before + d.value)}, {way} by {nll(abs(d.value))}"
        chance = "" if d.p_value < 1 - self.level else ", could be chance"
        return f"{scores} [{nll(lower)}, {nll(upper)}], {p_text(d.p_value)}{chance}"

    def table(self) -> Table:
        """Each score: before and after, the difference with its interval, and the test."""
        rows = []
        for name, d in self.differences.items():
            scores = number(name, d.before), number(name, d.before + d.value)
            change = f"{signed(name, d.value)} [{signed(name, d.lower)}, {signed(name, d.upper)}]"
            rows.append((column_of(name, self.bins), *scores, change, f"{p_text(d.p_value)} ({d.test})"))
        columns = ("score", "first", "second", f"difference, {100 * self.level:g} % interval", "test")
        return Table(columns, rows, f"{self.items:,} items, paired")


def compare(
    first: Any,
    second: Any,
    data: Data | Batches | None = None,
    *,
    bins: int = metrics.BINS,
    level: float = 0.95,
    seed: int = 0,
    likelihood: LikelihoodLike | None = None,
) -> Comparison:
    """Is the `second` predictor better than the `first`? Paired differences, intervals and p-values on the same items.

    NLL and Brier: interval and p-value of the paired t test, and a sign-flip permutation test; ECE: both from the
    bootstrap; error: interval from the bootstrap, p-value of the exact McNemar test. All are over
    examples: where these have several items (pixels, tokens, labels), the error has the paired t test too. A network
    without a likelihood of its own is read by that of the other predictor.
    """
    check_level(level)
    one, other = predictions_of(first, data, likelihood, second), predictions_of(second, data, likelihood, first)
    if not torch.equal(one.labels.cpu(), other.labels.cpu()):
        raise ValueError(
            "the two predictors were not given the same items in the same order, so their scores cannot be paired."
        )
    examples = one.examples if one.examples is not None else other.examples
    firsts, seconds = (item_scores(replace(found, examples=examples), bins) for found in (one, other))

    def difference(name: str, weights: np.ndarray | None) -> Any:
        return seconds[name].value(weights) - firsts[name].value(weights)

    differences, counts = {}, firsts["nll"].counts
    resampled = bootstrap({name: partial(difference, name) for name in firsts}, len(counts), level, seed)
    for name, numbers in resampled.items():
        found = Difference(*numbers, "bootstrap", None, float(firsts[name].value()))
        changes = seconds[name].totals - firsts[name].totals
        if not SCORES[name].combine:  # a mean over items has better tests
            found = _tested(found, SCORES[name].binary, changes, counts, level, seed)
        differences[name] = found
    return Comparison(differences, len(one.labels), bins, level)


def compare_all(
    first: Any, others: Mapping[str, Any], data: Data | Batches | None = None, **options: Any
) -> dict[str, Comparison]:
    """Each of the `others` against the `first`, with the `options` of `compare`; p-values corrected (Holm) by score."""
    one = predictions_of(first, data, options.get("likelihood"), *others.values())
    found = {name: compare(one, other, data, **options) for name, other in others.items()}
    for score in next(iter(found.values())).differences if found else ():
        corrected = holm([comparison.differences[score].p_value for comparison in found.values()])
        for (name, comparison), p_value in zip(list(found.items()), corrected, strict=True):
            changed = {score: replace(comparison.differences[score], p_value=p_value)}
            found[name] = replace(comparison, differences={**comparison.differences, **changed})
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for several tests (Holm, 1979): the chance of any false alarm stays at the level."""
    order = np.argsort(p_values)
    scaled = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(p) for p in corrected]


def _tested(
    found: Difference, binary: bool, changes: np.ndarray, counts: np.ndarray, level: float, seed: int
) -> Difference:
    """The difference with a test of the changes of the examples, [E], which have this many items, [E]."""
    from scipy import stats  # slow to import, so not at the top

    if binary and counts.max() == 1:  # the exact test on the items that only one of the two gets right
        only_first, only_one = int((changes > 0).sum()), int((changes != 0).sum())
        p_value = float(stats.binomtest(only_first, only_one).pvalue) if only_one else 1.0
        return replace(found, p_value=p_value, test="McNemar")
    if len(changes) < 2 or not changes.any():
        return replace(found, p_value=1.0, test="paired t", permutation_p_value=1.0)
    changes = changes / counts.mean()
    # The sign-flip test: without an effect, both signs of a difference are equally likely. scipy's `permutation_test`
    # with `permutation_type="samples"` draws the same signs, at five times the cost.
    generator = np.random.default_rng(seed)
    flipped = stats.monte_carlo_test(
        changes,
        lambda size: changes * (2 * generator.integers(2, size=size, dtype=np.int8) - 1),
        lambda x, axis: x.mean(axis=axis),
        vectorized=True,
        n_resamples=PERMUTATIONS,
        batch=max(1, CHUNK // len(changes)),
    )
    paired = stats.ttest_1samp(changes, 0.0)
    lower, upper = map(float, paired.confidence_interval(level))
    p_values = {"p_value": float(paired.pvalue), "permutation_p_value": float(flipped.pvalue)}
    return replace(found, lower=lower, upper=upper, test="paired t", **p_values)
