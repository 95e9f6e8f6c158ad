"""`fit`: from a network and validation data to the ensemble at sigma* (eq. 8 and 9)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from peppermill.calibrators import Calibrator, Temperature, fit_calibrator_on, row_for
from peppermill.data import Batches
from peppermill.engines import Engine, engine_named
from peppermill.ensemble import PepEnsemble
from peppermill.passes import run_members
from peppermill.plumbing.progress import progress
from peppermill.plumbing.warnings import warn_user
from peppermill.tuning import SigmaTuner, from_old_keywords, search_named, usual_items, warn_about

if TYPE_CHECKING:
    from peppermill.noise import Noise
    from peppermill.parameters import Selection
    from peppermill.types import CalibratorName, Data, EngineName, LawName, LikelihoodLike, SearchName
    from peppermill.views import ViewsLike


def fit(
    model: nn.Module,
    validation: Data,
    *,
    parameters: Selection = "kernels",
    size: int = 10,
    noise: LawName | Noise = "gaussian",
    search: SearchName | SigmaTuner | None = "two_stage",
    calibrator: CalibratorName | None = None,
    temperature: bool = False,
    scale: Literal["layer", "filter"] | None = None,
    pool: int | None = None,
    likelihood: LikelihoodLike = "categorical",
    views: ViewsLike = None,
    batch_size: int = 500,
    engine: EngineName | Engine = "auto",
    **deprecated: Any,
) -> PepEnsemble:
    """Find sigma* on validation data (eq. 8) and return the ensemble; sigma is 0 if noise does not help.

    - `parameters`: what is perturbed. "kernels" (every weight that multiplies; no bias, no norm layer) suits most
      networks; the paper used "conv" on ImageNet. Also "last_layer", "all", a regular expression, or a function of
      name and value.
    - `size`: the number of members, the paper's m; 10 as in its tests.
    - `noise`: "gaussian" or "uniform", or `pm.Noise(law, antithetic, seed)`. Antithetic members come in pairs +epsilon
      and -epsilon, which cancels the first-order error of a finite ensemble (docs/benchmarks.md).
    - `search`: "two_stage" looks for sigma* on part of the items and needs at most five passes of all members over all
      items if they are 500 or more, eight with `temperature`; "golden" is the paper's golden section, eleven passes or
      more. Or with settings: `pm.TwoStage(lower=..., upper=...)`, `pm.Golden(iterations=7, lower=..., upper=...)`.
    - `calibrator`: what is fitted on the averaged log-probabilities: "temperature" (T and sigma are tuned together, at
      no extra pass), "vector" or "matrix" (docs/choosing.md). `temperature=True` is `calibrator="temperature"`.
    - `scale`: "layer" finds a sigma for every perturbed array, "filter" for every filter, at the price of a gradient
      ascent (about four passes of ten members over 5,000 items) and a second search; None is one sigma for all.
    - `pool`: draw this many directions and keep the best `size` of them, if the choice also helps on items that had no
      part in it (`pep.search.pool_gain`); costs `pool` forward passes.
    - `likelihood`: "categorical", "bernoulli", "gaussian", or one with settings, `pm.Categorical(ignored_label=255)`.
    - `views`: "horizontal_flip", several names, or functions of a batch of pictures: member j sees view j mod V, and
      the first view is the inputs as they are. For networks that were trained with such pictures (docs/views.md).
    - `batch_size`: for data that do not come in batches.
    - `engine`: how the members run (docs/engines.md), "auto" by rule; "auto:bfloat16" or "auto:float16" lets the
      network compute in low precision. Not saved with the ensemble.
    """
    engine = engine_named(engine, deprecated.pop("precision", None))
    if deprecated:
        noise, search = from_old_keywords(noise, search, deprecated)
    tuner = search_named(search)
    pep = PepEnsemble.at_sigma(
        model, 0.0, parameters=parameters, size=size, noise=noise, likelihood=likelihood, views=views, engine=engine
    )
    if (seen := len(pep.recipe.views)) > pep.perturbation.size:
        need = f"`views={views!r}` need {seen} members or more, one of them for the inputs as they are"
        raise ValueError(f"{need}, and `size={size}`: leave views out, or use more members.")
    if temperature and pep.likelihood.name == "gaussian":
        raise ValueError(
            "`temperature=True` is for classifiers: a Gaussian likelihood has no temperature. Leave it out."
        )
    if calibrator:
        row_for(calibrator, pep.likelihood)
    if scale not in (None, "layer", "filter"):
        raise ValueError(f'`scale={scale!r}` is unknown: choose "layer" or "filter", or leave it out for one sigma.')
    if pool is not None and (not isinstance(pool, int) or pool <= size):
        raise ValueError(f"`pool={pool!r}` must be a whole number above `size={size}`.")
    if pool is not None and pep.recipe.views:
        raise ValueError(f"`pool={pool}` chooses among members that see the same inputs: leave `views` out.")
    calibrator = calibrator or ("temperature" if temperature else None)
    if half := {str(v.dtype) for v in pep.perturbation.center.values() if v.dtype in (torch.float16, torch.bfloat16)}:
        warn_user(
            f"the weights are {', '.join(sorted(half))}, in which neighbouring numbers lie far apart: noise is drawn "
            "and added in float32 and then rounded, so a small sigma acts unevenly. For exact noise fit in float32 "
            "(`model.float()`)."
        )
    data = Batches(validation, pep.model, argument="validation", batch_size=batch_size)
    total = None if scale else usual_items(tuner, data.count_items(), size, calibrator is not None)
    with progress("fitting sigma", total) as tick:
        request = pep.request(data, tick)
        if scale:
            from peppermill.tuning.layer_scales import tune_scales  # most fits have one sigma

            request, found = tune_scales(tuner, request, calibrator is not None, scale)
        else:
            found = tuner.tune(request, joint=calibrator is not None)
        warn_about(found, tuner)
        if pool is not None:
            from peppermill.tuning.member_pool import tune_pool  # and no pool

            request, found = tune_pool(request, found, pool)
        fitted: Calibrator = Temperature(found.best.temperature)
        rival: Calibrator | None = Temperature(found.baseline.temperature) if calibrator else None
        if calibrator not in (None, "temperature"):
            members = run_members(request, found.best.sigma)
            fitted = fit_calibrator_on(calibrator, members.averaged, members.labels, pep.likelihood, members.examples)
            found = replace(found, passes=(found.passes or 0.0) + request.members(members.sigma).count)
        if calibrator and (calibrator != "temperature" or request.views):  # else the search has the network's T
            alone = run_members(replace(request, views=()), 0.0)
            rival = fit_calibrator_on(calibrator, alone.averaged, alone.labels, pep.likelihood, alone.examples)
            found = replace(found, passes=(found.passes or 0.0) + 1)
    noise = request.perturbation.noise
    return pep.with_recipe(sigma=found.best.sigma, noise=noise, calibrator=fitted, search=found, one_pass=rival)
