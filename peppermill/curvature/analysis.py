"""Eq. 14 to 20: the PEP effect B_sigma = sigma^2/2 sum_i Laplacian(L_i)/L_i near theta*, its error and its reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from peppermill.curvature.direct import CHANGE, PASSES, Directional, directional_derivatives, step_size
from peppermill.curvature.estimates import Control, estimate
from peppermill.curvature.fisher import ItemGradients, item_gradients
from peppermill.curvature.landscape import Landscape, axes, checked_inputs, gaussian_directions, landscape_of
from peppermill.curvature.laplacian import Products, hessian_products
from peppermill.curvature.quartic import quartic_term
from peppermill.data import Batches
from peppermill.likelihood import likelihood_named
from peppermill.parameters import Selection
from peppermill.plumbing.progress import progress
from peppermill.types import Data, Likelihood, Params

KEPT_BYTES = 2**28  # of probes that are held
TOLERANCE = 0.1  # the share of the prediction by which the next order may change it

Directions: TypeAlias = Callable[[], Iterable[Params]]


@dataclass(frozen=True)
class LocalAnalysis:
    """The quantities of Section 2.3 at theta*, sums over N items, each with its standard error over probes.

    Two errors hold the truth as often as two standard deviations of a normal distribution do, 95 %: with few probes an
    error is the larger, by the quantiles of Student's t. The data are taken as given: errors of probes alone.
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

        L(sigma) = L(0) + sigma^2/2 R + sigma^4 Q + ...; the range ends where |Q| and two of its errors, times sigma^4,
        reach a tenth of |R| sigma^2/2. Q holds both things that eq. 15 leaves out: the fourth derivatives of L_i, and
        the curvature of ln(1 + x), which matters where few items carry much.
        """
        quartic = abs(self.quartic) + 2 * self.quartic_error
        return 0.0, math.sqrt(TOLERANCE * abs(self.effect_rate) / (2 * quartic)) if quartic else math.inf

    def predicted_effect(self, sigma: float) -> float:
        """B_sigma of eq. 15: L(sigma) - L(0) of a large ensemble, summed over items."""
        return sigma**2 / 2 * self.effect_rate

    def predicted_effect_error(self, sigma: float) -> float:
        """The standard error of B_sigma."""
        return sigma**2 / 2 * self.effect_rate_error


def local_analysis(
    model: nn.Module,
    data: Data,
    *,
    parameters: Selection = "kernels",
    probes: int = 16,
    seed: int = 0,
    step: float | None = None,
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 500,
) -> LocalAnalysis:
    """How the log-likelihood of an ensemble begins to grow with sigma: Laplacian, trace of the Fisher, effect rate.

    - `parameters`, `likelihood`, `batch_size`: as in `fit`; analyse what you perturb.
    - `probes`: random directions. Errors fall with their square root; each costs a product with the Hessian and four
      forward passes. With as many probes as theta has numbers the axes themselves are taken, and nothing is random.
    - `seed`: of the probes, which are Gaussian, the law of PEP's own noise.
    - `step`: h of the direct estimate, found when absent. Only kinks that lie within it are seen.

    Half-precision networks are computed in float32. How far to believe it: docs/curvature.md.
    """
    _check(probes, step)
    found, batches = landscape_of(model, data, parameters, likelihood_named(likelihood), batch_size)
    random = _kept_if_small(partial(gaussian_directions, found.center, probes, seed), probes, found)
    exact = probes >= found.dimensions
    directions, count = (partial(axes, found.center), found.dimensions) if exact else (random, probes)

    inputs = checked_inputs(found, batches)
    gradients = _gradients(found, batches, inputs)
    products = _products(found, batches, directions, count * inputs)
    long = step or step_size(found, gradients, float(products.forms.mean()))
    short = step or (long * _shorter(found.dtype) if exact else long)
    derivatives = _derivatives(found, batches, directions, short, count * inputs)
    control = Control(products.slopes.square().sum(dim=1), float(gradients.squares.sum()))
    rates = _item_rates(derivatives.second, products.slopes, gradients.squares, control)
    fourth = derivatives.fourth if not exact else _derivatives(found, batches, random, long, probes * inputs).fourth
    quartic, quartic_error = quartic_term(fourth, derivatives.second, exact)

    def estimated(wanted: Tensor) -> tuple[float, float]:
        return (float(wanted.mean()), 0.0) if exact else estimate(wanted, control)

    laplacian, laplacian_error = estimated(products.forms)
    effect_rate, effect_rate_error = estimated(derivatives.second.sum(dim=1))
    kinks, kinks_error = estimated(derivatives.second.sum(dim=1) - control.values - products.forms)
    return LocalAnalysis(
        laplacian=laplacian,
        laplacian_error=laplacian_error,
        fisher_trace=control.mean,
        fisher_trace_error=0.0,
        effect_rate=effect_rate,
        effect_rate_error=effect_rate_error,
        quartic=quartic,
        quartic_error=quartic_error,
        kinks=kinks,
        kinks_error=kinks_error,
        items=len(gradients.squares),
        dimensions=found.dimensions,
        probes=count,
        step=short,
        item_rates=rates,
    )


def _check(probes: int, step: float | None) -> None:
    if not isinstance(probes, int) or probes < 3:
        raise ValueError(f"`probes={probes!r}` must be a whole number, at least 3: fewer show no error. Try 16.")
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"`step={step}` must be positive: leave it out to have it found.")


def _kept_if_small(directions: Directions, count: int, found: Landscape) -> Directions:
    """Directions that are drawn once, where they fit in memory; else anew for every pass, which gives the same ones."""
    if count * found.dimensions * found.dtype.itemsize > KEPT_BYTES:
        return directions
    kept = list(directions())
    return lambda: kept


def _shorter(dtype: torch.dtype) -> float:
    """The step along axes: where probes add no noise, as short as rounding allows, u / x^2 = x^4."""
    return float(torch.finfo(dtype).eps ** (1 / 6) / CHANGE)


def _item_rates(second: Tensor, slopes: Tensor, squares: Tensor, control: Control) -> Tensor:
    """Laplacian(L_i) / L_i of every item, [N], which add up to the effect rate: each item has a control of its own."""
    weight = control.weight(second.sum(dim=1))
    return (second - weight * (slopes.square() - squares)).mean(dim=0)


def _gradients(found: Landscape, batches: Batches, inputs: int) -> ItemGradients:
    with progress("gradients of every item", inputs) as tick:
        gradients = item_gradients(found, batches, tick)
    if not len(gradients.squares):
        raise ValueError(f"`{batches.argument}` has no item that counts: every label is the ignored one.")
    return gradients


def _products(found: Landscape, batches: Batches, directions: Directions, inputs: int) -> Products:
    with progress("products with the Hessian", inputs) as tick:
        return hessian_products(found, batches, directions, tick)


def _derivatives(found: Landscape, batches: Batches, directions: Directions, step: float, inputs: int) -> Directional:
    with progress("small steps", PASSES * inputs) as tick:
        return directional_derivatives(found, batches, directions, step, tick)
