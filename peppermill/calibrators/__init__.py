"""What is fitted on averaged log-probabilities, after the members: one row for each method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from peppermill.calibrators.temperature import best_temperature


@dataclass(frozen=True)
class Calibrator:
    """One method: its name, a line of help, and the function that fits it.

    `fit(log_probs, labels, weights)` returns what was fitted and the log-likelihood under it.
    """

    name: str
    help: str
    fit: Callable[[Tensor, Tensor, Tensor | None], tuple[float, float]]


#: The calibrators by name. A new one is one file and one row.
CALIBRATORS = {row.name: row for row in (Calibrator("temperature", "one T for all classes", best_temperature),)}
