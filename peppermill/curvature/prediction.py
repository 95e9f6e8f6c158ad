"""The PEP effect predicted by eq. 15 and measured by an ensemble, and the items that carry it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peppermill import metrics
from peppermill.curvature.analysis import LocalAnalysis, standard_error
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.likelihood import ensemble_log_likelihood
from peppermill.noise import Noise
from peppermill.parameters import Selection
from peppermill.passes import run_members
from peppermill.plumbing.progress import progress
from peppermill.predictions import Predictions
from peppermill.types import Data, LikelihoodLike

HARDEST_FRACTIONS = (0.01, 0.05, 0.1, 0.5)  # of the items


@dataclass(frozen=True)
class EffectPoint:
    """At one sigma: B_sigma of eq. 15, and L(sigma) - L(0) of an ensemble; sums over items, with standard errors."""

    sigma: float
    predicted: float
    predicted_error: float
    measured: float
    measured_error: float


@dataclass(frozen=True)
class Carried:
    """The share of an effect that some items carry; above 1 if the others lose."""

    who: str
    fraction: float  # of the items
    share: float  # of the effect


def compare_effects(
    analysis: LocalAnalysis,
    model: nn.Module,
    data: Data,
    sigmas: Sequence[float],
    *,
    parameters: Selection = "kernels",
    size: int = 20,
    seed: int = 0,
    likelihood: LikelihoodLike = "categorical",
    batch_size: int = 500,
) -> tuple[EffectPoint, ...]:
    """The effect that an `analysis` predicts and the measured one, for each of the `sigmas`.

    The members are antithetic pairs, independent of the probes of the analysis. Pairs, because an average over m
    independent members loses sigma^2/2 Tr F / m, which is of the order of the effect itself.
    """
    if size < 6 or size % 2:
        raise ValueError(
            f"`size={size}` must be even and at least 6: the error is computed from the spread of pairs of members."
        )
    noise = Noise(seed=seed)
    pep = PepEnsemble.at_sigma(
        model, 0.0, parameters=parameters, size=size, noise=noise, likelihood=likelihood, engine="loop"
    )
    points = []
    with progress(f"{size} members at {len(sigmas)} values of sigma") as tick:
        request = pep.request(Batches(data, pep.model, batch_size=batch_size), tick)
        base = float(ensemble_log_likelihood(run_members(request, 0.0).member_log_likelihoods[:1]))
        for sigma in sigmas:
            value, error = _with_error(run_members(request, sigma).member_log_likelihoods.cpu())
            predicted = analysis.predicted_effect(sigma), analysis.predicted_effect_error(sigma)
            points.append(EffectPoint(sigma, *predicted, value - base, error))
    return tuple(points)


def carried_by(effects: Tensor, predictions: Predictions) -> tuple[Carried, ...]:
    """The share of the sum of `effects` [N] that the hardest items of some `predictions` carry: wrong, least likely."""
    order = predictions.log_likelihoods.cpu().argsort()
    total, count = float(effects.sum()), len(effects)
    found = []
    if predictions.likelihood.name != "gaussian":
        wrong = metrics.item_errors(predictions.log_probs, predictions.labels).bool().cpu()
        found.append(
            Carried("that the network gets wrong", float(wrong.double().mean()), float(effects[wrong].sum()) / total)
        )
    for fraction in HARDEST_FRACTIONS:
        hardest = order[: math.ceil(fraction * count)]
        found.append(Carried("of lowest likelihood", len(hardest) / count, float(effects[hardest].sum()) / total))
    return tuple(found)


def _with_error(member_log_likelihoods: Tensor) -> tuple[float, float]:
    """L(sigma) of the members [m, N], and its error: the jackknife over pairs +epsilon, -epsilon."""
    pairs = len(member_log_likelihoods) // 2
    kept = [[k for k in range(2 * pairs) if k // 2 != left_out] for left_out in range(pairs)]
    values = torch.stack([ensemble_log_likelihood(member_log_likelihoods[rows]) for rows in kept])
    return float(ensemble_log_likelihood(member_log_likelihoods)), standard_error(values) * (pairs - 1)
