"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation."""

from peppermill import metrics
from peppermill.baselines.deep_ensemble import DeepEnsemble
from peppermill.baselines.mc_dropout import McDropout
from peppermill.baselines.single import SingleNetwork
from peppermill.baselines.swa import WeightAverage
from peppermill.baselines.temperature import Tempered, fit_temperature
from peppermill.curvature.analysis import LocalAnalysis, local_analysis
from peppermill.effects import Effect, Effects, helped_and_hurt
from peppermill.ensemble import PepEnsemble, fit, load
from peppermill.evaluation import Comparison, Scores, compare, compare_all, evaluate
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.overfitting import OverfittingProbe, probe_overfitting
from peppermill.predictions import Predictions, predict
from peppermill.record import record_run, sweep_around
from peppermill.report import plots
from peppermill.report.page import write_report
from peppermill.results import Run, read_run, write_run
from peppermill.sizes import SizeCurve, size_curve
from peppermill.sweep import Sweep, sweep_sigma
from peppermill.types import Likelihood, PepWarning, Predictor

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
    "Run",
    "Scores",
    "SingleNetwork",
    "SizeCurve",
    "Sweep",
    "Tempered",
    "WeightAverage",
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
    "sweep_around",
    "sweep_sigma",
    "write_report",
    "write_run",
]
