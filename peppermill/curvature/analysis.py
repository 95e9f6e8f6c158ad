"""Eq. 14 to 20: the PEP effect B_sigma = sigma^2/2 sum_i Laplacian(L_i)/L_i near theta*, beside the measured effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor, nn

from peppermill.curvature.derivatives import (
    LOG_ODDS_CHANGE,
    PASSES_PER_PROBE,
    directional_derivatives,
    hessian_products,
    item_gradients,
    landscape_of,
    step_size,
)
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.likelihood import ensemble_log_likelihood, likelihood_named
from peppermill.metrics import item_errors
from peppermill.noise import Noise
from peppermill.parameters import Selection
from peppermill.passes import run_members
from peppermill.plumbing.display import Table, shows_table
from peppermill.plumbing.progress import progress
from peppermill.predictions import Predictions
from peppermill.types import Data, LikelihoodLike

BELIEVABLE_SHARE = 0.1  # of the prediction: the next order may change it by this much
MAX_PROBES = 1_000_000
QUANTITIES = {
    "laplacian": "Laplacian of the log-likelihood",
    "fisher_trace": "trace of the empirical Fisher information",
    "effect_rate": "effect rate, sum of Laplacian(L_i)/L_i",
    "kinks": "  of it, kinks that derivatives miss",
}
MIN_REGRESSION_PROBES = 8  # fewer probes are worth more than the degree of freedom that a slope costs
HARDEST_FRACTIONS = (0.01, 0.05, 0.1, 0.5)  # of the items


@shows_table
@dataclass(frozen=True)
class LocalAnalysis:
    """The quantities of Section 2.3 at theta*, sums over N items, each with its standard error over probes.

    Two errors contain the truth as often as two standard deviations of a normal distribution, 95 % of the time: with
    few probes the errors are larger, by the quantiles of Student's t. They do not include the variation of the data.
    """

    laplacian: float  # of the log-likelihood
    laplacian_error: float
    fisher_trace: float  # of the empirical Fisher information
    fisher_trace_error: float  # 0: it is exact
    effect_rate: float  # sum_i Laplacian(L_i) / L_i, the direct estimate
    effect_rate_error: float
    quartic: float  # the coefficient of sigma^4 in L(sigma), the first that eq. 15 leaves out
    quartic_error: float
    kinks: float  # the part of the effect rate that small steps see and derivatives do not
    kinks_error: float
    items: int  # N
    dimensions: int  # of theta
    probes: int
    step: float  # h of the direct estimate
    item_rates: Tensor = field(repr=False)  # Laplacian(L_i) / L_i, [N]

    @property
    def rate_from_traces(self) -> float:
        """Laplacian + trace of the Fisher information, eq. 20: the effect rate of a network without kinks."""
        return self.laplacian + self.fisher_trace

    @property
    def believable_range(self) -> tuple[float, float]:
        """From 0 to the sigma at which the next order of the expansion may be a tenth of the prediction.

        L(sigma) = L(0) + sigma^2/2 R + sigma^4 Q + ...; the range ends where (|Q| + two errors) sigma^4 is a tenth of
        |R| sigma^2/2. Q holds both terms that eq. 15 leaves out: the fourth derivatives of L_i, and the curvature of
        ln(1 + x), which matters if few items carry most of the effect.
        """
        quartic = abs(self.quartic) + 2 * self.quartic_error
        return 0.0, math.sqrt(BELIEVABLE_SHARE * abs(self.effect_rate) / (2 * quartic)) if quartic else math.inf

    def predicted_effect(self, sigma: float) -> float:
        """B_sigma of eq. 15: L(sigma) - L(0) of a large ensemble, summed over items."""
        return sigma**2 / 2 * self.effect_rate

    def predicted_effect_error(self, sigma: float) -> float:
        """The standard error of B_sigma."""
        return sigma**2 / 2 * self.effect_rate_error

    def table(self) -> Table:
        """Each quantity with its standard error."""
        rows = []
        for name, title in QUANTITIES.items():
            value, error = getattr(self, name), getattr(self, f"{name}_error")
            rows.append((title, f"{value:.5g}", f"{error:.3g}" if error else "exact", f"{value / self.items:.4g}"))
        note = (
            f"{self.items:,} items, {self.dimensions:,} perturbed numbers, {self.probes} probes; the prediction is "
            f"believable up to sigma = {self.believable_range[1]:.3g}"
        )
        return Table(("quantity", "sum over items", "standard error", "per item"), rows, note=note)


def local_analysis(
    model: nn.Module,
    data: Data,
    *,
    parameters: Selection = "kernels",
    probes: int = 16,
    seed: int = 0,
    step: float | None = None,
    likelihood: LikelihoodLike = "categorical",
    batch_size: int = 500,
) -> LocalAnalysis:
    """How the log-likelihood of an ensemble begins to grow with sigma: Laplacian, trace of the Fisher, effect rate.

    - `parameters`, `likelihood`, `batch_size`: as in `fit`; analyse what you perturb.
    - `probes`: random directions. Errors fall with their square root; each costs a product with the Hessian and four
      forward passes. With at least as many probes as theta has numbers, the axes are used and the result is exact.
    - `seed`: of the probes, which are Gaussian, the law of PEP's own noise.
    - `step`: h of the direct estimate, chosen automatically by default. Only kinks within this distance are seen.

    Half-precision networks are computed in float32. How far to trust the result: docs/curvature.md.
    """
    if not isinstance(probes, int) or not 3 <= probes <= MAX_PROBES:
        raise ValueError(f"`probes={probes!r}` must be a whole number, 3 (for an error) to {MAX_PROBES:,}. Try 16.")
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"`step={step}` must be positive: leave it out to have it chosen for you.")
    landscape = landscape_of(model, data, parameters, likelihood_named(likelihood), batch_size)
    random = partial(landscape.gaussian_directions, probes, seed)
    exact = probes >= landscape.dimensions
    directions, count = (landscape.axes, landscape.dimensions) if exact else (random, probes)

    with progress("gradients of every item") as tick:
        squares, log_likelihoods = item_gradients(landscape, tick)
    if not len(squares):
        raise ValueError(f"`{landscape.data.argument}` has no item that counts: every label is the ignored one.")
    inputs = landscape.data.count_items() or 0
    with progress("products with the Hessian", count * inputs) as tick:
        forms, slopes = hessian_products(landscape, directions, tick)
    long = short = step or step_size(landscape, squares, log_likelihoods, float(forms.mean()))
    if exact and not step:  # the axes add no noise, so the step is as short as rounding allows: u / x^2 = x^4
        short = long * torch.finfo(next(iter(landscape.center.values())).dtype).eps ** (1 / 6) / LOG_ODDS_CHANGE
    with progress("small steps", (PASSES_PER_PROBE * count + 1) * inputs) as tick:
        second, fourth = directional_derivatives(landscape, directions, short, tick)
    if exact:
        with progress("small steps", (PASSES_PER_PROBE * probes + 1) * inputs) as tick:
            _, fourth = directional_derivatives(landscape, random, long, tick)

    control, trace = slopes.square().sum(dim=1), float(squares.sum())
    rates = second.sum(dim=1)
    # Every item has a control of its own, with the weight of their sum: the items' rates add up to the effect rate.
    item_rates = (second - weight_of(control, rates) * (slopes.square() - squares)).mean(dim=0)

    def estimated(wanted: Tensor) -> tuple[float, float]:
        return (float(wanted.mean()), 0.0) if exact else estimate(wanted, control, trace)

    return LocalAnalysis(
        *estimated(forms),
        *(trace, 0.0),
        *estimated(rates),
        *quartic_term(fourth, second, exact),
        *estimated(rates - control - forms),
        items=len(squares),
        dimensions=landscape.dimensions,
        probes=count,
        step=short,
        item_rates=item_rates,
    )


def weight_of(control: Tensor, wanted: Tensor) -> float:
    """The slope of the least-squares line of the wanted quantity [n] on the control [n]."""
    excess = control - control.mean()
    spread = float(excess.square().sum())
    return float((wanted * excess).sum()) / spread if len(wanted) >= MIN_REGRESSION_PROBES and spread else 0.0


def estimate(wanted: Tensor, control: Tensor, known: float) -> tuple[float, float]:
    """The mean of the wanted quantity [n] and its standard error, with a control variate [n] of known mean.

    The least-squares line of the one on the other, read off at the known mean, removes the noise that both share. The
    error is scaled by Student's t: two errors contain the truth as often as two standard deviations of a normal.
    """
    from scipy import stats  # slow to import, so not at the top

    if not weight_of(control, wanted):
        return float(wanted.mean()), standard_error(wanted)
    line = stats.linregress(control - known, wanted)
    return float(line.intercept), float(line.intercept_stderr) * student_factor(len(wanted) - 2)


def standard_error(values: Tensor) -> float:
    """The standard error of the mean of values [n], scaled by Student's t as above."""
    return float(values.std()) / math.sqrt(len(values)) * student_factor(len(values) - 1)


def student_factor(freedom: int) -> float:
    """How much wider Student's t is than a normal distribution, at two standard deviations."""
    return float(stdtrit(freedom, ndtr(2))) / 2


def quartic_term(fourth: Tensor, second: Tensor, exact: bool) -> tuple[float, float]:
    """Q of L(sigma) = L(0) + sigma^2/2 R + sigma^4 Q + ..., and its standard error, from derivatives [n, N].

    Appendix A.1.1: E L_i(theta* + sigma v) / L_i = 1 + sigma^2/2 E[second] + sigma^4/24 E[fourth] + ..., because the
    third moment vanishes. Its logarithm has Q = sum_i (E[fourth] / 24 - E[second]^2 / 8).
    """
    fourths = fourth.sum(dim=1) / 24
    if exact:
        return float(fourths.mean() - second.mean(dim=0).square().sum() / 8), standard_error(fourths)

    def coefficient(n: int, fourth: Tensor, total: Tensor, squares: Tensor) -> Tensor:
        """Q from sums; E[second]^2 from products of different probes only: the square of one would add its noise."""
        return fourth / n - (total.square() - squares).sum(dim=-1) / (8 * n * (n - 1))

    own, count = (fourths, second, second.square()), len(second)
    sums = [values.sum(dim=0) for values in own]
    without_one = [total - one for total, one in zip(sums, own, strict=True)]  # the jackknife over probes
    return float(coefficient(count, *sums)), standard_error(coefficient(count - 1, *without_one)) * (count - 1)


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
    pep = PepEnsemble.at_sigma(
        model, 0.0, parameters=parameters, size=size, noise=Noise(seed=seed), likelihood=likelihood, engine="loop"
    )
    points, pairs = [], size // 2
    without_one = [[k for k in range(size) if k // 2 != pair] for pair in range(pairs)]  # the jackknife over pairs
    with progress(f"{size} members at {len(sigmas)} values of sigma") as tick:
        request = pep.request(Batches(data, pep.model, batch_size=batch_size), tick)
        base = float(ensemble_log_likelihood(run_members(request, 0.0).member_log_likelihoods[:1]))
        for sigma in sigmas:
            members = run_members(request, sigma).member_log_likelihoods.cpu()
            values = torch.stack([ensemble_log_likelihood(members[rows]) for rows in without_one])
            measured = float(ensemble_log_likelihood(members)) - base, standard_error(values) * (pairs - 1)
            predicted = analysis.predicted_effect(sigma), analysis.predicted_effect_error(sigma)
            points.append(EffectPoint(sigma, *predicted, *measured))
    return tuple(points)


def carried_by(effects: Tensor, predictions: Predictions) -> tuple[Carried, ...]:
    """The share of the sum of `effects` [N] that the hardest items of some `predictions` carry: wrong, least likely."""
    order, count, total = predictions.log_likelihoods.cpu().argsort(), len(effects), float(effects.sum())
    groups = [("of lowest likelihood", order[: math.ceil(fraction * count)]) for fraction in HARDEST_FRACTIONS]
    if predictions.likelihood.name != "gaussian":
        wrong = item_errors(predictions.log_probs, predictions.labels).cpu().nonzero()[:, 0]
        groups.insert(0, ("that the network gets wrong", wrong))
    return tuple(Carried(who, len(rows) / count, float(effects[rows].sum()) / total) for who, rows in groups)
