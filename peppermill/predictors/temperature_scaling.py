"""Temperature scaling (Guo et al., 2017) and other calibrators on top of any predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, overload

from torch import Tensor, nn

from peppermill.calibrators import UNCALIBRATED, Calibrator, Temperature, fit_calibrator_on, row_for
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import as_network, in_training_mode
from peppermill.predictions import likelihood_of, predict
from peppermill.types import CalibratorName, Data, Likelihood, LikelihoodLike

if TYPE_CHECKING:
    from peppermill.predictors.baselines import DeepEnsemble, McDropout, SingleNetwork

    Wrapper: TypeAlias = "Calibrated | DeepEnsemble | McDropout | SingleNetwork"


class Calibrated(nn.Module):
    """A predictor whose log-probabilities go through a fitted `calibrator`."""

    def __init__(self, predictor: Any, calibrator: Calibrator, likelihood: Likelihood) -> None:
        super().__init__()
        self.predictor = predictor = as_network(predictor)
        self.calibrator, self.likelihood = calibrator, likelihood
        self.training = in_training_mode(predictor)

    @property
    def temperature(self) -> float:
        return self.calibrator.temperature

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        predictions = self.likelihood.predict(output_tensor(self.predictor(*args, **kwargs)))
        return self.likelihood.outputs(self.calibrator(predictions))

    def extra_repr(self) -> str:
        return f"calibrator={self.calibrator.name}, temperature={self.temperature:.4g}"


class Tempered(Calibrated):
    """A predictor whose probabilities are raised to the power 1 / `temperature` and normalised again."""

    def __init__(self, predictor: Any, temperature: float, likelihood: Likelihood) -> None:
        super().__init__(predictor, Temperature(temperature), likelihood)


@overload
def fit_temperature(  # type: ignore[overload-overlap]  # a wrapper is a module too, and comes first
    predictor: Wrapper, validation: Data, *, likelihood: LikelihoodLike | None = ...
) -> Calibrated: ...
@overload
def fit_temperature(
    predictor: nn.Module, validation: Data, *, likelihood: LikelihoodLike | None = ...
) -> PepEnsemble: ...
@overload
def fit_temperature(
    predictor: object, validation: Data, *, likelihood: LikelihoodLike | None = ...
) -> PepEnsemble | Calibrated: ...
def fit_temperature(predictor: Any, validation: Data, *, likelihood: LikelihoodLike | None = None) -> Any:
    """`fit_calibrator(predictor, validation, "temperature")`.

    For sigma and T together use `fit(..., temperature=True)`: T fitted after PEP's sigma* can be worse than T alone.
    """
    if likelihood_of(predictor, likelihood).name == "gaussian":
        raise ValueError("`fit_temperature` is for classifiers: a Gaussian likelihood has no temperature.")
    return fit_calibrator(predictor, validation, "temperature", likelihood=likelihood)


@overload
def fit_calibrator(  # type: ignore[overload-overlap]
    predictor: Wrapper, validation: Data, calibrator: CalibratorName = ..., *, likelihood: LikelihoodLike | None = ...
) -> Calibrated: ...
@overload
def fit_calibrator(
    predictor: nn.Module, validation: Data, calibrator: CalibratorName = ..., *, likelihood: LikelihoodLike | None = ...
) -> PepEnsemble: ...
@overload
def fit_calibrator(
    predictor: object, validation: Data, calibrator: CalibratorName = ..., *, likelihood: LikelihoodLike | None = ...
) -> PepEnsemble | Calibrated: ...
def fit_calibrator(
    predictor: Any, validation: Data, calibrator: CalibratorName = "vector", *, likelihood: LikelihoodLike | None = None
) -> Any:
    """Fit a calibrator on validation data; it replaces the calibrator that a PepEnsemble already has.

    - `predictor`: a network, which becomes a `PepEnsemble` of one pass, without noise, that can be saved and exported;
      a `PepEnsemble`; or any other predictor, which becomes a `Calibrated`.
    - `validation`: labelled data that the network was not trained on.
    - `calibrator`: "temperature", "vector" or "matrix" (docs/choosing.md).
    - `likelihood`: by default that of the predictor, or categorical.
    """
    chosen = likelihood_of(predictor, likelihood)
    row_for(calibrator, chosen)
    predictor = as_network(predictor)
    arrays = predictor.parameters() if isinstance(predictor, nn.Module) and not hasattr(predictor, "likelihood") else ()
    if any(array.is_floating_point() for array in arrays):
        predictor = PepEnsemble.at_sigma(predictor, 0.0, parameters="all", size=1, likelihood=chosen)
    keeps = hasattr(predictor, "with_calibrator")
    bare = predictor.with_calibrator(UNCALIBRATED) if keeps else predictor
    predictions = predict(bare, validation, likelihood=chosen, argument="validation")
    found = fit_calibrator_on(
        calibrator, predictions.log_probs, predictions.labels, chosen, examples=predictions.examples
    )
    return predictor.with_calibrator(found) if keeps else Calibrated(predictor, found, chosen)
