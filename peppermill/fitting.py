"""`fit`: the main job, from a network and validation data to the ensemble at sigma* (eq. 8 and 9)."""

from __future__ import annotations

from typing import Any

from torch import nn

from peppermill import parameters as selection
from peppermill.data import Batches
from peppermill.engines import engine_named
from peppermill.ensemble import PepEnsemble
from peppermill.fingerprint import fingerprint
from peppermill.likelihood import likelihood_named
from peppermill.noise import Noise
from peppermill.old_engines.choose import engine_of
from peppermill.old_engines.loop import MemberPass
from peppermill.old_engines.parts import agree_on, run_here
from peppermill.parameters import Selection
from peppermill.parts import part_of
from peppermill.perturbation import Perturbation, mention_half_precision
from peppermill.plumbing.modes import as_network
from peppermill.plumbing.progress import progress
from peppermill.processes.together import together
from peppermill.recipe import Recipe
from peppermill.tuning.golden import tune_sigma
from peppermill.tuning.subsample import Sample, sample_of
from peppermill.tuning.two_stage import search_named, tune_quickly
from peppermill.types import Data, Likelihood


@together
def fit(
    model: nn.Module,
    validation: Data,
    *,
    parameters: Selection = "kernels",
    size: int = 10,
    noise: str = "gaussian",
    antithetic: bool = True,
    seed: int = 0,
    lower: float | None = None,
    upper: float | None = None,
    iterations: int | None = None,
    search: str | None = None,
    temperature: bool = False,
    likelihood: str | Likelihood = "categorical",
    batch_size: int = 500,
    engine: str = "auto",
    precision: str | None = None,
) -> PepEnsemble:
    """Find sigma* on validation data (eq. 8) and return the ensemble; sigma = 0 where noise does not help.

    - `parameters`: what is perturbed. "kernels" (every weight that multiplies; no bias, no norm layer) suits most
      networks; the paper used "conv" on ImageNet. Also "last_layer", "all", a regular expression, or a function of
      name and value.
    - `size`: members, the paper's m; 10 as in its tests.
    - `noise`, `seed`: the law of the noise, "gaussian" or "uniform", and where its stream starts.
    - `antithetic`: members in pairs +epsilon, -epsilon. It cancels the first-order error of a finite ensemble, so that
      L(sigma) is smooth near 0 and depends less on the seed (docs/benchmarks.md).
    - `lower`, `upper`: where to search; found when absent.
    - `search`: "quick" looks on part of the items where sigma* is and pays for at most five passes of all members over
      all items, six with `temperature`; "golden" is the paper's golden section, which pays for about thirteen, and is
      meant where `iterations` is given, 7 as in the paper.
    - `temperature`: tune T together with sigma; right for most users of classifiers. T costs no forward pass, and a
      few more values of sigma are tried.
    - `likelihood`: "categorical", "bernoulli", "gaussian", or one with settings, `pm.Categorical(ignored_label=255)`.
    - `batch_size`: for data that do not come in batches.
    - `engine`: how the members run (docs/engines.md), "auto" by rule; `precision`: "bfloat16" or "float16" lets the
      network compute in low precision. Neither is saved (docs/engines.md).
    """
    model = as_network(model)
    chosen, runner = likelihood_named(likelihood), engine_of(engine, precision)
    if temperature and chosen.name == "gaussian":
        raise ValueError(
            "`temperature=True` is for classifiers: a Gaussian likelihood has no temperature. Leave it out."
        )
    perturbation = Perturbation(selection.select(model, parameters), Noise(noise, antithetic, seed), size)
    mention_half_precision(perturbation)
    agree_on(model, perturbation, search=(search, lower, upper, iterations, temperature), likelihood=chosen)
    data = Batches(validation, model, argument="validation", batch_size=batch_size)
    with progress("fitting sigma") as tick:

        def run(sigma: float, sample: Sample | None = None) -> MemberPass:
            given = (model, perturbation, sigma, sample.data if sample else part_of(data), chosen, tick, runner)
            return run_here(*given)

        options: dict[str, Any] = {"scale": perturbation.scale(), "lower": lower, "upper": upper, "joint": temperature}
        if search_named(search, iterations) == "golden":
            found = tune_sigma(run, iterations=7 if iterations is None else iterations, **options)
        else:
            found = tune_quickly(run, lambda network: sample_of(part_of(data), network, chosen), **options)
    return PepEnsemble(
        model,
        Recipe(
            sigma=found.best.sigma,
            size=size,
            noise=perturbation.noise,
            rule=selection.rule_name(parameters),
            selected=tuple(perturbation.center),
            likelihood=chosen,
            temperature=found.best.temperature if temperature else 1.0,
            search=found,
            fingerprint=fingerprint(model),
        ),
        engine_named(engine, precision),
    )
