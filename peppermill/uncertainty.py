"""How sure the members are of each item: entropy, mutual information and disagreement, from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from peppermill.likelihood import average_more, predict_members, wide
from peppermill.types import Likelihood

#: A calibrator: normalised log-probabilities, classes last, to normalised ones.
Calibrate: TypeAlias = Callable[[Tensor], Tensor]

LOWEST_LOG_PROB = -1e4  # exp(-1e4) is 0 in every floating-point type

#: What a classifier says about each item, by name.
CLASS_UNCERTAINTIES = {
    "confidence": "the probability of the predicted class, after the calibrator",
    "entropy": "of the members' mean: all uncertainty, in nats",
    "expected_entropy": "the mean entropy of the members: what the data leave open",
    "mutual_information": "entropy - expected_entropy: what the members do not agree on",
    "disagreement": "the fraction of members that predict another class",
    "deviation": "the standard deviation of the predicted class's probability over the members",
}

#: What a regression says about each item: the law of total variance.
VARIANCES = {
    "variance": "of the mixture of the members: all uncertainty",
    "expected_variance": "the mean variance of the members: what the data leave open",
    "variance_of_means": "variance - expected_variance: what the members do not agree on",
}


@dataclass(frozen=True)
class Uncertainty:
    """How uncertain each item is: the `CLASS_UNCERTAINTIES`, or the `VARIANCES` of a regression, as attributes.

    The calibrator acts on the members' mean and not on the members, so only `confidence`, and which class is the
    predicted one, depend on it. Entropies describe the members as they are: `entropy` is the sum of `expected_entropy`
    and `mutual_information`, and with a calibrator not the entropy of the calibrated prediction.

    `outputs` is what the ensemble itself gives for the inputs, from the same pass.
    """

    values: Mapping[str, Tensor]
    outputs: Tensor | None = None

    def __getattr__(self, name: str) -> Tensor:
        values: Mapping[str, Tensor] = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"there is no uncertainty `{name}` here, only {', '.join(values)}")
        return values[name]


class Tally:
    """What is added up while members run, beside their average: entropies or variances, squares [..., K] and votes."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood, self.count = likelihood, 0
        self.own = self.squares = self.votes = torch.zeros(())

    def add(self, predictions: Tensor) -> None:
        """Add some members, [m, ..., K]."""
        self.count += len(predictions)
        probabilities = predictions.exp()
        if self.likelihood.name == "gaussian":
            self.own = self.own + probabilities[..., 1].sum(dim=0)
            return
        self.own = self.own + entropy_of(predictions, probabilities).sum(dim=0)
        self.squares = self.squares + probabilities.square_().sum(dim=0)
        predicted = predictions.argmax(dim=-1).movedim(0, -1)  # [..., m]
        votes = self.votes if self.votes.ndim else torch.zeros_like(self.squares, dtype=torch.int16)
        self.votes = votes.scatter_add_(-1, predicted, torch.ones_like(predicted, dtype=torch.int16))

    def values(self, averaged: Tensor, calibrator: Calibrate) -> Tensor:
        """The uncertainties of each item, from the members' average too, in the order of their names, [..., names]."""
        total, expected = uncertainty_of(averaged, self.likelihood), self.own / self.count
        parts = [total, expected, (total - expected).clamp(min=0)]
        if self.likelihood.name != "gaussian":
            log_confidence, predicted = calibrator(averaged).max(dim=-1, keepdim=True)
            columns = (averaged.exp(), self.squares / self.count, self.votes / self.count)
            mean, squares, votes = (column.gather(-1, predicted) for column in columns)
            variance = (squares - mean.square()).clamp(min=0) if self.count > 1 else torch.zeros_like(mean)
            more = (log_confidence.exp().clamp(max=1), 1 - votes, variance.sqrt())
            confidence, disagreement, deviation = (column.squeeze(-1).to(total) for column in more)
            parts = [confidence, *parts, disagreement, deviation]
        return torch.stack(parts, dim=-1)


def member_uncertainty(likelihood: Likelihood, calibrator: Calibrate, outputs: Iterable[Tensor]) -> Uncertainty:
    """How sure members are, from their outputs for one batch, [m, ...], some members at a time."""
    tally, averaged = Tally(likelihood), torch.zeros(())
    for some in outputs:
        predictions = wide(predict_members(likelihood, some))
        averaged = average_more(likelihood, averaged if tally.count else None, tally.count, predictions)
        tally.add(predictions)
    return named(tally.values(averaged, calibrator), likelihood, likelihood.outputs(calibrator(averaged)))


def named(values: Tensor, likelihood: Likelihood, outputs: Tensor | None = None) -> Uncertainty:
    """The values [..., names] of a `Tally` by their names."""
    names = VARIANCES if likelihood.name == "gaussian" else CLASS_UNCERTAINTIES
    return Uncertainty(dict(zip(names, values.unbind(dim=-1), strict=True)), outputs)


def without_members(predictions: Tensor, likelihood: Likelihood) -> Uncertainty:
    """What one distribution says about its own uncertainty: `confidence` and `entropy`, or `variance`."""
    total = uncertainty_of(predictions, likelihood)
    if likelihood.name == "gaussian":
        return Uncertainty({"variance": total})
    return Uncertainty({"confidence": predictions.amax(dim=-1).exp().clamp(max=1), "entropy": total})


def uncertainty_of(predictions: Tensor, likelihood: Likelihood) -> Tensor:
    """The variance of each prediction of a regression, the entropy of any other."""
    if likelihood.name == "gaussian":
        return predictions[..., 1].exp()
    return entropy_of(predictions, predictions.exp())


def entropy_of(log_probs: Tensor, probabilities: Tensor) -> Tensor:
    """-sum p ln p over the last dimension, without another logarithm; the limit of ln p makes 0 ln 0 zero."""
    return -(probabilities * log_probs.clamp(min=LOWEST_LOG_PROB)).sum(dim=-1)
