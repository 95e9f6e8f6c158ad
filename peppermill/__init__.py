"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation.

Each public name is imported when it is first used: `import peppermill` alone imports neither torch nor anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peppermill import demo as demo
    from peppermill import metrics as metrics
    from peppermill.curvature.analysis import LocalAnalysis as LocalAnalysis
    from peppermill.curvature.analysis import carried_by as carried_by
    from peppermill.curvature.analysis import compare_effects as compare_effects
    from peppermill.curvature.analysis import local_analysis as local_analysis
    from peppermill.datasets.splitting import split_off as split_off
    from peppermill.distributed.group import ProcessError as ProcessError
    from peppermill.distributed.group import alone as alone
    from peppermill.ensemble import PepEnsemble as PepEnsemble
    from peppermill.ensemble import load as load
    from peppermill.evaluation.abstention import Abstention as Abstention
    from peppermill.evaluation.abstention import abstain as abstain
    from peppermill.evaluation.abstention import load_abstention as load_abstention
    from peppermill.evaluation.comparison import Comparison as Comparison
    from peppermill.evaluation.comparison import compare as compare
    from peppermill.evaluation.comparison import compare_all as compare_all
    from peppermill.evaluation.item_effects import Effect as Effect
    from peppermill.evaluation.item_effects import Effects as Effects
    from peppermill.evaluation.item_effects import helped_and_hurt as helped_and_hurt
    from peppermill.evaluation.member_count import SizeCurve as SizeCurve
    from peppermill.evaluation.member_count import size_curve as size_curve
    from peppermill.evaluation.overfitting import OverfittingProbe as OverfittingProbe
    from peppermill.evaluation.overfitting import probe_overfitting as probe_overfitting
    from peppermill.evaluation.scores import Scores as Scores
    from peppermill.evaluation.scores import evaluate as evaluate
    from peppermill.evaluation.sweep import Sweep as Sweep
    from peppermill.evaluation.sweep import sweep_sigma as sweep_sigma
    from peppermill.fitting import fit as fit
    from peppermill.integrations.lightning import PepCallback as PepCallback
    from peppermill.integrations.sklearn import PepClassifier as PepClassifier
    from peppermill.likelihood import Bernoulli as Bernoulli
    from peppermill.likelihood import Categorical as Categorical
    from peppermill.likelihood import Gaussian as Gaussian
    from peppermill.noise import Noise as Noise
    from peppermill.plumbing.warnings import PepWarning as PepWarning
    from peppermill.predictions import Predictions as Predictions
    from peppermill.predictions import predict as predict
    from peppermill.predictors.baselines import DeepEnsemble as DeepEnsemble
    from peppermill.predictors.baselines import McDropout as McDropout
    from peppermill.predictors.baselines import SingleNetwork as SingleNetwork
    from peppermill.predictors.baselines import TestTimeAugmentation as TestTimeAugmentation
    from peppermill.predictors.baselines import WeightAverage as WeightAverage
    from peppermill.predictors.temperature_scaling import Calibrated as Calibrated
    from peppermill.predictors.temperature_scaling import Tempered as Tempered
    from peppermill.predictors.temperature_scaling import fit_calibrator as fit_calibrator
    from peppermill.predictors.temperature_scaling import fit_temperature as fit_temperature
    from peppermill.race import Candidate as Candidate
    from peppermill.race import Race as Race
    from peppermill.race import calibrate as calibrate
    from peppermill.report import figures as plots  # noqa: F401
    from peppermill.report.page import write_report as write_report
    from peppermill.report.record import record_run as record_run
    from peppermill.report.record import sweep_around as sweep_around
    from peppermill.report.run import Run as Run
    from peppermill.report.run import provenance as provenance
    from peppermill.report.run import read_run as read_run
    from peppermill.report.run import write_run as write_run
    from peppermill.streaming.columns import stream as stream
    from peppermill.streaming.parts import write_predictions as write_predictions
    from peppermill.tuning.golden import Golden as Golden
    from peppermill.tuning.two_stage import TwoStage as TwoStage
    from peppermill.types import Likelihood as Likelihood
    from peppermill.types import Predictor as Predictor
    from peppermill.uncertainty import Uncertainty as Uncertainty

    __version__: str

#: Where each public name is defined.
_NAMES_BY_MODULE = {
    "curvature.analysis": "LocalAnalysis carried_by compare_effects local_analysis",
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
    "predictors.baselines": "DeepEnsemble McDropout SingleNetwork TestTimeAugmentation WeightAverage",
    "predictors.temperature_scaling": "Calibrated Tempered fit_calibrator fit_temperature",
    "race": "Candidate Race calibrate",
    "report.page": "write_report",
    "report.record": "record_run sweep_around",
    "report.run": "Run provenance read_run write_run",
    "streaming.columns": "stream",
    "streaming.parts": "write_predictions",
    "tuning.golden": "Golden",
    "tuning.two_stage": "TwoStage",
    "types": "Likelihood Predictor",
    "uncertainty": "Uncertainty",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

#: Public names that are modules.
_MODULES = {"demo": "demo", "metrics": "metrics", "plots": "report.figures"}

#: Names that need an extra. Not in `__all__`: `from peppermill import *` works without any extra.
_WITH_EXTRAS = {"PepCallback": "integrations.lightning", "PepClassifier": "integrations.sklearn"}

__all__ = sorted([*_MODULE_OF, *_MODULES], key=lambda name: (name.islower(), name))


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
