"""How sure the members are of each item: entropy, mutual information and disagreement, from one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from peppermill.types import Likelihood

#: A calibrator: normalised log-probabilities, classes last, to normalised ones.
Calibrate: TypeAlias = Callable[[Tensor], Tensor]

LARGEST_SURPRISE = 1e4  # in nats: exp(-1e4) is 0 in every floating-point type

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
        values = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"there is no uncertainty `{name}` here, only {', '.join(values)}")
        found: Tensor = values[name]
        return found


class Tally:
    """What is added up member by member: the mean prediction and, if asked for, one more array [..., K] and counts."""

    def __init__(self, likelihood: Likelihood, uncertainty: bool = True) -> None:
        self.likelihood, self.uncertainty, self.count = likelihood, uncertainty, 0
        self.total: Tensor | None = None
        self.own: Tensor | None = None  # entropies or variances
        self.squares, self.votes = torch.zeros(()), torch.zeros(())

    def add(self, predictions: Tensor) -> None:
        """Add one member: its prediction, entropy or variance, squared probabilities and the class that it predicts."""
        self.count += 1
        self.total = self.likelihood.accumulate(self.total, predictions)
        if not self.uncertainty:
            return
        classes = self.likelihood.name != "gaussian"
        probabilities = predictions.exp()
        own = entropy_of(predictions, probabilities) if classes else probabilities[..., 1]
        self.own = own if self.own is None else self.own.add_(own)
        if classes:
            squares, predicted = probabilities.square(), predictions.argmax(dim=-1, keepdim=True)
            self.squares = squares if self.count == 1 else self.squares.add_(squares)
            self.votes = torch.zeros_like(squares, dtype=torch.int16) if self.count == 1 else self.votes
            self.votes.scatter_add_(-1, predicted, torch.ones_like(predicted, dtype=torch.int16))

    def average(self) -> Tensor:
        """The ensemble's prediction, eq. 9."""
        assert self.total is not None
        return self.likelihood.average(self.total, self.count)

    def values(self, averaged: Tensor, calibrator: Calibrate) -> Tensor:
        """The uncertainties of each item in the order of their names, [..., names], from the mean prediction."""
        assert self.own is not None
        total, expected = uncertainty_of(averaged, self.likelihood), self.own / self.count
        parts = [total, expected, (total - expected).clamp(min=0)]
        if self.likelihood.name != "gaussian":
            log_confidence, predicted = calibrator(averaged).max(dim=-1, keepdim=True)
            mean, squares, votes = (x.gather(-1, predicted) for x in (averaged.exp(), self.squares, self.votes))
            variance = squares / self.count - mean.square() if self.count > 1 else torch.zeros_like(mean)
            more = (log_confidence.exp().clamp(max=1), 1 - votes / self.count, variance.clamp(min=0).sqrt())
            confidence, disagreement, deviation = (column.squeeze(-1).to(total) for column in more)
            parts = [confidence, *parts, disagreement, deviation]
        return torch.stack(parts, dim=-1)


def named(values: Tensor, likelihood: Likelihood, outputs: Tensor | None = None) -> Uncertainty:
    """The values [..., names] of a `Tally` by their names."""
    names = VARIANCES if likelihood.name == "gaussian" else CLASS_UNCERTAINTIES
    return Uncertainty(dict(zip(names, values.unbind(dim=-1), strict=True)), outputs)


def without_members(predictions: Tensor, likelihood: Likelihood, outputs: Tensor | None = None) -> Uncertainty:
    """What one distribution says about its own uncertainty: `confidence` and `entropy`, or `variance`."""
    total = uncertainty_of(predictions, likelihood)
    if likelihood.name == "gaussian":
        return Uncertainty({"variance": total}, outputs)
    return Uncertainty({"confidence": predictions.amax(dim=-1).exp().clamp(max=1), "entropy": total}, outputs)


def wide(predictions: Tensor) -> Tensor:
    """Predictions in the type in which members are added up: float64 wherever a device has it."""
    return predictions.to(torch.float32 if predictions.device.type == "mps" else torch.float64)


def uncertainty_of(predictions: Tensor, likelihood: Likelihood) -> Tensor:
    """The variance of each prediction of a regression, the entropy of any other."""
    if likelihood.name == "gaussian":
        return predictions[..., 1].exp()
    return entropy_of(predictions, predictions.exp())


def entropy_of(log_probs: Tensor, probabilities: Tensor) -> Tensor:
    """-sum p ln p over the last dimension, without another logarithm; the limit of ln p makes 0 ln 0 zero."""
    return (probabilities * (-log_probs).clamp(max=LARGEST_SURPRISE)).sum(dim=-1)
