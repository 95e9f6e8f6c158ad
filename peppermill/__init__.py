"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from peppermill import metrics
from peppermill.curvature.analysis import LocalAnalysis, local_analysis
from peppermill.datasets.splitting import split_off
from peppermill.distributed.group import ProcessError, alone
from peppermill.ensemble import PepEnsemble, load
from peppermill.evaluation.comparison import Comparison, compare, compare_all
from peppermill.evaluation.item_effects import Effect, Effects, helped_and_hurt
from peppermill.evaluation.member_count import SizeCurve, size_curve
from peppermill.evaluation.overfitting import OverfittingProbe, probe_overfitting
from peppermill.evaluation.scores import Scores, evaluate
from peppermill.evaluation.sweep import Sweep, sweep_sigma
from peppermill.fitting import fit
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.predictions import Predictions, predict
from peppermill.predictors.deep_ensemble import DeepEnsemble
from peppermill.predictors.mc_dropout import McDropout
from peppermill.predictors.single_network import SingleNetwork
from peppermill.predictors.temperature_scaling import Tempered, fit_temperature
from peppermill.predictors.weight_average import WeightAverage
from peppermill.report import figures as plots
from peppermill.report.page import write_report
from peppermill.report.record import record_run, sweep_around
from peppermill.report.run import Run, read_run, write_run
from peppermill.types import Likelihood, PepWarning, Predictor

if TYPE_CHECKING:
    from peppermill.integrations.lightning import PepCallback as PepCallback
    from peppermill.integrations.sklearn import PepClassifier as PepClassifier

__all__ = [
    "Bernoulli",
    "Categorical",
    "Comparison",
    "DeepEnsemble",
    "Effect",
    "Effects",
    "Gaussian",
    "Likelihood",
    "LocalAnalysis",
    "McDropout",
    "OverfittingProbe",
    "PepEnsemble",
    "PepWarning",
    "Predictions",
    "Predictor",
    "ProcessError",
    "Run",
    "Scores",
    "SingleNetwork",
    "SizeCurve",
    "Sweep",
    "Tempered",
    "WeightAverage",
    "alone",
    "compare",
    "compare_all",
    "evaluate",
    "fit",
    "fit_temperature",
    "helped_and_hurt",
    "load",
    "local_analysis",
    "metrics",
    "plots",
    "predict",
    "probe_overfitting",
    "read_run",
    "record_run",
    "size_curve",
    "split_off",
    "sweep_around",
    "sweep_sigma",
    "write_report",
    "write_run",
]

#: Names that need an extra, and where they are. Not in `__all__`: `from peppermill import *` works without any extra.
_WITH_EXTRAS = {
    "PepCallback": "peppermill.integrations.lightning",
    "PepClassifier": "peppermill.integrations.sklearn",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_EXTRAS:
        return getattr(import_module(_WITH_EXTRAS[name]), name)
    raise AttributeError(f"module 'peppermill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WITH_EXTRAS})
