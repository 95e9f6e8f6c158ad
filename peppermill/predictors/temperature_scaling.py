"""Temperature scaling (Guo et al., 2017) of any predictor: one T by maximum validation likelihood."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from peppermill.calibrators.temperature import best_temperature, warn_at_limit
from peppermill.likelihood import temper
from peppermill.plumbing.modes import as_network, in_training_mode
from peppermill.plumbing.nested import output_tensor
from peppermill.predictions import likelihood_of, predict
from peppermill.types import Data, Likelihood


class Tempered(nn.Module):
    """A predictor whose probabilities are raised to the power 1/T and normalised again."""

    def __init__(self, predictor: Any, temperature: float, likelihood: Likelihood) -> None:
        super().__init__()
        self.predictor = predictor = as_network(predictor)
        self.temperature, self.likelihood = temperature, likelihood
        self.training = in_training_mode(predictor)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        predictions = self.likelihood.predict(output_tensor(self.predictor(*args, **kwargs)))
        return self.likelihood.outputs(temper(predictions, self.temperature))

    def extra_repr(self) -> str:
        return f"temperature={self.temperature:.4g}"


def fit_temperature(predictor: Any, validation: Data, *, likelihood: str | Likelihood | None = None) -> Any:
    """The same predictor at its best temperature; a PepEnsemble stays one, and saves its temperature.

    For sigma and T together use `fit(..., temperature=True)`: T fitted after PEP's sigma* can be worse than T alone.
    """
    chosen = likelihood_of(predictor, likelihood)
    if chosen.name == "gaussian":
        raise ValueError("`fit_temperature` is for classifiers: a Gaussian likelihood has no temperature.")
    predictions = predict(predictor, validation, likelihood=chosen, argument="validation")
    temperature, _ = best_temperature(predictions.log_probs, predictions.labels)
    warn_at_limit(temperature)
    if hasattr(predictor, "with_temperature"):
        return predictor.with_temperature(temperature)
    return Tempered(predictor, temperature, chosen)
