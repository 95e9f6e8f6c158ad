"""What is fitted on averaged log-probabilities, after the members: one row for each method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from peppermill.calibrators.temperature import Temperature as Temperature
from peppermill.calibrators.temperature import warn_at_limit
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Likelihood, Tick

UNCALIBRATED = Temperature(1.0)


class Calibrator(Protocol):
    """A fitted map of normalised log-probabilities, classes in the last dimension, to better ones."""

    @property
    def name(self) -> str: ...

    @property
    def temperature(self) -> float: ...

    def __call__(self, log_probs: Tensor) -> Tensor: ...

    def arrays(self) -> dict[str, Tensor]:
        """Its arrays, in float32."""


@dataclass(frozen=True)
class CalibratorRow:
    """One method: its name, a line of help, the function that fits it, and what it is for."""

    name: str
    help: str
    place: str  # module:function, imported when the calibrator is fitted
    numbers: Callable[[int], int]  # how many are fitted, by the number of classes
    likelihoods: tuple[str, ...] = ("categorical", "bernoulli")
    most_classes: float = math.inf

    def fit(self, log_probs: Tensor, labels: Tensor, examples: Tensor | None = None) -> Calibrator:
        """Fit it on log-probabilities [N, K], labels [N] and the numbers of the items' examples [N], with one thread.

        Between the small steps of torch and scipy, several threads would wait for each other fifteen times as long.
        """
        module, _, name = self.place.partition(":")
        function = getattr(import_module(f"peppermill.calibrators.{module}"), name)
        examples = torch.arange(len(labels)) if examples is None else examples
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found: Calibrator = function(log_probs, labels, examples)
        finally:
            torch.set_num_threads(threads)
        return found


#: The calibrators by name. A new one is one file and one row.
CALIBRATORS = {
    row.name: row
    for row in (
        CalibratorRow("temperature", "one T for all classes", "temperature:temperature_scaling", lambda k: 1),
        CalibratorRow(
            "vector", "T, and a scale and a bias for each class", "linear_scaling:vector_scaling", lambda k: 2 * k
        ),
        CalibratorRow(
            "matrix",
            "T, and a row of scales and a bias for each class",
            "linear_scaling:matrix_scaling",
            lambda k: k * (k + 1),
            likelihoods=("categorical",),
            most_classes=100,
        ),
    )
}


def numbers_of(calibrator: Calibrator) -> dict[str, Any]:
    """Its JSON: the name and T; the rest are arrays."""
    return {"name": calibrator.name, "temperature": calibrator.temperature}


def calibrator_from(numbers: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Calibrator:
    """The calibrator with this JSON and these arrays."""
    name, temperature = numbers["name"], float(numbers["temperature"])
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}")
    if name == "temperature":
        return Temperature(temperature)
    from peppermill.calibrators.linear_scaling import LinearScaling  # which most ensembles do not need

    weight, bias = arrays["weight"], arrays["bias"]
    if list(weight.shape) != [len(bias)] * (2 if name == "matrix" else 1):
        raise ValueError(f"{name} scaling has arrays of shapes {list(weight.shape)} and {list(bias.shape)}")
    return LinearScaling(temperature, weight, bias)


def row_for(name: str, likelihood: Likelihood, classes: int = 2) -> CalibratorRow:
    """The row of this name, if it is for this likelihood and number of classes."""
    if name not in CALIBRATORS:
        raise ValueError(f"`calibrator={name!r}` is unknown: choose one of {', '.join(CALIBRATORS)}.")
    row = CALIBRATORS[name]
    if likelihood.name not in row.likelihoods:
        others = [other.name for other in CALIBRATORS.values() if likelihood.name in other.likelihoods]
        cure = f"choose one of {', '.join(others)}" if others else "leave it out"
        raise ValueError(f"`calibrator={name!r}` is not for the {likelihood.name} likelihood: {cure}.")
    if classes > row.most_classes:
        raise ValueError(
            f"`calibrator={name!r}` is for at most {row.most_classes} classes, and there are {classes:,}: use "
            '`calibrator="vector"`.'
        )
    return row


def fit_calibrator_on(
    name: str, log_probs: Tensor, labels: Tensor, likelihood: Likelihood, examples: Tensor | None = None
) -> Calibrator:
    """Fit a calibrator on log-probabilities [N, K] and labels [N]; without `examples`, every item is one."""
    found = row_for(name, likelihood, log_probs.shape[1]).fit(log_probs, labels, examples)
    warn_at_limit(found.temperature)
    if name != "temperature":
        then = f"for `calibrator={name!r}` their scale and bias are those of temperature scaling."
        warn_about_absent_classes(labels, log_probs.shape[1], then)
    return found


def warn_about_absent_classes(labels: Tensor, classes: int, then: str) -> None:
    """Say how many classes have no items, and what follows."""
    absent = int((labels.bincount(minlength=classes) == 0).sum())
    if absent:
        warn_user(f"{absent:,} of {classes:,} classes do not occur in the {len(labels):,} items: {then}")


def cross_fitted(
    name: str,
    log_probs: Tensor,
    labels: Tensor,
    likelihood: Likelihood,
    examples: Tensor,
    folds: int,
    tick: Tick = lambda items: None,
) -> Tensor:
    """ln p of each item's label, [N], by a calibrator that was fitted on the other folds.

    All items of an example are in one fold; `examples`, [N], are their numbers 0, 1, ...
    """
    row, count = row_for(name, likelihood, log_probs.shape[1]), int(examples.max()) + 1
    fold = torch.from_numpy(np.random.RandomState(0).permutation(count) % folds).to(labels.device)[examples]
    found = torch.zeros_like(log_probs[:, 0])
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        if bool(inside.all()):
            raise ValueError("all items are of one example, which leaves nothing to fit on: give more examples.")
        fitted = row.fit(log_probs[~inside], labels[~inside], examples[~inside])
        found[inside] = likelihood.log_likelihoods(fitted(log_probs[inside]), labels[inside])
        tick(1)
    return found
