"""Honest probabilities from any trained network, without training it again: Parameter Ensembling by Perturbation."""

from peppermill import metrics
from peppermill.baselines.deep_ensemble import DeepEnsemble
from peppermill.baselines.mc_dropout import McDropout
from peppermill.baselines.single import SingleNetwork
from peppermill.baselines.swa import WeightAverage
from peppermill.baselines.temperature import Tempered, fit_temperature
from peppermill.ensemble import PepEnsemble, fit, load
from peppermill.evaluation import Comparison, Scores, compare, compare_all, evaluate
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.predictions import Predictions, predict
from peppermill.sweep import Sweep, sweep_sigma
from peppermill.types import Likelihood, PepWarning, Predictor

__all__ = [
    "Bernoulli",
    "Categorical",
    "Comparison",
    "DeepEnsemble",
    "Gaussian",
    "Likelihood",
    "McDropout",
    "PepEnsemble",
    "PepWarning",
    "Predictions",
    "Predictor",
    "Scores",
    "SingleNetwork",
    "Sweep",
    "Tempered",
    "WeightAverage",
    "compare",
    "compare_all",
    "evaluate",
    "fit",
    "fit_temperature",
    "load",
    "metrics",
    "predict",
    "sweep_sigma",
]
