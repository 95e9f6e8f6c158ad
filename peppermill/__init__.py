"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation.

Each public name is imported when it is first used: `import peppermill` alone imports neither torch nor anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peppermill import demo, metrics
    from peppermill.curvature.analysis import LocalAnalysis, local_analysis
    from peppermill.curvature.prediction import carried_by, compare_effects
    from peppermill.datasets.splitting import split_off
    from peppermill.distributed.group import ProcessError, alone
    from peppermill.ensemble import PepEnsemble, load
    from peppermill.evaluation.abstention import Abstention, abstain, load_abstention
    from peppermill.evaluation.comparison import Comparison, compare, compare_all
    from peppermill.evaluation.item_effects import Effect, Effects, helped_and_hurt
    from peppermill.evaluation.member_count import SizeCurve, size_curve
    from peppermill.evaluation.overfitting import OverfittingProbe, probe_overfitting
    from peppermill.evaluation.scores import Scores, evaluate
    from peppermill.evaluation.sweep import Sweep, sweep_sigma
    from peppermill.fitting import fit
    from peppermill.integrations.lightning import PepCallback as PepCallback
    from peppermill.integrations.sklearn import PepClassifier as PepClassifier
    from peppermill.likelihood import Bernoulli, Categorical, Gaussian
    from peppermill.noise import Noise
    from peppermill.plumbing.warnings import PepWarning
    from peppermill.predictions import Predictions, predict
    from peppermill.predictors.augmentation import TestTimeAugmentation
    from peppermill.predictors.deep_ensemble import DeepEnsemble
    from peppermill.predictors.mc_dropout import McDropout
    from peppermill.predictors.single_network import SingleNetwork
    from peppermill.predictors.temperature_scaling import Calibrated, Tempered, fit_calibrator, fit_temperature
    from peppermill.predictors.weight_average import WeightAverage
    from peppermill.race import calibrate
    from peppermill.report import figures as plots
    from peppermill.report.page import write_report
    from peppermill.report.provenance import provenance
    from peppermill.report.record import record_run, sweep_around
    from peppermill.report.run import Run, read_run, write_run
    from peppermill.streaming.columns import stream
    from peppermill.streaming.parts import write_predictions
    from peppermill.tuning.golden import Golden
    from peppermill.tuning.result import Candidate, Race
    from peppermill.tuning.two_stage import TwoStage
    from peppermill.types import Likelihood, Predictor
    from peppermill.uncertainty import Uncertainty

    __version__: str

__all__ = [
    "Abstention",
    "Bernoulli",
    "Calibrated",
    "Candidate",
    "Categorical",
    "Comparison",
    "DeepEnsemble",
    "Effect",
    "Effects",
    "Gaussian",
    "Golden",
    "Likelihood",
    "LocalAnalysis",
    "McDropout",
    "Noise",
    "OverfittingProbe",
    "PepEnsemble",
    "PepWarning",
    "Predictions",
    "Predictor",
    "ProcessError",
    "Race",
    "Run",
    "Scores",
    "SingleNetwork",
    "SizeCurve",
    "Sweep",
    "Tempered",
    "TestTimeAugmentation",
    "TwoStage",
    "Uncertainty",
    "WeightAverage",
    "abstain",
    "alone",
    "calibrate",
    "carried_by",
    "compare",
    "compare_all",
    "compare_effects",
    "demo",
    "evaluate",
    "fit",
    "fit_calibrator",
    "fit_temperature",
    "helped_and_hurt",
    "load",
    "load_abstention",
    "local_analysis",
    "metrics",
    "plots",
    "predict",
    "probe_overfitting",
    "provenance",
    "read_run",
    "record_run",
    "size_curve",
    "split_off",
    "stream",
    "sweep_around",
    "sweep_sigma",
    "write_predictions",
    "write_report",
    "write_run",
]

#: Where each public name is defined.
_NAMES_BY_MODULE = {
    "curvature.analysis": "LocalAnalysis local_analysis",
    "curvature.prediction": "carried_by compare_effects",
    "datasets.splitting": "split_off",
    "distributed.group": "ProcessError alone",
    "ensemble": "PepEnsemble load",
    "evaluation.abstention": "Abstention abstain load_abstention",
    "evaluation.comparison": "Comparison compare compare_all",
    "evaluation.item_effects": "Effect Effects helped_and_hurt",
    "evaluation.member_count": "SizeCurve size_curve",
    "evaluation.overfitting": "OverfittingProbe probe_overfitting",
    "evaluation.scores": "Scores evaluate",
    "evaluation.sweep": "Sweep sweep_sigma",
    "fitting": "fit",
    "likelihood": "Bernoulli Categorical Gaussian",
    "noise": "Noise",
    "plumbing.warnings": "PepWarning",
    "predictions": "Predictions predict",
    "predictors.augmentation": "TestTimeAugmentation",
    "predictors.deep_ensemble": "DeepEnsemble",
    "predictors.mc_dropout": "McDropout",
    "predictors.single_network": "SingleNetwork",
    "predictors.temperature_scaling": "Calibrated Tempered fit_calibrator fit_temperature",
    "predictors.weight_average": "WeightAverage",
    "race": "calibrate",
    "report.page": "write_report",
    "report.provenance": "provenance",
    "report.record": "record_run sweep_around",
    "report.run": "Run read_run write_run",
    "streaming.columns": "stream",
    "streaming.parts": "write_predictions",
    "tuning.golden": "Golden",
    "tuning.result": "Candidate Race",
    "tuning.two_stage": "TwoStage",
    "types": "Likelihood Predictor",
    "uncertainty": "Uncertainty",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

#: Public names that are modules.
_MODULES = {"demo": "demo", "metrics": "metrics", "plots": "report.figures"}

#: Names that need an extra. Not in `__all__`: `from peppermill import *` works without any extra.
_WITH_EXTRAS = {"PepCallback": "integrations.lightning", "PepClassifier": "integrations.sklearn"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"peppermill.{_MODULES[name]}")
    if name == "__version__":
        return _version()
    module = _MODULE_OF.get(name) or _WITH_EXTRAS.get(name)
    if module is None:
        raise AttributeError(f"module 'peppermill' has no attribute {name!r}")
    return getattr(import_module(f"peppermill.{module}"), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("peppermill")
    except PackageNotFoundError:
        return "from a checkout"


def __dir__() -> list[str]:
    return sorted([*__all__, *_WITH_EXTRAS, "__version__"])
