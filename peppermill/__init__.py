"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from peppermill import metrics
from peppermill.baselines.deep_ensemble import DeepEnsemble
from peppermill.baselines.mc_dropout import McDropout
from peppermill.baselines.single import SingleNetwork
from peppermill.baselines.swa import WeightAverage
from peppermill.baselines.temperature import Tempered, fit_temperature
from peppermill.curvature.analysis import LocalAnalysis, local_analysis
from peppermill.effects import Effect, Effects, helped_and_hurt
from peppermill.ensemble import PepEnsemble, load
from peppermill.evaluation import Comparison, Scores, compare, compare_all, evaluate
from peppermill.fitting import fit
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.overfitting import OverfittingProbe, probe_overfitting
from peppermill.predictions import Predictions, predict
from peppermill.processes.group import alone
from peppermill.processes.messages import ProcessError
from peppermill.record import record_run, sweep_around
from peppermill.report import plots
from peppermill.report.page import write_report
from peppermill.results import Run, read_run, write_run
from peppermill.sizes import SizeCurve, size_curve
from peppermill.splitting import split_off
from peppermill.sweep import Sweep, sweep_sigma
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
