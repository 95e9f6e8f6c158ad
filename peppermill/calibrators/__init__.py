"""What is fitted on averaged log-probabilities, after the members: one row for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from peppermill.calibrators.temperature import Temperature, best_temperature


class Calibrator(Protocol):
    """What was fitted: a function of normalised log-probabilities, classes last, that gives normalised ones."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> int:
        """How many numbers were fitted."""
        ...

    def __call__(self, log_probs: Tensor) -> Tensor: ...

    def to_json(self) -> dict[str, Any]:
        """Its name and its single numbers."""
        ...

    def arrays(self) -> dict[str, Tensor]:
        """Its arrays, in float32."""
        ...


@dataclass(frozen=True)
class CalibratorRow:
    """One method: its name, a line of help, and the function that fits it.

    `fit(log_probs, labels, weights)` returns what was fitted and the log-likelihood under it.
    """

    name: str
    help: str
    fit: Callable[[Tensor, Tensor, Tensor | None], tuple[float, float]]


#: The calibrators by name. A new one is one file and one row.
CALIBRATORS = {row.name: row for row in (CalibratorRow("temperature", "one T for all classes", best_temperature),)}


def calibrator_from(numbers: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Calibrator:
    """The calibrator with this JSON and these arrays."""
    if not 0 < numbers["temperature"] < float("inf"):
        raise ValueError(f"temperature is {numbers['temperature']}")
    return Temperature(float(numbers["temperature"]))
