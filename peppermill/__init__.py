"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation."""

from peppermill import metrics
from peppermill.baselines.temperature import Tempered, fit_temperature
from peppermill.curvature.analysis import LocalAnalysis, local_analysis
from peppermill.ensemble import PepEnsemble, fit, load
from peppermill.evaluation import Comparison, Scores, compare, compare_all, evaluate
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.overfitting import OverfittingProbe, probe_overfitting
from peppermill.predictions import Predictions, predict
from peppermill.sweep import Sweep, sweep_sigma
from peppermill.types import Likelihood, PepWarning, Predictor

__all__ = [
    "Bernoulli",
    "Categorical",
    "Comparison",
    "Gaussian",
    "Likelihood",
    "LocalAnalysis",
    "OverfittingProbe",
    "PepEnsemble",
    "PepWarning",
    "Predictions",
    "Predictor",
    "Scores",
    "Sweep",
    "Tempered",
    "compare",
    "compare_all",
    "evaluate",
    "fit",
    "fit_temperature",
    "load",
    "local_analysis",
    "metrics",
    "predict",
    "probe_overfitting",
    "sweep_sigma",
]
