"""The methods with which PEP is compared: one row for each, and PEP itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peppermill.ensemble import PepEnsemble
from peppermill.predictors.baselines import DeepEnsemble, McDropout, SingleNetwork, TestTimeAugmentation, WeightAverage
from peppermill.predictors.temperature_scaling import Calibrated, Tempered


@dataclass(frozen=True)
class PredictorRow:
    """One method: its name, a line of help, and its class."""

    name: str
    help: str
    kind: type[Any]


#: The methods by name. A new one is one file and one row.
PREDICTORS = {
    row.name: row
    for row in (
        PredictorRow("single_network", "the network as it is, one pass", SingleNetwork),
        PredictorRow("temperature_scaling", "one T for all classes, one pass", Tempered),
        PredictorRow("calibrated", "any predictor and a calibrator after it", Calibrated),
        PredictorRow("pep", "m members around one network's weights, m passes", PepEnsemble),
        PredictorRow("test_time_augmentation", "one network, a pass for each view", TestTimeAugmentation),
        PredictorRow("mc_dropout", "passes with dropout active, for networks that have it", McDropout),
        PredictorRow("deep_ensemble", "networks trained from different seeds", DeepEnsemble),
        PredictorRow("weight_average", "the mean of the weights along a training run, one pass", WeightAverage),
    )
}
