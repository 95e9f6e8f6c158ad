"""The methods with which PEP is compared: one row for each, and PEP itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peppermill.ensemble import PepEnsemble
from peppermill.predictors.augmentation import TestTimeAugmentation
from peppermill.predictors.deep_ensemble import DeepEnsemble
from peppermill.predictors.mc_dropout import McDropout
from peppermill.predictors.single_network import SingleNetwork
from peppermill.predictors.temperature_scaling import Calibrated, Tempered
from peppermill.predictors.weight_average import WeightAverage


@dataclass(frozen=True)
class PredictorRow:
    """One method: its name, the title in tables, a line of help, and its class."""

    name: str
    title: str
    help: str
    kind: type[Any]


#: The methods by name. A new one is one file and one row.
PREDICTORS = {
    row.name: row
    for row in (
        PredictorRow("single_network", "network", "the network as it is, one pass", SingleNetwork),
        PredictorRow("temperature_scaling", "temperature scaling", "one T for all classes, one pass", Tempered),
        PredictorRow("calibrated", "calibrated", "any predictor and a calibrator after it", Calibrated),
        PredictorRow("pep", "PEP", "m members around one network's weights, m passes", PepEnsemble),
        PredictorRow("test_time_augmentation", "views", "one network, a pass for each view", TestTimeAugmentation),
        PredictorRow("mc_dropout", "MC dropout", "passes with dropout active, for networks that have it", McDropout),
        PredictorRow("deep_ensemble", "deep ensemble", "networks trained from different seeds", DeepEnsemble),
        PredictorRow("weight_average", "SWA", "the mean of the weights along a training run, one pass", WeightAverage),
    )
}
